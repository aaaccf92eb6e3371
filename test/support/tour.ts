/** Runs the README's tour, as a newcomer pastes it into a shell. */
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { expect } from 'vitest';
import type { Loam } from './harness.ts';

const PAGE = readFileSync(join(import.meta.dirname, '../../README.md'), 'utf8');
const [, TOUR = ''] = /<!-- tour -->\n(.*?)<!-- \/tour -->/s.exec(PAGE) ?? [];
export const LINES = [...TOUR.matchAll(/```sh\n(.*?)```/gs)].map(([, lines]) => lines).join('');
export const TIMEOUT_MS = 45_000;
export const STREAM = /^api -N .*stream=true"$/m;

/** @throws Error if the result of a line differs from the README */
export async function takeTour(loam: Pick<Loam, 'base' | 'admin'>, lines: string): Promise<void> {
  const script = lines
    .replace('LOAM=http://127.0.0.1:3000', `LOAM=${loam.base}`)
    .replace('LOAM_TOKEN=loam_pat_…', `LOAM_TOKEN=${loam.admin.token}`);
  expect(script).toContain(loam.base);
  expect(script).toMatch(STREAM);

  const { stdout, stderr, code } = await paste(script);
  expect([code, stderr], stdout).toEqual([0, expect.not.stringMatching(/error|fatal|not found/i)]);
  expect(stdout).not.toMatch(/"error":/);
  expect(stdout).toMatch(/"full_name":"admin\/tour"/);
  for (const step of ['step 1', 'step 2', 'step 3'])
    expect(stdout).toContain(`"message":"${step}"`);
  expect(stdout).toMatch(/event: end\ndata: {"status":"succeeded","exit_code":0}/);
  expect(stdout).toMatch(/"progress":"3 of 3"/);
  expect(stdout).toMatch(/^(\.\/)?when\.txt$|out\/when\.txt$/m);
  expect(stdout).toMatch(/"status":"SUCCEEDED"/);
  expect(stdout).toMatch(/"message":"Count to three/);
}

/** As from a clipboard: the lines are the shell's input, which one of the commands could consume. */
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
