/** Folders of jobs: creating, measuring and removing them while a resource of the machine is exhausted. */
import { execFile } from 'node:child_process';
import { chmod, mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { openProcessRunner } from '../../src/runners/process/runner.ts';
import { openShims } from '../../src/runners/process/shims.ts';
import { measureDiskUse } from '../../src/runners/supervisor/disk.ts';
import { attemptSpec } from '../support/runner.contract.ts';

const run = promisify(execFile);
const never = new AbortController().signal;
const REMOVAL = join(import.meta.dirname, '../../src/runners/supervisor/removal.ts');

let dir: string;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'loam-folders-'));
});
afterAll(() => rm(dir, { recursive: true }));

/** Runs `work` while the PATH has another program under this name. */
async function inPlaceOf<T>(name: string, script: string, work: () => Promise<T>): Promise<T> {
  const path = process.env.PATH;
  const bin = await mkdtemp(join(dir, 'bin-'));
  await writeFile(join(bin, name), `#!/bin/sh\n${script}\n`);
  await chmod(join(bin, name), 0o755);
  process.env.PATH = `${bin}:${path}`;
  try {
    return await work();
  } finally {
    process.env.PATH = path;
  }
}

test('without a free descriptor a removal fails, can be repeated, and does not end the process', async () => {
  const folder = join(dir, 'gone');
  await mkdir(join(folder, 'below'), { recursive: true });
  // Enough files that a program is started to remove them.
  const names = Array.from({ length: 200 }, (_, i) => `file${i}`);
  await Promise.all(names.map((name) => writeFile(join(folder, name), '')));
  const script = `
    import { closeSync, openSync } from 'node:fs';
    import { removeTree } from ${JSON.stringify(REMOVAL)};
    const held = [];
    try { for (;;) held.push(openSync('/dev/null')); } catch {}
    // One descriptor for reads during the removal; starting a program needs three.
    closeSync(held.pop());
    const { code } = await removeTree(${JSON.stringify(folder)}).catch((error) => error);
    await new Promise(setImmediate);
    for (const each of held) closeSync(each);
    await removeTree(${JSON.stringify(folder)});
    console.log(code);`;
  const node = [process.execPath, '--input-type=module', '-e', script];
  const { stdout } = await run('/bin/sh', ['-c', 'ulimit -n 64; exec "$@"', 'sh', ...node]);
  expect(stdout).toBe('EMFILE\n');
  expect(await readdir(dir)).not.toContain('gone');
});

test('the measured size of a folder is used, however many errors the program prints', async () => {
  const complaint = 'head -c 3000000 /dev/zero >&2; printf "7\\tfolder\\n"; exit 1';
  const use = await inPlaceOf('du', complaint, () => measureDiskUse([dir]));
  expect(use).toEqual({ bytes: 7 * 1024, files: 7 });
});

test('a job whose output pipes cannot be created is not started, and its log has the reason', async () => {
  await using runner = await openProcessRunner({ dir: join(dir, 'attempts'), hidden: [dir] });
  const full = 'echo "mkfifo: cannot create fifo: No space left on device" >&2; exit 1';
  await inPlaceOf('mkfifo', full, async () => {
    const preparing = runner.prepare(attemptSpec('true'), never);
    await expect(preparing).rejects.toThrow('No space left on device');
  });
  await runner.sweep(new Set());
});

test('closing the shims also waits for shims that were discarded before', async () => {
  const folder = join(dir, 'given-up');
  await mkdir(folder);
  // A shim that ends slowly, like a shim that writes its compile cache.
  const program = join(dir, 'slow.mjs');
  await writeFile(
    program,
    `import { writeFileSync } from 'node:fs';
    process.stdin.on('end', () =>
      setTimeout(() => writeFileSync(${JSON.stringify(join(folder, 'last'))}, ''), 300)).resume();`,
  );
  {
    await using shims = await openShims(folder, { program });
    const none = { argv: [], uid: null };
    shims.reserve('a', { hold: none, ipCommands: '', connect: none, enter: [] });
    shims.discard('a');
  }
  expect(await readdir(folder)).toContain('last');
  await rm(folder, { recursive: true });
});
