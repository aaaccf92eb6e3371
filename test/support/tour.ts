/** Runs the tours of the documentation, as a newcomer pastes them into a shell. */
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { expect } from 'vitest';
import type { Loam } from './harness.ts';

/** Below the time limit of a test, so that the output is shown. */
const TIMEOUT_MS = 240_000;
export const STREAM = /^api -N .*stream=true"$/m;

type Server = Pick<Loam, 'base' | 'admin'>;

/** The lines of the tour in the README, which uses the `loam` command. */
export const README_LINES = readLines('README.md');
/** The lines of the tour in docs/rest.md, which uses curl. */
export const REST_LINES = readLines('docs/rest.md');

function readLines(page: string): string {
  const text = readFileSync(join(import.meta.dirname, '../..', page), 'utf8');
  const [, tour = ''] = /<!-- tour -->\n(.*?)<!-- \/tour -->/s.exec(text) ?? [];
  return [...tour.matchAll(/```sh\n(.*?)```/gs)].map(([, lines]) => lines).join('');
}

/** @throws Error if the result of a line differs from the README */
export async function takeTour(loam: Server): Promise<void> {
  const { stdout, stderr } = await run(loam, README_LINES);
  expect(stderr).toMatch(/^Job admin\/count: http.*\/admin\/-\/jobs\/count$/m);
  for (const line of ['step 1', 'step 2', 'step 3', 'not committed yet'])
    expect(stdout.split('\n')).toContain(line);
  expect(stdout).toMatch(/^\w{3} \w{3} .*\d{4}$/m);
  expect(stdout).toMatch(/^exit code\t0$/m);
  expect(stdout).toMatch(/"status":\s*"SUCCEEDED"/);
  expect(stdout).toMatch(/"message":\s*"Count to three/);
}

/** @throws Error if the result of a line differs from docs/rest.md */
export async function takeRestTour(loam: Server, lines = REST_LINES): Promise<void> {
  expect(lines).toMatch(STREAM);
  const { stdout } = await run(loam, lines);
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

async function run(loam: Server, lines: string): Promise<{ stdout: string; stderr: string }> {
  const script = lines
    .replace('LOAM=http://127.0.0.1:3000', `LOAM=${loam.base}`)
    .replace('loam_pat_…', loam.admin.token);
  expect(script).toContain(loam.base);
  expect(script).toContain(loam.admin.token);
  const { stdout, stderr, code } = await paste(script);
  expect([code, stderr], stdout).toEqual([0, expect.not.stringMatching(/error|fatal|not found/i)]);
  return { stdout, stderr };
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
