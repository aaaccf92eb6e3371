/** Jobs that try to outlive their end, to exhaust the machine, or to fill the log storage: over every runner. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { beforeEach, describe, expect, test } from 'vitest';
import { openProcessRunner } from '../../../src/runners/process/runner.ts';
import type { Outcome, Runner } from '../../../src/runners/runner.ts';
import type { JobLimits } from '../../../src/runners/supervisor/limits.ts';
import { dockerRunner } from '../../support/docker.ts';
import { eventually } from '../../support/eventually.ts';
import { type Need, needs } from '../../support/needs.ts';
import { listCommandLines } from '../../support/processes.ts';
import { allLines, attemptSpec, entriesOf, runToEnd } from '../../support/runner.contract.ts';

const never = new AbortController().signal;
const MiB = 2 ** 20;

type Made = AsyncDisposable & { runner: Runner };
type Options = { limits?: Partial<JobLimits>; graceMs?: number };

async function processRunner(options: Options = {}): Promise<Made> {
  const dir = await mkdtemp(join(tmpdir(), 'loam-hostile-'));
  const runner = await openProcessRunner({ dir, ...options });
  return {
    runner,
    async [Symbol.asyncDispose]() {
      await runner.sweep(new Set());
      await runner[Symbol.asyncDispose]();
      // A shim that has just started may still be writing Node's compile cache.
      await rm(dir, { recursive: true, maxRetries: 5 });
    },
  };
}

const noteOf = (outcome: Outcome) => (outcome.kind === 'exited' ? outcome.note : undefined);

/** The peak of this process's memory, which reads the log, above its memory at the start. */
async function growthOf(work: () => Promise<void>): Promise<number> {
  const before = process.memoryUsage.rss();
  let most = before;
  const over = new AbortController();
  const watching = (async () => {
    for (; !over.signal.aborted; await delay(20)) most = Math.max(most, process.memoryUsage.rss());
  })();
  await work().finally(() => over.abort());
  await watching;
  return most - before;
}

/** Follows a log and counts its lines, without keeping them. */
async function drain(runner: Runner, command: string, log = { bytes: 2 ** 40, lines: 2 ** 40 }) {
  const handle = await runner.prepare(attemptSpec(command, { log }), never);
  await runner.start(handle);
  let [count, bytes, last] = [0, 0, ''];
  for await (const { lines } of runner.logs(handle, null, never))
    for (const { message } of lines) {
      count++;
      bytes += message.length;
      last = message;
    }
  return { count, bytes, last, outcome: await runner.wait(handle, never) };
}

type Kind = [name: string, open: (options?: Options) => Promise<Made>, wanted: Need[]];
const RUNNERS: Kind[] = [
  ['process', processRunner, []],
  ['docker', dockerRunner, ['docker']],
];

describe.each(RUNNERS)('%s', (kind, open, wanted) => {
  beforeEach((ctx) => needs(ctx, ...wanted));

  test('a process that leaves the tree, ignores SIGTERM and holds the output ends with its job', async () => {
    await using made = await open({ graceMs: 300 });
    const { runner } = made;
    const tag = `308.${process.pid}`;
    const daemon = `setsid sh -c 'trap "" TERM; sleep ${tag} & (sleep ${tag} &) ; wait'`;
    // For a job that ends, and for a job that is terminated.
    const first = await runToEnd(runner, attemptSpec(`${daemon} & sleep 0.3; echo done`));
    expect(first).toMatchObject({ outcome: { exitCode: 0 }, lines: ['done'] });
    await eventually(() => expect(listCommandLines(`sleep ${tag}`)).toEqual([]));

    const stubborn = `trap "" TERM; ${daemon} & echo up; while :; do sleep 0.1; done`;
    const handle = await runner.prepare(attemptSpec(stubborn), never);
    await runner.start(handle);
    for await (const _ of runner.logs(handle, null, never)) break;
    await runner.signal(handle, 'TERM');
    expect(await runner.wait(handle, never)).toMatchObject({ exitCode: 137, timedOut: false });
    await eventually(() => expect(listCommandLines(`sleep ${tag}`)).toEqual([]));
  });

  test('SIGTERM reaches processes that have left the process group', async (ctx) => {
    needs(ctx, 'root');
    await using made = await open();
    const { runner } = made;
    const command = `setsid sh -c 'trap "echo far; exit" TERM; echo up; while :; do sleep 0.05; done' &
      trap 'wait; exit 6' TERM; wait; exit 5`;
    const handle = await runner.prepare(attemptSpec(command), never);
    await runner.start(handle);
    for await (const _ of runner.logs(handle, null, never)) break;
    await runner.signal(handle, 'TERM');
    expect(await runner.wait(handle, never)).toMatchObject({ exitCode: 6 });
    expect(await allLines(runner, handle)).toContain('far');
  });

  test('the number of processes is limited', async (ctx) => {
    needs(ctx, 'cgroups');
    await using made = await open({ limits: { processes: 64 } });
    const tag = `309.${process.pid}`;
    const bomb = `for n in $(seq 1000); do sleep ${tag} & done 2>&1 | head -1; sleep ${tag}`;
    const handle = await made.runner.prepare(attemptSpec(bomb), never);
    await made.runner.start(handle);
    for await (const { lines } of made.runner.logs(handle, null, never))
      if (lines.some(({ message }) => /fork/i.test(message))) break;
    expect(listCommandLines(`sleep ${tag}`).length).toBeLessThanOrEqual(64);
    await made.runner.signal(handle, 'KILL');
    expect(await made.runner.wait(handle, never)).toMatchObject({ exitCode: 137 });
    await eventually(() => expect(listCommandLines(`sleep ${tag}`)).toEqual([]));
  });

  test('a job that runs out of memory reports it, whether it survives or not', async (ctx) => {
    needs(ctx, 'cgroups');
    await using made = await open({ limits: { memoryBytes: 64 * MiB } });
    const eat = 'head -c 200m /dev/zero | tail -c 190m >/dev/null';
    for (const [command, exitCode] of [
      [eat, 137],
      [`${eat}; echo survived`, 0],
    ] as const) {
      const { outcome } = await runToEnd(made.runner, attemptSpec(command));
      expect(outcome).toMatchObject({ kind: 'exited', exitCode, outOfMemory: true });
      expect(noteOf(outcome)).toBe(
        'The job ran out of memory: a process was killed. It may use 64 MB.',
      );
    }
  });

  // If other jobs free as much as this job uses, its disk is measured only every 30 seconds.
  test('a job that exceeds its disk is ended, wherever it writes', async () => {
    await using made = await open({ limits: { diskBytes: 20 * MiB, files: 2_000 } });
    const bytes = /^The job was ended: it keeps \d\d MB on disk, and disk_gb allows 20 MB.$/;
    const fill = 'head -c 40000000 /dev/urandom';
    const ends = await Promise.all(
      (
        [
          [`${fill} > $HOME/x; sleep 600`, bytes],
          [`exec 9> x; rm x; ${fill} >&9; sleep 600`, bytes],
          [
            'mkdir d; cd d; seq 3000 | xargs touch; sleep 600',
            /^The job was ended: it keeps \d+ f/,
          ],
        ] as const
      ).map(async ([command, note]) => ({
        note,
        ended: await runToEnd(made.runner, attemptSpec(command)),
      })),
    );
    for (const { note, ended } of ends) {
      expect(ended.outcome).toMatchObject({ kind: 'exited', exitCode: 137 });
      expect(noteOf(ended.outcome)).toMatch(note);
    }
  });

  test('output without newlines, without end, or with any bytes takes little memory', async () => {
    await using made = await open();
    const growth = await growthOf(async () => {
      const long = await drain(made.runner, `tr '\\0' x < /dev/zero | head -c 60m; exit 3`);
      expect(long).toMatchObject({ count: 1, outcome: { exitCode: 3 } });
      expect(long.last).toBe(`${'x'.repeat(65536)} [cut: the line is over 64 KiB]`);
      const wide = `tr '\\0' x < /dev/zero | head -c 30m | fold -w 8000; exit 4`;
      const all = await drain(made.runner, wide);
      expect(all).toMatchObject({ bytes: 30 * MiB, outcome: { exitCode: 4 } });
      const log = { bytes: 1_000_000, lines: 1_000 };
      for (const command of [wide, 'seq 50000; exit 4']) {
        const capped = await drain(made.runner, command, log);
        expect(capped.outcome).toMatchObject({ exitCode: 4 });
        expect(capped.count).toBeLessThanOrEqual(1_001);
        expect(capped.last).toMatch(/^The log ends here: it may hold 1000000 bytes and 1000 lines/);
      }
      const binary = await drain(made.runner, 'head -c 2000000 /dev/urandom; exit 5');
      expect(binary.outcome).toMatchObject({ exitCode: 5 });
      expect(binary.count).toBeGreaterThan(5_000);
    });
    expect(growth, kind).toBeLessThan(150 * MiB);
  });
});

describe('docker', () => {
  beforeEach((ctx) => needs(ctx, 'docker'));

  test('artifacts outside the folders of a job are regular files only', async () => {
    const command =
      'mkdir -p /out/deep; cd /out; echo 1 > deep/a; ln -s deep l; mkfifo f; ln -s /etc /away';
    const run = async (root: boolean) => {
      const made = await dockerRunner({ root });
      const { handle } = await runToEnd(made.runner, attemptSpec(command));
      return { made, read: (path: string) => entriesOf(made.runner.artifacts(handle, path)) };
    };
    const { made, read } = await run(true);
    await using _ = made;
    expect(await read('/out')).toEqual({ 'deep/a': '1\n', l: 'symlink', f: 'fifo' });
    expect(await read('/out/deep/a')).toEqual({ a: '1\n' });
    for (const path of ['/out/l', '/away', '/nothing', '/out/deep/a/nothing'])
      expect(await read(path), path).toBeNull();
    expect(await read('/etc')).toMatchObject({ passwd: expect.stringMatching(/^root/) });
    // A file of another user: the requester might not have been able to read it in the job.
    const other = await run(false);
    await using __ = other.made;
    expect(await other.read('/etc')).toMatchObject({ passwd: 'fifo' });
  });

  // If another test frees as much at that moment, the usage is found by the full measurement after 30 s.
  test('files that root of an image writes into the image count as disk usage', async () => {
    await using made = await dockerRunner({ limits: { diskBytes: 20 * MiB }, root: true });
    const spec = attemptSpec('id -u; head -c 40000000 /dev/urandom > /filled; sleep 600');
    const { outcome, lines } = await runToEnd(made.runner, spec);
    expect(lines).toEqual(['0']);
    expect(outcome).toMatchObject({ exitCode: 137 });
    expect(noteOf(outcome)).toMatch(/^The job was ended: it keeps \d\d MB on disk/);
  });
});
