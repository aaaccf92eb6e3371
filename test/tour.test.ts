import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { startApp } from './harness.ts';

const run = promisify(execFile);

test("the README's tour works as it is printed", async () => {
  await using app = await startApp();
  const home = await mkdtemp(join(tmpdir(), 'loam-tour-'));
  const page = readFileSync(join(import.meta.dirname, '../README.md'), 'utf8');
  const [, lines] = /<!-- tour -->\n```sh\n(.*?)```\n<!-- \/tour -->/s.exec(page) ?? [];
  const script = lines
    ?.replace('LOAM=http://127.0.0.1:3000', `LOAM=${app.base}`)
    .replace('TOKEN=loam_pat_…', `TOKEN=${app.admin.token}`);
  expect(script).toContain(app.base);

  const env = {
    PATH: process.env.PATH,
    HOME: home,
    GIT_CONFIG_NOSYSTEM: '1',
    GIT_TERMINAL_PROMPT: '0',
  };
  const { stdout } = await run('bash', ['--norc', '-euo', 'pipefail', '-c', script as string], {
    cwd: home,
    env,
  }).finally(() => rm(home, { recursive: true, force: true }));
  expect(stdout).toMatch(/"full_name":"admin\/hello"/);
  for (const step of ['step 1', 'step 2', 'step 3'])
    expect(stdout).toContain(`"message":"${step}"`);
  expect(stdout).toMatch(/event: end\ndata: {"status":"succeeded","exit_code":0}/);
  expect(stdout).toMatch(/"progress":"3 of 3"/);
  expect(stdout).toMatch(/^(\.\/)?when\.txt$|out\/when\.txt$/m);
  expect(stdout).toMatch(/"status":"SUCCEEDED"/);
  expect(stdout).toMatch(/"message":"Count to three/);
});
