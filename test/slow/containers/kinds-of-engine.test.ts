/** Engines with unusual configurations: user namespaces, other runtimes. */
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { extract } from 'tar-stream';
import { beforeEach, expect, test } from 'vitest';
import { dockerRunner } from '../../support/docker.ts';
import { needs } from '../../support/needs.ts';
import { startOwnEngine } from '../../support/own-engine.ts';
import { attemptSpec, runToEnd } from '../../support/runner.contract.ts';

const never = new AbortController().signal;

beforeEach((ctx) => needs(ctx, 'docker', 'root'));

test('an engine with user namespaces runs jobs like a remote engine', async () => {
  await using engine = await startOwnEngine({ liveRestore: true, remapped: true });
  await using made = await dockerRunner({ docker: engine.config });
  const { runner } = made;
  expect(runner.warning).toMatch(/have no network: the engine is rootless or uses userns-remap/);
  expect(runner.machines).toMatchObject([{ id: 'docker' }]);
  const spec = attemptSpec(
    'cat given; echo more >> given; mkdir out; echo made > out/made; cat /proc/self/uid_map',
    {
      async checkout(dir) {
        await mkdir(dir);
        await writeFile(join(dir, 'given'), 'given\n', { mode: 0o600 });
      },
    },
  );
  const { handle, outcome, lines } = await runToEnd(runner, spec);
  expect(lines).toEqual(['given', expect.stringMatching(/^ +0 +231072 +65536$/)]);
  expect(outcome).toMatchObject({ kind: 'exited', exitCode: 0 });
  for (const path of ['out', '/work/out/made']) {
    const tar = await runner.artifacts(handle, path);
    const found: string[] = [];
    for await (const entry of tar?.pipe(extract()) ?? [])
      found.push(entry.header.name, await text(entry));
    expect(found, path).toEqual(['made', 'made\n']);
  }
});

test('containers run with the configured runtime, or with the default of the engine', async () => {
  // Both names refer to runc.
  const runtimes = ['runsc', 'other'].flatMap((name) => ['--add-runtime', `${name}=runc`]);
  const args = [...runtimes, '--default-runtime', 'runsc'];
  await using engine = await startOwnEngine({ liveRestore: true, args });
  const ran = async (asked?: string) => {
    const network = { mode: 'none', runtime: asked } as const;
    await using made = await dockerRunner({ docker: engine.config, network });
    const { runner } = made;
    const spec = attemptSpec('echo ran');
    const handle = await runner.prepare(spec, never);
    await runner.start(handle);
    expect(await runner.wait(handle, never)).toMatchObject({ exitCode: 0 });
    return await engine.docker('inspect', '--format', '{{.HostConfig.Runtime}}', `loam-${spec.id}`);
  };
  expect(await ran('other')).toBe('other');
  expect(await ran()).toBe('runsc');
  // A real runsc has a network stack of its own, which bypasses firewall rules.
  await using made = await dockerRunner({ docker: engine.config });
  expect(made.runner.warning).toMatch(/have no network: the runtime runsc/);
});
