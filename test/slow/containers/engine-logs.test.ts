/**
 * Reading the engine's own log of a container, as is done without a shim: for a remote engine, or a runtime with a
 * kernel of its own. The tests use the local engine, whose log has the same format.
 */
import { beforeEach, expect, test } from 'vitest';
import { connect } from '../../../src/runners/docker/engine.ts';
import { followLog } from '../../../src/runners/docker/logs.ts';
import { readContainerState } from '../../../src/runners/docker/outcome.ts';
import { type LogCursor, logFullMessage, type RunnerLine } from '../../../src/runners/runner.ts';
import { BUSYBOX, DOCKER, docker } from '../../support/docker.ts';
import { needs } from '../../support/needs.ts';

beforeEach((ctx) => needs(ctx, 'docker'));

const KiB = 1024;
const NO_CAPS = { bytes: 2 ** 40, lines: 2 ** 40 };
type Stream = RunnerLine['stream'];

/** Starts a container without a shim. Disposing of it removes the container. */
async function printing(script: string) {
  const options = ['--detach', '--network', 'none', '--log-driver', 'json-file'];
  const container = await docker('run', ...options, BUSYBOX, '/bin/sh', '-c', script);
  const engine = connect(DOCKER);
  const hasEnded = async () => (await readContainerState(engine, container))?.status !== 'running';
  return {
    ended: () => docker('wait', container),
    follow: (cursor: LogCursor | null, caps = NO_CAPS) =>
      followLog({ engine, container, caps, hasEnded }, cursor, AbortSignal.timeout(60_000)),
    async [Symbol.asyncDispose]() {
      await docker('rm', '--force', '--volumes', container);
    },
  };
}

type Printing = Awaited<ReturnType<typeof printing>>;

async function allOf({ follow }: Printing, caps = NO_CAPS, cursor: LogCursor | null = null) {
  const found: RunnerLine[] = [];
  let last = cursor;
  for await (const batch of follow(cursor, caps)) {
    for (const line of batch.lines) found.push(line);
    last = batch.cursor;
  }
  return { found, last };
}

const messagesOf = (lines: readonly RunnerLine[], stream: Stream) =>
  lines.filter((line) => line.stream === stream).map(({ message }) => message);

/** Shell command that prints `n` times a letter. */
const letters = (n: number, letter: string) => `head -c ${n} /dev/zero | tr '\\0' ${letter}`;

test('lines that the engine splits are joined, up to 64 KiB, and the last one needs no newline', async () => {
  // Sizes around the 16 KiB of a frame, around multiples of it, and around the limit of 64 KiB.
  const sizes = [1, 16, 32, 64].flatMap((k) => [-1, 0, 1].map((n) => k * KiB + n));
  sizes.push(40_000, 100_000, 300_000);
  const script = sizes.map((n) => `${letters(n, 'o')}; echo; ${letters(n, 'e')} >&2; echo >&2`);
  await using made = await printing(`${script.join('\n')}; ${letters(20_000, 'z')}`);
  const { found } = await allOf(made);
  const kept = (n: number, letter: string) =>
    n > 64 * KiB ? `${letter.repeat(64 * KiB)} [cut: the line is over 64 KiB]` : letter.repeat(n);
  const expected = (letter: string) => sizes.map((n) => kept(n, letter));
  expect(messagesOf(found, 'stderr')).toEqual(expected('e'));
  expect(messagesOf(found, 'stdout')).toEqual([...expected('o'), 'z'.repeat(20_000)]);
});

test('lines of both streams that are split at the same time are not mixed', async () => {
  const many = (letter: string, to: string) =>
    `i=0; while [ $i -lt 200 ]; do i=$((i+1)); printf "$i "; ${letters(40_000, letter)}; echo; done ${to}`;
  await using made = await printing(`(${many('o', '')}) & (${many('e', '>&2')}); wait`);
  const { found } = await allOf(made);
  const expected = (letter: string) =>
    Array.from({ length: 200 }, (_, i) => `${i + 1} ${letter.repeat(40_000)}`);
  expect(messagesOf(found, 'stdout')).toEqual(expected('o'));
  expect(messagesOf(found, 'stderr')).toEqual(expected('e'));
});

/** Alternating lines of both streams, `o 1`, `e 1`, `o 2` …; every 500th is longer than a frame, every 1000th is cut. */
const LONG = { 500: 17_000, 1000: 70_000 };
const bothStreams = (count: number) => `
l=$(${letters(LONG[500], 'x')}); c=$(${letters(LONG[1_000], 'x')}); i=0
while [ $i -lt ${count} ]; do
  i=$((i+1)); m=
  [ $((i % 500)) = 0 ] && m=" $l"
  [ $((i % 1000)) = 0 ] && m=" $c"
  echo "o $i$m"; echo "e $i$m" >&2
done; printf 'o end'; exit 3`;

function linesOf(letter: string, count: number): string[] {
  const lines = Array.from({ length: count }, (_, at) => {
    const start = `${letter} ${at + 1}`;
    if ((at + 1) % 1_000 === 0)
      return `${`${start} ${'x'.repeat(LONG[1_000])}`.slice(0, 64 * KiB)} [cut: the line is over 64 KiB]`;
    return (at + 1) % 500 === 0 ? `${start} ${'x'.repeat(LONG[500])}` : start;
  });
  return letter === 'o' ? [...lines, 'o end'] : lines;
}

test('a follower that is interrupted many times resumes at its cursor', async () => {
  const count = 15_000;
  await using made = await printing(bothStreams(count));
  const found: RunnerLine[] = [];
  let cursor: LogCursor | null = null;
  let times = 0;
  // The first rounds follow a running container, the last ones read the log of an ended one.
  for (let isOver = false; !isOver; times++) {
    isOver = true;
    let taken = 0;
    for await (const batch of made.follow(cursor)) {
      for (const line of batch.lines) found.push(line);
      taken += batch.lines.length;
      // The cursor is stored as JSON with the lines.
      cursor = JSON.parse(JSON.stringify(batch.cursor));
      isOver = taken <= 1_000 + ((times * 397) % 2_000);
      if (!isOver) break;
    }
  }
  expect(times).toBeGreaterThan(8);
  expect(messagesOf(found, 'stdout')).toEqual(linesOf('o', count));
  expect(messagesOf(found, 'stderr')).toEqual(linesOf('e', count));
  expect(await made.ended()).toBe('3');
});

test('a log ends at its cap of lines or bytes with a line that says so', async () => {
  await using made = await printing(bothStreams(2_000));
  await made.ended();
  const whole = (await allOf(made)).found;
  const sizeOf = (lines: readonly RunnerLine[]) =>
    // A cut line counts with the size that is kept.
    lines.reduce((sum, { message }) => sum + message.replace(/ \[cut: .*$/, '').length + 1, 0);
  // The number of lines that fit, in the engine's order.
  for (const [caps, count] of [
    [{ bytes: 2 ** 40, lines: 700 }, 700],
    [{ bytes: sizeOf(whole.slice(0, 900)), lines: 2 ** 40 }, 900],
    [{ bytes: sizeOf(whole.slice(0, 1_200)) + 3, lines: 2 ** 40 }, 1_200],
  ] as const) {
    const { found, last } = await allOf(made, caps);
    expect(found.slice(0, -1)).toEqual(whole.slice(0, count));
    expect(found.at(-1)).toMatchObject({ stream: 'stderr', message: logFullMessage(caps) });
    // Resuming a full log yields nothing.
    expect((await allOf(made, caps, last)).found).toEqual([]);
  }
  // The caps also hold over an interruption, because the cursor contains the counts.
  const caps = { bytes: 2 ** 40, lines: 1_500 };
  const found: RunnerLine[] = [];
  let cursor: LogCursor | null = null;
  for await (const batch of made.follow(null, caps)) {
    for (const line of batch.lines) found.push(line);
    cursor = batch.cursor;
    if (found.length > 500) break;
  }
  const rest = await allOf(made, caps, cursor);
  found.push(...rest.found);
  expect(found).toHaveLength(1_501);
  for (const stream of ['stdout', 'stderr'] as const) {
    const seen = messagesOf(found, stream).filter((message) => message !== logFullMessage(caps));
    expect(seen).toEqual(messagesOf(whole, stream).slice(0, seen.length));
  }
});
