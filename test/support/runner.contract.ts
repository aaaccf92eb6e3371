/** The behaviour that the worker relies on, tested on every runner. The commands are valid in the shell and in the fake. */

import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { extract } from 'tar-stream';
import { beforeEach, expect, test } from 'vitest';
import {
  type AttemptSpec,
  type Handle,
  LOCAL_MACHINE,
  type LogCursor,
  type Outcome,
  RESULTS_DIR,
  type Runner,
  type WantedFiles,
} from '../../src/runners/runner.ts';
import { eventually } from './eventually.ts';
import { type Need, needs } from './needs.ts';

export type RunnerUnderTest = AsyncDisposable & {
  runner: Runner;
  /** Another runner for the same attempts, as a restarted server opens it. */
  again(): Promise<Runner>;
  /** A file of the job is missing for a moment while it is replaced. */
  missesReplacedFiles?: boolean;
};

const never = new AbortController().signal;
let attempts = 0;

export function attemptSpec(command: string, changes: Partial<AttemptSpec> = {}): AttemptSpec {
  return {
    // Unique to this process, because attempts are found by their id on the whole machine.
    id: `att_${process.pid}_${attempts++}`,
    machine: LOCAL_MACHINE,
    command,
    image: null,
    env: {},
    files: {},
    checkout: null,
    mounts: [],
    job: { id: 'job_1', name: 'contract', namespace: 'ada' },
    hardware: { gpu: 'none', gpuCount: 1, cpu: 2, memoryGb: 1, diskGb: 1, region: 'us-east-1' },
    timeoutMs: 60_000,
    log: { bytes: 2 ** 30, lines: 10_000_000 },
    report: () => {},
    ...changes,
  };
}

export async function allLines(runner: Runner, handle: Handle, cursor: LogCursor | null = null) {
  const lines: string[] = [];
  for await (const batch of runner.logs(handle, cursor, never)) {
    lines.push(...batch.lines.map(({ message }) => message));
  }
  return lines;
}

export async function runToEnd(
  runner: Runner,
  spec: AttemptSpec,
): Promise<{ handle: Handle; outcome: Outcome; lines: string[] }> {
  const handle = await runner.prepare(spec, never);
  await runner.start(handle);
  const [outcome, lines] = await Promise.all([
    runner.wait(handle, never),
    allLines(runner, handle),
  ]);
  return { handle, outcome, lines };
}

/** The entries of a tar: the content of files, and the type of other entries. */
export async function entriesOf(
  archive: Promise<Readable | null>,
): Promise<Record<string, string> | null> {
  const tar = await archive;
  if (!tar) return null;
  const found: Record<string, string> = {};
  for await (const entry of tar.pipe(extract())) {
    const { name, type } = entry.header;
    found[name] = type === 'file' ? await text(entry) : `${type}`;
    entry.resume();
  }
  return found;
}

/**
 * Declares the contract tests in the current describe block.
 * @param open opens a runner with a grace period that a busy machine does not exceed
 * @param wanted the requirements of this runner
 */
export function runnerContract(open: () => Promise<RunnerUnderTest>, ...wanted: Need[]): void {
  beforeEach((ctx) => needs(ctx, ...wanted));

  test('an attempt has lines, an exit code and times', async () => {
    await using made = await open();
    const before = Date.now();
    const { outcome, lines } = await runToEnd(
      made.runner,
      attemptSpec('echo one; echo two; exit 3'),
    );
    expect(lines).toEqual(['one', 'two']);
    expect(outcome).toMatchObject({ kind: 'exited', exitCode: 3, timedOut: false });
    const { startedAt, endedAt } = outcome as Extract<Outcome, { kind: 'exited' }>;
    expect(startedAt.getTime()).toBeGreaterThanOrEqual(before);
    expect(endedAt.getTime()).toBeGreaterThanOrEqual(startedAt.getTime());
  });

  test('a cursor resumes the log after its line', async () => {
    await using made = await open();
    const { runner } = made;
    const handle = await runner.prepare(attemptSpec('echo 1; sleep 0.1; echo 2; echo 3'), never);
    await runner.start(handle);
    const seen: string[] = [];
    let cursor: LogCursor | null = null;
    for await (const batch of runner.logs(handle, null, never)) {
      seen.push(...batch.lines.map(({ message }) => message));
      cursor = batch.cursor;
      break;
    }
    seen.push(...(await allLines(await made.again(), handle, cursor)));
    expect(seen).toEqual(['1', '2', '3']);
  });

  test('a started attempt is adopted, not started twice', async () => {
    await using made = await open();
    const { runner } = made;
    const handle = await runner.prepare(attemptSpec('echo once; sleep 0.2'), never);
    expect(await runner.attach(handle)).toBe('prepared');
    await runner.start(handle);
    const second = await made.again();
    expect(await second.attach(handle)).toBe('started');
    await second.start(handle);
    expect(await second.wait(handle, never)).toMatchObject({ exitCode: 0 });
    expect(await allLines(second, handle)).toEqual(['once']);
  });

  test('without permission to begin, nothing of the attempt runs', async () => {
    await using made = await open();
    const { runner } = made;
    const handle = await runner.prepare(attemptSpec('echo ran; exit 1'), never);
    expect(await runner.start(handle, async () => false)).toBe(false);
    // If the permission cannot be determined, the start fails and can be repeated.
    await expect(runner.start(handle, () => Promise.reject(new Error('away')))).rejects.toThrow();
    expect(await runner.attach(handle)).toBe('prepared');
    await runner.remove(handle);
    expect(await runner.attach(handle)).toBe('gone');
    const allowed = await runner.prepare(attemptSpec('echo ran'), never);
    expect(await runner.start(allowed, async () => true)).toBe(true);
    expect(await allLines(runner, allowed)).toEqual(['ran']);
  });

  test('SIGTERM ends an attempt with 143', async () => {
    await using made = await open();
    const { runner } = made;
    const handle = await runner.prepare(attemptSpec('echo up; sleep 600'), never);
    await runner.start(handle);
    // Before the command can handle it, the signal only starts the grace period.
    const up = new AbortController();
    for await (const _ of runner.logs(handle, null, up.signal)) up.abort();
    await runner.signal(handle, 'TERM');
    expect(await runner.wait(handle, never)).toMatchObject({ kind: 'exited', exitCode: 143 });
  });

  test('SIGKILL ends an attempt at once with 137', async () => {
    await using made = await open();
    const { runner } = made;
    // At any step of its start: in the middle of a step, the command or its sandbox may exit with its own code.
    for (let round = 0; round < 8; round++) {
      const handle = await runner.prepare(attemptSpec('echo up; sleep 600'), never);
      await runner.start(handle);
      await runner.signal(handle, 'KILL');
      expect(await runner.wait(handle, never)).toMatchObject({ kind: 'exited', exitCode: 137 });
      await runner.remove(handle);
    }
  });

  test('exceeding the timeout ends an attempt and is reported', async () => {
    await using made = await open();
    const spec = attemptSpec('sleep 600', { timeoutMs: 200 });
    const { outcome } = await runToEnd(made.runner, spec);
    expect(outcome).toMatchObject({ kind: 'exited', exitCode: 143, timedOut: true });
  });

  test('an image that cannot be run is refused with a reason', async () => {
    await using made = await open();
    const spec = attemptSpec('true', { image: 'registry.invalid/debian:12' });
    // A cluster finds out when it starts the attempt.
    const start = async () => made.runner.start(await made.runner.prepare(spec, never));
    await expect(start()).rejects.toThrow(/debian:12/);
  });

  test('a removed attempt cannot be attached, and waiting for it reports a loss', async () => {
    await using made = await open();
    const { runner } = made;
    const handle = await runner.prepare(attemptSpec('sleep 600'), never);
    await runner.start(handle);
    await runner.remove(handle);
    expect(await runner.attach(handle)).toBe('gone');
    expect(await runner.wait(handle, never)).toEqual({ kind: 'lost' });
  });

  test('a sweep removes the attempts that are not in its list and keeps the others', async () => {
    await using made = await open();
    const { runner } = made;
    const [kept, stray] = [attemptSpec('sleep 600'), attemptSpec('sleep 600')];
    const handles = [await runner.prepare(kept, never), await runner.prepare(stray, never)];
    for (const handle of handles) await runner.start(handle);
    await runner.sweep(new Set([kept.id]));
    expect(await Promise.all(handles.map((h) => runner.attach(h)))).toEqual(['started', 'gone']);
    await runner.sweep(new Set());
    expect(await runner.attach(handles[0] as Handle)).toBe('gone');
  });

  test('artifacts are the files at a path after the end, whatever the outcome', async () => {
    await using made = await open();
    const command = 'mkdir -p out/deep; echo one > out/a; echo two > out/deep/b; exit 3';
    const { handle, outcome } = await runToEnd(made.runner, attemptSpec(command));
    expect(outcome).toMatchObject({ exitCode: 3 });
    const other = await runToEnd(made.runner, attemptSpec('exit 0'));
    expect(await made.runner.artifacts(other.handle, 'out')).toBeNull();
    for (const runnerOf of [async () => made.runner, () => made.again()]) {
      const runner = await runnerOf();
      const at = (path: string) => entriesOf(runner.artifacts(handle, path));
      for (const path of ['out', '/work/out', './out/'])
        expect(await at(path), path).toEqual({ a: 'one\n', 'deep/b': 'two\n' });
      expect(await at('out/deep')).toEqual({ b: 'two\n' });
      expect(await at('out/a')).toEqual({ a: 'one\n' });
      expect(await at('.')).toEqual({ 'out/a': 'one\n', 'out/deep/b': 'two\n' });
      for (const path of ['nothing', 'out/nothing', 'out/a/nothing', 'ou'])
        expect(await at(path), path).toBeNull();
    }
  });

  test('result files and files of a pattern are read without the contents of larger ones', async () => {
    await using made = await open();
    const command =
      'mkdir -p out/deep; echo one > out/deep/a.xml; echo two > out/b.txt; echo long > out/c.xml; echo hi > $JOB_SUMMARY; exit 3';
    const { handle, outcome } = await runToEnd(made.runner, attemptSpec(command));
    // A remote engine does not know.
    expect(outcome).not.toMatchObject({ hasResults: false });
    const none = await runToEnd(made.runner, attemptSpec('exit 0'));
    expect(none.outcome).not.toMatchObject({ hasResults: true });
    for (const runnerOf of [async () => made.runner, () => made.again()]) {
      const runner = await runnerOf();
      const read = (path: string, wanted: WantedFiles) =>
        entriesOf(runner.artifacts(handle, path, { wanted }));
      expect(await read(RESULTS_DIR, { maxFileBytes: 3 })).toEqual({ 'summary.md': 'hi\n' });
      expect(await read(RESULTS_DIR, { maxFileBytes: 2 })).toEqual({ 'summary.md': 'fifo' });
      expect(await read('out', { pattern: '**.xml', maxFileBytes: 4 })).toEqual({
        'c.xml': 'fifo',
        'deep/a.xml': 'one\n',
      });
    }
  });

  test('a snapshot is the files at a path while the attempt runs, and after it', async () => {
    await using made = await open();
    const { runner } = made;
    const handle = await runner.prepare(
      attemptSpec('mkdir out; echo one > out/a; sleep 600'),
      never,
    );
    await runner.start(handle);
    const expectSnapshot = async (each: Runner) => {
      const snapshot = () =>
        entriesOf(each.artifacts(handle, 'out', { snapshot: { unless: null } }));
      await eventually(async () => expect(await snapshot()).toEqual({ a: 'one\n' }));
      expect(await each.artifacts(handle, 'nothing', { snapshot: { unless: null } })).toBeNull();
    };
    await expectSnapshot(runner);
    // Not earlier: from then on, machines talk to the second one only.
    await expectSnapshot(await made.again());
    const second = await made.again();
    await second.signal(handle, 'KILL');
    await second.wait(handle, never);
    const last = second.artifacts(handle, 'out', { snapshot: { unless: null } });
    expect(await entriesOf(last)).toEqual({ a: 'one\n' });
    await second.remove(handle);
  });

  test('usage is measured while an attempt runs', async () => {
    await using made = await open();
    const { runner } = made;
    const MB = 1_000_000;
    const hold = `x=$(head -c ${50 * MB} /dev/zero | tr "\\0" x)`;
    const spec = attemptSpec(`${hold}; busy() { while :; do :; done; }; busy`);
    const handle = await runner.prepare(spec, never);
    expect(await runner.stats(handle)).toBeNull();
    await runner.start(handle);
    await eventually(async () => {
      const usage = await runner.stats(handle);
      // Other programs may use most of the machine.
      expect(usage?.cpuPercent).toBeGreaterThan(0);
      expect(usage?.memoryBytes).toBeGreaterThan(40 * MB);
      expect(usage).toMatchObject({ gpuPercent: 0, diskBytes: expect.any(Number) });
    });
    // Measured by every runner that drives the attempt.
    const second = await made.again();
    await eventually(async () =>
      expect((await second.stats(handle))?.cpuPercent).toBeGreaterThan(0),
    );
    await second.signal(handle, 'KILL');
    await second.wait(handle, never);
    // The last sample, if it is still available.
    expect((await second.stats(handle))?.cpuPercent ?? 0).toBeGreaterThanOrEqual(0);
    await second.remove(handle);
    expect(await second.stats(handle)).toBeNull();
  });

  test('waiting and following end when their signal aborts, and the attempt continues', async () => {
    await using made = await open();
    const { runner } = made;
    const handle = await runner.prepare(attemptSpec('echo up; sleep 600'), never);
    await runner.start(handle);
    const abort = new AbortController();
    const waiting = expect(runner.wait(handle, abort.signal)).rejects.toThrow();
    const following = (async () => {
      for await (const _ of runner.logs(handle, null, abort.signal)) abort.abort();
    })();
    await Promise.all([waiting, following]);
    await eventually(async () => expect(await runner.attach(handle)).toBe('started'));
  });
}

/** A part of the contract for runners that have a shell. */
export function filesContract(open: () => Promise<RunnerUnderTest>, ...wanted: Need[]): void {
  beforeEach((ctx) => needs(ctx, ...wanted));

  test('a checkout fills the working directory and the home folder', async () => {
    await using made = await open();
    const command =
      'cat file "$HOME/.cache/made"; echo new > "$HOME/.cache/new" && ls "$HOME/.cache"';
    const spec = attemptSpec(command, {
      async checkout(dir, _signal, home) {
        await mkdir(dir);
        await writeFile(join(dir, 'file'), 'of work\n');
        await mkdir(join(home, '.cache'));
        await writeFile(join(home, '.cache/made'), 'of home\n');
      },
    });
    const { outcome, lines } = await runToEnd(made.runner, spec);
    expect(lines).toEqual(['of work', 'of home', 'made', 'new']);
    expect(outcome).toMatchObject({ kind: 'exited', exitCode: 0 });
  });

  test('provided files are in variables and in files that are replaced while the work runs', async () => {
    await using made = await open();
    const { runner } = made;
    const grep = made.missesReplacedFiles ? 'grep -qs' : 'grep -q';
    const command = `echo "$KEY"; cat "$KEY_FILE"; echo; until ${grep} new "$KEY_FILE"; do sleep 0.05; done; cat "$KEY_FILE"; echo; echo "$OTHER"`;
    const files = { KEY: 'old', OTHER: 'kept' };
    const handle = await runner.prepare(attemptSpec(command, { files }), never);
    await runner.start(handle);
    const again = await made.again();
    const lines: string[] = [];
    for await (const batch of again.logs(handle, null, never)) {
      lines.push(...batch.lines.map(({ message }) => message));
      if (lines.length === 2) await again.replaceFiles(handle, { ...files, KEY: 'new' });
    }
    expect(lines).toEqual(['old', 'old', 'new', 'kept']);
    expect(await again.wait(handle, never)).toMatchObject({ exitCode: 0 });
    await again.replaceFiles(handle, files);
    await again.remove(handle);
    await again.replaceFiles(handle, files);
  });
}
