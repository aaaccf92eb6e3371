/** A short form of `npm run bench:memory`: transferred data does not stay in the server's memory. */
import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { Workspace } from '../../support/git.ts';
import { needs } from '../../support/needs.ts';
import { startServer } from '../../support/process.ts';

const MB = 1_000_000;
const TOKEN = 'a-token-of-some-length';

test('a push of 200 MB, its clone and its download raise the memory by less than 120 MB', async (ctx) => {
  needs(ctx, 'proc');
  await using workspace = await Workspace.open();
  const env = { LOAM_DATA_DIR: join(workspace.path, 'data'), LOAM_ADMIN_TOKEN: TOKEN };
  await using server = await startServer({ ...env, LOAM_RATE_LIMITS: 'off' });
  const graphql = async (query: string) => {
    const response = await fetch(`${server.base}/graphql`, {
      method: 'POST',
      headers: { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' },
      body: JSON.stringify({ query }),
    });
    // biome-ignore lint/suspicious/noExplicitAny: asserted on by use.
    return ((await response.json()) as any).data;
  };
  const remote = (name: string) =>
    server.base.replace('//', `//x:${TOKEN}@`).concat(`/admin/${name}.git`);
  const pass = async (name: string, bytes: number) => {
    await graphql(
      `mutation { createRepository(input: {namespace: "admin", name: "${name}", autoInit: false}) { repository { id } } }`,
    );
    await workspace.git('.', 'init', '-q', '-b', 'main', name);
    // Random bytes do not compress; trying takes the client longer than the rest of the test.
    await workspace.git(name, 'config', 'core.compression', '0');
    await workspace.commit(name, { 'big.bin': randomBytes(bytes) });
    await workspace.git(name, 'push', '-q', remote(name), 'main');
    await workspace.git('.', 'clone', '-q', '--bare', remote(name), `${name}-clone`);
    const { repository } = await graphql(
      `{ repository(namespace: "admin", name: "${name}") { file(path: "big.bin") { downloadUrl } } }`,
    );
    let came = 0;
    for await (const chunk of (await fetch(repository.file.downloadUrl)).body ?? [])
      came += chunk.length;
    expect(came).toBe(bytes);
  };
  // The peak since the start; the first round loads modules that are loaded on first use.
  const peak = async () => {
    const status = await readFile(`/proc/${server.child.pid}/status`, 'utf8');
    return Number(/^VmHWM:\s+(\d+) kB/m.exec(status)?.[1]) * 1024;
  };
  await pass('small', 2 * MB);
  const before = await peak();
  await pass('large', 200 * MB);
  // V8 collects up to 64 MB of buffers before it checks which of them are still used.
  expect((await peak()) - before).toBeLessThan(120 * MB);
});
