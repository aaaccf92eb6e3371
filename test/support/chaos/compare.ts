/** Compares the output, witness messages and results of jobs with the expected ones. */
import type { JobSeen } from '../kills/caller.ts';
import type { Servers } from '../many-servers.ts';
import { type Kind, linesOf, messagesOf } from './jobs.ts';
import type { KilledAttempts } from './victims.ts';

export type Ran = JobSeen & { kind: Kind };
export type Discrepancies = { lost: string[]; doubled: string[] };

/**
 * The most bytes that a killed shim of a container loses: its unwritten data, and the content of the FIFOs if the job ends
 * before the next shim starts (docs/containers.md).
 */
const BY_CONTAINER_SHIM = (16 + 64) * 1024;

/** A job is queued again after this many losses; one more loss fails it. */
const MOST_LOSSES = 3;

type Attempt = { id: string; number: number; outcome: string | null; started: boolean };
type Stored = { name: string; status: string; attempts: Attempt[] };

/**
 * @param said the messages of jobs to the witness
 * @returns for each job, which lines, results and messages are missing, and which are there more than once
 */
export async function compareWithExpected(
  { pool }: Pick<Servers, 'pool'>,
  { ran, said, hit }: { ran: readonly Ran[]; said: readonly string[]; hit: KilledAttempts },
): Promise<Discrepancies> {
  const { rows } = await pool.query<Stored>(
    `select name, status, coalesce((select json_agg(json_build_object('id', id, 'number', number, 'outcome', outcome, 'started', started_at is not null) order by number)
       from job_attempts where job_id = jobs.id), '[]') as attempts from jobs`,
  );
  const stored = new Map(rows.map((row) => [row.name, row]));
  const toldBy = Map.groupBy(said, (line) => line.split(' ')[1] ?? '');
  const found: Discrepancies = { lost: [], doubled: [] };
  for (const job of ran) {
    const row = stored.get(job.name);
    if (row) compareJob(job, row, toldBy.get(job.name) ?? [], hit, found);
    else found.lost.push(`${job.name} is not stored`);
  }
  if (rows.length > ran.length) found.doubled.push(`${rows.length} jobs, not ${ran.length}`);
  return found;
}

function compareJob(
  { name, kind, lines, end }: Ran,
  { status, attempts }: Stored,
  said: readonly string[],
  hit: KilledAttempts,
  { lost, doubled }: Discrepancies,
): void {
  const whole = attempts.filter(({ outcome }) => outcome !== 'lost');
  const isGivenUp = attempts.length - whole.length > MOST_LOSSES && whole.length === 0;
  if (isGivenUp && status === 'failed' && end?.exit_code === null) return;
  if (status !== kind.end.status || end?.status !== status)
    lost.push(`the end of ${name}: ${JSON.stringify(end)}, ${status}`);
  // A job that was cancelled while its shim was dead has no exit code, and its attempt is lost.
  // If the shim of the container was killed while the job was cancelled, the exit code is that of the engine, which makes one up
  // (137) when it was killed too.
  const mayBeMadeUp = whole.some(({ id }) => kind.cancelled && hit.containerShim.includes(id));
  if (whole.length > 0 && end?.exit_code !== kind.end.exit_code && !mayBeMadeUp)
    lost.push(`the exit code of ${name}: ${end?.exit_code}, attempts ${JSON.stringify(attempts)}`);
  if (whole.length > kind.attempts) doubled.push(`attempts of ${name}: ${whole.length}`);
  for (const { id, number, outcome, started } of attempts) {
    // An attempt that had not started when its job was cancelled because of a message of an earlier attempt.
    const isRefused = kind.cancelled && number > 1 && !started;
    // If the engine was killed too before a server asked it, the exit code of a container without a shim is unknown.
    const mayBeLost = hit.processShim.includes(id) || hit.containerShim.includes(id);
    if (outcome === 'lost' && !mayBeLost && !isRefused)
      lost.push(`attempt ${number} of ${name}, ${started ? 'which ran' : 'which did not run'}`);
  }

  const own = { lines: [...lines], said: [...said] };
  for (const { id, number, outcome } of attempts) {
    const printed = removeExpected(own.lines, linesOf(kind, name, number));
    const told = removeExpected(own.said, messagesOf(kind, name, number));
    const what = `of attempt ${number} of ${name}`;
    if (printed.twice.length > 0) doubled.push(`${printed.twice.length} lines ${what}`);
    if (told.twice.length > 0) doubled.push(`${told.twice.join(', ')} ${what}`);
    // A lost attempt has not run to its end.
    if (outcome === 'lost') continue;
    const missing = printed.missing.join('\n');
    if (missing.length > BY_CONTAINER_SHIM * hit.containerShim.filter((one) => one === id).length)
      lost.push(`${printed.missing.length} lines ${what}, as ${printed.missing[0]}`);
    if (told.missing.length > 0) lost.push(`${told.missing.join(', ')} ${what}`);
  }
  // A killed shim of a container loses the start of a line that it was reading, and the next shim stores the rest.
  const torn = hit.containerShim.filter((id) =>
    attempts.some((attempt) => attempt.id === id),
  ).length;
  if (own.lines.length > torn) doubled.push(`not of ${name}: ${own.lines.slice(0, 3).join(', ')}`);
  if (own.said.length > 0) doubled.push(`not of ${name}: ${own.said.join(', ')}`);
}

/** Removes the expected lines from `lines`, and leaves the others. */
function removeExpected(lines: string[], expected: readonly string[]) {
  const left = new Set(expected);
  const all = new Set(expected);
  const [rest, twice]: [string[], string[]] = [[], []];
  for (const line of lines)
    if (left.delete(line)) continue;
    else if (all.has(line)) twice.push(line);
    else rest.push(line);
  lines.length = 0;
  for (const line of rest) lines.push(line);
  return { missing: [...left], twice };
}
