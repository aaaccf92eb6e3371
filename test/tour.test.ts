import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { expect, test } from 'vitest';
import { startApp } from './harness.ts';

const PAGE = readFileSync(join(import.meta.dirname, '../README.md'), 'utf8');
const [, TOUR = ''] = /<!-- tour -->\n(.*?)<!-- \/tour -->/s.exec(PAGE) ?? [];
const LINES = [...TOUR.matchAll(/```sh\n(.*?)```/gs)].map(([, lines]) => lines).join('');
const TIMEOUT_MS = 45_000;
const STREAM = /^api -N .*stream=true"$/m;
const FINISHED = `until api $LOAM/admin/job/count | grep -q '"status":"succeeded"'; do sleep 0.2; done`;

test.each([
  ['pasted at once', LINES],
  [
    'read slowly, when the job has long finished',
    LINES.replace(STREAM, (line) => `${FINISHED}\n${line}`),
  ],
])(
  "the README's tour works as it is printed, %s",
  { timeout: 2 * TIMEOUT_MS },
  async (_how, lines) => {
    await using app = await startApp();
    // What the first start proposes to try has been tried.
    await app.admin.post('/auth/v1/repository/admin', { name: 'hello' });
    const script = lines
      .replace('LOAM=http://127.0.0.1:3000', `LOAM=${app.base}`)
      .replace('LOAM_TOKEN=loam_pat_…', `LOAM_TOKEN=${app.admin.token}`);
    expect(script).toContain(app.base);
    expect(script).toMatch(STREAM);

    const { stdout, stderr, code } = await paste(script);
    expect([code, stderr], stdout).toEqual([
      0,
      expect.not.stringMatching(/error|fatal|not found/i),
    ]);
    expect(stdout).not.toMatch(/"error":/);
    expect(stdout).toMatch(/"full_name":"admin\/tour"/);
    for (const step of ['step 1', 'step 2', 'step 3'])
      expect(stdout).toContain(`"message":"${step}"`);
    expect(stdout).toMatch(/event: end\ndata: {"status":"succeeded","exit_code":0}/);
    expect(stdout).toMatch(/"progress":"3 of 3"/);
    expect(stdout).toMatch(/^(\.\/)?when\.txt$|out\/when\.txt$/m);
    expect(stdout).toMatch(/"status":"SUCCEEDED"/);
    expect(stdout).toMatch(/"message":"Count to three/);
  },
);

/** As from a clipboard: the lines are the shell's input, which a command among them could swallow. */
async function paste(script: string) {
  const home = await mkdtemp(join(tmpdir(), 'loam-tour-'));
  const shell = spawn('bash', ['--norc', '-eu', '-o', 'pipefail'], {
    cwd: home,
    timeout: TIMEOUT_MS,
    env: { PATH: process.env.PATH, HOME: home, GIT_CONFIG_NOSYSTEM: '1', GIT_TERMINAL_PROMPT: '0' },
  });
  shell.stdin.end(script);
  const ended = new Promise<number | null>((resolve) => shell.once('close', resolve));
  const [stdout, stderr, code] = await Promise.all([text(shell.stdout), text(shell.stderr), ended]);
  await rm(home, { recursive: true, force: true });
  return { stdout, stderr, code };
}
