/** Volumes on the machine of the server: what is mounted, and what a hostile volume or checkout cannot do. */
import { execFileSync } from 'node:child_process';
import { chmod, copyFile, mkdir, rm, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { createLog } from '../../src/base/log.ts';
import type { VolumeMount } from '../../src/runners/runner.ts';
import { type LocalVolumes, openLocalVolumes } from '../../src/runners/volumes.ts';
import { needs } from '../support/needs.ts';
import { processRunner } from '../support/process-runner.ts';
import { attemptSpec, runToEnd } from '../support/runner.contract.ts';
import { mount, volumesContract } from '../support/volumes.contract.ts';
import { type TestVolumes, testVolumes } from '../support/volumes.ts';

const never = new AbortController().signal;
const locate = (local: LocalVolumes, ...mounts: VolumeMount[]) =>
  local.locate(attemptSpec('true', { mounts }));
const open =
  (sandbox: 'auto' | 'unshare' | 'none') =>
  ({ local }: TestVolumes) =>
    processRunner(sandbox, 'host', undefined, local);

describe('process, bubblewrap', () => {
  volumesContract({ open: open('auto'), mounts: true }, 'bubblewrap');
});

describe('process, unshare', () => {
  volumesContract({ open: open('unshare'), mounts: true }, 'bubblewrap');
});

describe('process, without a sandbox', () => {
  volumesContract({ open: open('none'), mounts: false });
});

test.each(['auto', 'unshare'] as const)(
  'device files and setuid programs of a volume have no effect (%s)',
  async (sandbox) => {
    await using volumes = await testVolumes();
    await using made = await open(sandbox)(volumes);
    const scratch = join(volumes.root, 'scratch');
    const isRoot = process.getuid?.() === 0;
    if (isRoot) execFileSync('mknod', ['-m', '666', join(scratch, 'zero'), 'c', '1', '5']);
    await copyFile('/usr/bin/id', join(scratch, 'id'));
    await chmod(join(scratch, 'id'), 0o4755);
    const { lines } = await runToEnd(
      made.runner,
      attemptSpec(
        'awk \'$5 == "/vol" { print $6 }\' /proc/self/mountinfo; head -c 1 /vol/zero >/dev/null 2>&1 && echo device || echo refused; test "$(/vol/id -u)" = "$(id -u)" && echo same',
        { mounts: [mount('scratch', '/vol', false)] },
      ),
    );
    const [options = '', ...rest] = lines;
    expect(options.split(',')).toEqual(expect.arrayContaining(['rw', 'nosuid', 'nodev']));
    expect(rest).toEqual(['refused', 'same']);
  },
);

test('artifacts have nothing of a volume', async () => {
  await using volumes = await testVolumes();
  for (const sandbox of ['auto', 'none'] as const) {
    await using made = await open(sandbox)(volumes);
    const spec = attemptSpec('cat data/a.txt', { mounts: [mount('data', '/work/data')] });
    const { handle, lines } = await runToEnd(made.runner, spec);
    expect(lines).toEqual(['all of it']);
    expect(await made.runner.artifacts(handle, 'data/a.txt')).toBeNull();
  }
});

test('a link of the operator is followed, and a link in place of a subfolder is not', async () => {
  await using volumes = await testVolumes();
  const { root, local } = volumes;
  await symlink(join(root, 'data'), join(root, 'linked'));
  await volumes.declare([
    `{ name: linked, path: ${root}/linked }`,
    `{ name: own, path: ${root}/own, access: write, per_namespace: true }`,
  ]);
  expect(local.names).toEqual(['linked', 'own']);
  const [found] = await locate(local, mount('linked', '/data'));
  expect(found?.from).toBe(join(root, 'data'));
  const own = mount('own', '/own', false);
  await symlink(join(root, 'data'), join(root, 'own', own.folder as string));
  await expect(locate(local, own)).rejects.toThrow('is not a folder');
  for (const folder of ['..', '../data', 'a/b', ''])
    await expect(locate(local, { ...own, folder }), folder).rejects.toThrow('no valid name');
});

test('the machine has the volumes whose folders exist, and its own file decides what is written', async () => {
  await using volumes = await testVolumes();
  const { root, local } = volumes;
  expect(local.names).toEqual(['data', 'scratch', 'own']);
  await mkdir(join(root, 'missing'));
  await rm(join(root, 'scratch'), { recursive: true });
  await writeFile(join(root, 'scratch'), 'a file');
  await local.check();
  expect(local.names).toEqual(['data', 'own', 'missing']);
  await expect(locate(local, mount('data', '/data', false))).rejects.toThrow(
    'The volume data can only be read on this machine.',
  );
  await expect(locate(local, mount('scratch', '/data'))).rejects.toThrow('is not a folder');
});

test("a machine's own file decides for which namespaces a volume is, and whether they have subfolders", async () => {
  await using volumes = await testVolumes();
  const { root, local } = volumes;
  await volumes.declare([
    `{ name: data, path: ${root}/data, namespaces: [bob] }`,
    `{ name: scratch, path: ${root}/scratch, access: write, per_namespace: true }`,
  ]);
  await expect(locate(local, mount('data', '/data'))).rejects.toThrow(
    'This machine does not have the volume data for jobs of ada.',
  );
  await expect(locate(local, mount('scratch', '/scratch', false))).rejects.toThrow(
    'The volume scratch is per_namespace on this machine, but not on the server.',
  );
});

test('a volume with files of Loam is not mounted', async () => {
  await using volumes = await testVolumes();
  const { root, declared } = volumes;
  await mkdir(join(root, 'scratch/loam/data'), { recursive: true });
  await symlink(join(root, 'scratch/loam/data'), join(root, 'missing'));
  const hidden = [join(root, 'scratch/loam')];
  await using local = await openLocalVolumes({
    volumes: declared,
    hidden,
    log: createLog('silent'),
  });
  expect(local.names).toEqual(['data', 'own']);
  for (const name of ['scratch', 'missing'])
    await expect(locate(local, mount(name, '/x')), name).rejects.toThrow('has files of Loam');
});

test('a runner without volumes refuses them', async (ctx) => {
  needs(ctx, 'bubblewrap');
  await using made = await processRunner('auto', 'host');
  const spec = attemptSpec('true', { mounts: [mount('data', '/data')] });
  await expect(made.runner.prepare(spec, never)).rejects.toThrow(
    'This machine does not have the volume data.',
  );
});
