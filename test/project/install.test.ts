/** The output of npm and of Loam before the first start. */
import { execFile } from 'node:child_process';
import { cp, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';

const run = promisify(execFile);

test('npm prints no warnings about the engines of packages, which users cannot fix, but prints errors', async () => {
  const dir = await mkdtemp(join(tmpdir(), 'loam-install-'));
  try {
    await mkdir(join(dir, 'newer'));
    const newer = { name: 'newer', version: '1.0.0', engines: { node: '>=99' } };
    await writeFile(join(dir, 'newer/package.json'), JSON.stringify(newer));
    const project = { name: 'p', version: '1.0.0', dependencies: { newer: 'file:./newer' } };
    await writeFile(join(dir, 'package.json'), JSON.stringify(project));
    const env = { PATH: process.env.PATH, HOME: dir, npm_config_offline: 'true' };
    const install = (...more: string[]) =>
      run('npm', ['install', '--dry-run', ...more], { cwd: dir, env }).then(
        ({ stderr }) => ({ failed: false, stderr }),
        ({ stderr }: { stderr: string }) => ({ failed: true, stderr }),
      );
    expect((await install()).stderr).toContain('EBADENGINE');

    await cp(join(import.meta.dirname, '../../.npmrc'), join(dir, '.npmrc'));
    expect(await install()).toEqual({ failed: false, stderr: '' });
    const { failed, stderr } = await install('no-such-package-of-ours');
    expect([failed, stderr]).toEqual([true, expect.stringMatching(/^npm error code E/)]);
  } finally {
    await rm(dir, { recursive: true, force: true });
  }
});

test('a start before npm ci prints one line that says to run it', async () => {
  const dir = await mkdtemp(join(tmpdir(), 'loam-not-installed-'));
  try {
    const file = join(dir, 'src/programs/installed.mjs');
    await cp(join(import.meta.dirname, '../../src/programs/installed.mjs'), file);
    await expect(run(process.execPath, [file])).rejects.toMatchObject({
      code: 1,
      stderr: 'Loam is not installed here yet, or not completely: run "npm ci" first.\n',
    });
    await mkdir(join(dir, 'prisma/generated'), { recursive: true });
    expect(await run(process.execPath, [file])).toEqual({ stdout: '', stderr: '' });
  } finally {
    await rm(dir, { recursive: true, force: true });
  }
});
