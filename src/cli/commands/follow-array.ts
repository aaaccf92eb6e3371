/** Showing an array that runs: the number of its jobs in each status, how they end, and their logs. */
import { EXIT } from '../exit.ts';
import { isFinal, type JobInfo } from '../sdk/job-info.ts';
import type { LogOptions } from '../sdk/jobs.ts';
import { note, paint, printJson, StatusLine, safeText } from '../terminal.ts';
import {
  type ArrayStep,
  countOf,
  describeCounts,
  followArray,
  isNotFound,
  type JobArray,
} from './arrays.ts';
import { announced, describeEnd, exitCodeOfJob, type LogOutput, printLog } from './follow.ts';
import { InterruptHandler } from './interrupt.ts';

/** Logs that are followed at the same time. */
const MAX_STREAMS = 20;

/**
 * Shows how arrays proceed: on a terminal one line for all of them that changes in place, and a line for each job that fails;
 * elsewhere a line for each job that ends.
 */
export class ArrayProgress {
  readonly #line = new StatusLine();
  /** Of each array that goes on, by id. */
  readonly #states = new Map<string, string>();

  show({ id, namespace, name }: JobArray, { counts, ended }: ArrayStep): void {
    const isTerminal = process.stderr.isTTY === true;
    for (const job of ended) {
      if (isTerminal && exitCodeOfJob(job) === 0) continue;
      this.#line.clear();
      note(describeEnd(job));
    }
    if (countOf(counts, (status) => !isFinal(status)) === 0) this.#states.delete(id);
    else this.#states.set(id, `${namespace}/${name}: ${describeCounts(counts)}`);
    if (isTerminal) this.#line.show([...this.#states.values()].join('; '));
  }

  clear(): void {
    this.#line.clear();
  }
}

/**
 * Names a new array, and follows it until all its jobs have ended or the user detaches.
 * @returns the exit code: that of the job that failed first; and the jobs, unless the user has detached
 */
export async function followArrayToEnd(
  array: JobArray,
  { json }: { json?: true | undefined } = {},
): Promise<{ code: number; jobs: JobInfo[] }> {
  // Before the first line, because a user may press Ctrl-C as soon as the command says something.
  const interrupts = new InterruptHandler('Array', array);
  const name = `${array.namespace}/${array.name}`;
  note(`Array ${name}: ${array.url}`);
  const progress = new ArrayProgress();
  const jobs: JobInfo[] = [];
  let summary = '';
  try {
    for await (const step of followArray(array, announced({ signal: interrupts.detached }))) {
      jobs.push(...step.ended);
      if (json) for (const job of step.ended) printJson({ kind: 'job', ...job }, 0);
      // The line would replace what the user types.
      if (!interrupts.isAsking) progress.show(array, step);
      summary = describeCounts(step.counts);
    }
  } catch (error) {
    if (!interrupts.detached.aborted) throw error;
    note(`Detached. Follow it with: loam logs -f ${name}`);
    return { code: EXIT.interrupted, jobs: [] };
  } finally {
    progress.clear();
    interrupts.dispose();
  }
  note(`${name}: ${summary}`);
  if (interrupts.choice === 'cancel') return { code: EXIT.interrupted, jobs };
  return { code: jobs.map(exitCodeOfJob).find((code) => code !== 0) ?? 0, jobs };
}

type ArrayLogOutput = Omit<LogOutput, 'prefix'>;

/** Prints the logs of all jobs of an array one after another, in their order. */
export async function printArrayLogs(
  array: JobArray,
  options: LogOptions,
  output: ArrayLogOutput,
): Promise<void> {
  for (const job of await array.jobs({}, options)) await printLogOf(array, job, options, output);
}

/**
 * Prints the logs of the jobs of an array as they are written, until all have ended. Of more jobs than there can be streams,
 * the others follow as streams end.
 */
export async function followArrayLogs(
  array: JobArray,
  options: LogOptions,
  output: ArrayLogOutput,
): Promise<void> {
  const failure = new AbortController();
  const retrying = announced({ signal: failure.signal });
  const started = new Set<string>();
  const streams = new Set<Promise<void>>();
  const start = (job: JobInfo) => {
    started.add(job.id);
    const stream = printLogOf(array, job, { ...options, ...retrying }, output)
      .catch((error) => failure.abort(error))
      .finally(() => streams.delete(stream));
    streams.add(stream);
  };
  for await (const { counts, ended } of followArray(array, retrying)) {
    const isRunning = countOf(counts, (status) => status === 'RUNNING') > 0;
    const running = isRunning ? await array.jobs({ statuses: ['RUNNING'] }, retrying) : [];
    const unseen = [...ended, ...running].filter(({ id }) => !started.has(id));
    for (const job of unseen.sort((a, b) => array.indexOf(a) - array.indexOf(b))) {
      if (streams.size >= MAX_STREAMS) await Promise.race(streams);
      start(job);
    }
  }
  await Promise.all(streams);
  failure.signal.throwIfAborted();
}

/** Prints a log with the name of its job before each line, as `docker compose logs` does. */
async function printLogOf(
  array: JobArray,
  job: JobInfo,
  options: LogOptions,
  output: ArrayLogOutput,
): Promise<void> {
  const width = `${array.name}-${array.size}`.length;
  const prefix = paint('cyan', `${safeText(job.name).padEnd(width)} | `);
  try {
    await printLog(array.job(job), options, { ...output, prefix });
  } catch (error) {
    // It was deleted meanwhile.
    if (!isNotFound(error)) throw error;
  }
}
