/** Compares what the jobs of a chaos test did with what Loam has stored of them. */
import type pg from 'pg';
import type { Client } from '../harness.ts';
import { lines as readLines } from '../submit.ts';
import { type Kind, type Message, parseMessage } from './jobs.ts';

export type Ran = { name: string; kind: Kind };

/** Times in milliseconds since the epoch. `begun`: null when the command never began. */
export type Loss = {
  id: string;
  node: string | null;
  created: number;
  begun: number | null;
  ended: number;
};

export type Comparison = {
  lost: string[];
  doubled: string[];
  /** Attempts that were lost with the machine or the engine that ran them, by whether they had begun. */
  losses: { begun: number; waiting: number };
};

/** A job is queued again after this many losses; one more loss fails it. */
const MOST_LOSSES = 3;

type Attempt = {
  id: string;
  number: number;
  outcome: string | null;
  node: string | null;
  created: number;
  begun: number | null;
  ended: number;
};
type Stored = { name: string; status: string; exit_code: number | null; attempts: Attempt[] };

const STORED = `select name, status, exit_code, coalesce((
    select json_agg(json_build_object('id', id, 'number', number, 'outcome', outcome, 'node', handle->>'node',
      'created', extract(epoch from created_at) * 1000, 'begun', extract(epoch from started_at) * 1000, 'ended', extract(epoch from ended_at) * 1000) order by number)
    from job_attempts where job_id = jobs.id), '[]') as attempts
  from jobs`;

type Options = {
  pool: pg.Pool;
  admin: Client;
  ran: readonly Ran[];
  /** Lines that the witness heard. */
  said: readonly string[];
  /** Whether a kill explains that the attempt was lost. */
  isExplained(loss: Loss): boolean;
  /** How often the attempt may have lost some of its lines. */
  countTears(attempt: string): number;
};

/** The most bytes that are lost each time, as of test/support/chaos/compare.ts. */
const TEAR_BYTES = (16 + 64) * 1024;

export async function compare({
  pool,
  admin,
  ran,
  said,
  isExplained,
  countTears,
}: Options): Promise<Comparison> {
  const { rows } = await pool.query<Stored>(STORED);
  const stored = new Map(rows.map((row) => [row.name, row]));
  const messages = Map.groupBy(said.map(parseMessage), ({ job }) => job);
  const found: Comparison = { lost: [], doubled: [], losses: { begun: 0, waiting: 0 } };
  for (const job of ran) {
    const row = stored.get(job.name);
    if (!row) {
      found.lost.push(`${job.name} is not stored`);
      continue;
    }
    const printed = await readLines(admin, 'admin', job.name);
    const told = messages.get(job.name) ?? [];
    for (const { id, node, created, begun, ended, outcome } of row.attempts) {
      // A cancelled job whose command had not begun has no outcome.
      if (outcome !== 'lost' || (job.kind.cancelled && begun === null)) continue;
      found.losses[begun === null ? 'waiting' : 'begun']++;
      if (!isExplained({ id, node, created, begun, ended }))
        found.lost.push(
          `${id} of ${job.name}, which ran on ${node} from ${timeOf(begun ?? created)} to ${timeOf(ended)}`,
        );
    }
    compareEnd(job, row, found);
    compareLines(job, row, { printed, countTears }, found);
    compareRuns(job, row, told, found);
  }
  if (rows.length > ran.length) found.doubled.push(`${rows.length} jobs, not ${ran.length}`);
  return found;
}

const timeOf = (ms: number) => new Date(ms).toISOString();
const keptOf = ({ attempts }: Stored) => attempts.filter(({ outcome }) => outcome !== 'lost');

function compareEnd({ name, kind }: Ran, row: Stored, { lost, doubled }: Comparison): void {
  const kept = keptOf(row);
  if (kept.length > 1) doubled.push(`${kept.length} attempts of ${name}`);
  if (kept.length === 0 && row.attempts.length > MOST_LOSSES && row.status === 'failed') return;
  if (row.status !== kind.end.status) lost.push(`the end of ${name}: ${row.status}`);
  // A cancelled job may never have begun, or was lost with its node.
  const mayBeUnknown = kind.cancelled === 'waiting' || (kind.cancelled && kept.length === 0);
  if (row.exit_code !== kind.end.exit_code && !(mayBeUnknown && row.exit_code === null))
    lost.push(`the exit code of ${name}: ${row.exit_code}`);
}

/** All lines of the attempt that was not lost, and the first lines of the others; on each stream in order. */
function compareLines(
  { name, kind }: Ran,
  row: Stored,
  { printed, countTears }: Pick<Options, 'countTears'> & { printed: readonly string[] },
  { lost: missing, doubled }: Comparison,
): void {
  const expected = new Set<string>();
  for (const { id, number, outcome } of row.attempts)
    for (const stream of ['o', 'e']) {
      const tears = countTears(id);
      const start = `${name} ${number} ${stream} `;
      const all = Array.from({ length: kind.lines }, (_, i) => i + 1)
        .filter((i) => (i % 3 === 0) === (stream === 'e'))
        .map((i) => `${start}${i}`);
      const own = printed.filter((line) => line.startsWith(start));
      const gaps = all.length - own.length;
      const present = new Set(own);
      // In order and once each, with gaps.
      const kept = tears > 0 ? all.filter((line) => present.has(line)) : all;
      const wrong = own.findIndex((line, i) => line !== kept[i]);
      if (wrong >= 0)
        doubled.push(`${own[wrong]} as line ${wrong + 1} of its stream, not ${all[wrong]}`);
      const isTorn = gaps * (all[0]?.length ?? 0) <= tears * TEAR_BYTES;
      if (outcome !== 'lost' && kind.cancelled !== 'waiting' && gaps > 0 && !isTorn)
        missing.push(`${gaps} lines ${start}`);
      for (const line of all) expected.add(line);
    }
  const reasons = printed.filter((line) => LOSS_REASON.test(line));
  const lost = row.attempts.filter(({ outcome, begun }) => outcome === 'lost' && begun === null);
  if (reasons.length > lost.length)
    doubled.push(`${reasons.length} reasons of ${lost.length} losses of ${name}`);
  for (const line of reasons) expected.add(line);
  const others = printed.filter((line) => !expected.has(line) && !NOTES.test(line));
  // The end of a line whose beginning was lost.
  const torn = row.attempts.reduce((sum, { id }) => sum + countTears(id), 0);
  if (others.length > torn) doubled.push(`not of ${name}: ${others.slice(0, 3).join(' / ')}`);
}

/** Why an attempt was lost before its command began. Loam adds it to the log. */
const LOSS_REASON = /^(Slurm|Kubernetes|The machine): /;
/** Printed by the shell of a node when a command is killed. */
const NOTES = /^(Killed|Terminated)$/;

/** Each attempt ran at most once, and no two attempts of a job at the same time. */
function compareRuns(
  { name, kind }: Ran,
  row: Stored,
  told: readonly Message[],
  { lost, doubled }: Comparison,
): void {
  const runs = [...Map.groupBy(told, ({ run }) => run).values()].map((messages) => ({
    attempt: messages[0]?.attempt ?? 0,
    from: Math.min(...messages.map(({ at }) => at)),
    to: Math.max(...messages.map(({ at }) => at)),
    hasEnded: messages.some(({ what }) => what === 'end'),
  }));
  for (const [attempt, { length }] of Map.groupBy(runs, (run) => run.attempt))
    if (length > 1) doubled.push(`attempt ${attempt} of ${name} ran ${length} times`);
  runs.sort((a, b) => a.from - b.from);
  for (const [i, run] of runs.entries()) {
    const next = runs[i + 1];
    if (next && next.from < run.to)
      doubled.push(
        `attempts ${run.attempt} and ${next.attempt} of ${name} ran at the same time for ${(run.to - next.from).toFixed(2)} s`,
      );
  }
  for (const { number, begun } of keptOf(row)) {
    const run = runs.find(({ attempt }) => attempt === number);
    const endsItself = kind.cancelled === undefined && kind.end.exit_code !== 137;
    if (endsItself && !run?.hasEnded) lost.push(`the end that attempt ${number} of ${name} tells`);
    if (run && begun === null) doubled.push(`attempt ${number} of ${name}, which never began, ran`);
  }
}
