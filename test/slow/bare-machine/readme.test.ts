/**
 * The README's two commands and its tour, as it prints them, on a Debian that has only what the README asks for. The whole of the
 * tests would take most of the time of all tests together, so each commit runs another quarter of them there:
 * `LOAM_TEST_SHARD=1/1` runs all.
 */
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { clientsOf } from '../../support/harness.ts';
import { needs } from '../../support/needs.ts';
import { takeTour } from '../../support/tour.ts';

const MINUTE = 60_000;
const ROOT = join(import.meta.dirname, '../../..');
const README = readFileSync(join(ROOT, 'README.md'), 'utf8');
const [, COMMANDS = ''] = /```sh\n(.*?)```/s.exec(README) ?? [];
const [START = '', TEST = ''] = COMMANDS.split('\n').map((line) => line.replace(/\s*#.*/, ''));

const COMMITS = Number(execFileSync('git', ['rev-list', '--count', 'HEAD'], { cwd: ROOT }));
const { LOAM_TEST_SHARD: SHARD = `${1 + (Math.floor(COMMITS / 4) % 4)}/4` } = process.env;

test("the README's commands and tour work for an ordinary user", {
  timeout: 40 * MINUTE,
}, async (ctx) => {
  needs(ctx, 'root', 'mmdebstrap', 'curl');
  expect([START, TEST]).toEqual([expect.stringMatching(/start$/), expect.stringMatching(/test$/)]);
  // PORT=0, because the bare machine shares this machine's network. The second command uses the first one's installation.
  const start = START.replace('npm ci && ', '');
  const command = `${TEST} -- --shard=${SHARD}; echo "the tests ended with $?"; export PORT=0; ${start}`;
  const machine = spawn(join(ROOT, 'test/support/bare-machine.sh'), ['newcomer', command], {
    stdio: ['ignore', 'pipe', 'pipe'],
    // Its process group, so that the server in it is stopped as by Ctrl-C in a terminal.
    detached: true,
  });
  const closed = once(machine, 'close');
  let output = '';
  const ready = Promise.withResolvers<{ base: string; token: string }>();
  for (const stream of [machine.stdout, machine.stderr])
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text;
      const [, base] = /^Loam is ready at (\S+)/m.exec(output) ?? [];
      const [token] = /loam_pat_\w+/.exec(output) ?? [];
      if (base && token) ready.resolve({ base, token });
    });
  try {
    const ended = closed.then(([code]) => {
      throw new Error(`the machine ended with ${code} before the server was ready:\n${output}`);
    });
    const { base, token } = await Promise.race([ready.promise, ended]);
    const failures = output.match(/^FAILED .*\n(?: {4}.*\n)*/gm) ?? [];
    expect(failures.join('')).toBe('');
    expect(output).toMatch(/^\d+ passed, 0 failed, \d+ skipped$/m);
    expect(output).toContain('the tests ended with 0');
    await takeTour(clientsOf(base, token));
  } finally {
    if (machine.exitCode === null) process.kill(-(machine.pid as number), 'SIGTERM');
    await closed;
  }
});
