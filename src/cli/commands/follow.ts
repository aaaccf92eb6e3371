/** Showing a job that runs: what it waits for, its log, and its end. */
import { EXIT } from '../exit.ts';
import { isFinal, type JobInfo, type LogEvent } from '../sdk/job-info.ts';
import type { Job, LogOptions } from '../sdk/jobs.ts';
import { type RetryOptions, sleep } from '../sdk/retry.ts';
import { duration, isTerminal, note, print, printJson, StatusLine, safeLine } from '../terminal.ts';
import { InterruptHandler } from './interrupt.ts';

const QUEUE_INTERVAL_MS = 2_000;

/**
 * Says when the server is away, and when it is back.
 * @param options.forMs ends with the last error after this time
 */
export function announced({
  signal,
  forMs = Number.POSITIVE_INFINITY,
}: {
  signal?: AbortSignal;
  forMs?: number;
} = {}): RetryOptions {
  const giveUpAt = Date.now() + forMs;
  let said = false;
  return {
    signal,
    onRetry: (error) => {
      if (Date.now() > giveUpAt) throw error;
      if (!said) note(`${error.message.replace(/\.$/, '')}. Trying again…`);
      said = true;
    },
    onRecovered: () => {
      note('The server answers again.');
      said = false;
    },
  };
}

export type LogOutput = {
  json?: true | undefined;
  timestamps?: true | undefined;
  grep?: RegExp | undefined;
  /** Before each line; in JSON the field `job` has the name instead. */
  prefix?: string | undefined;
};

/** Prints the lines of a log: as they are to a file, without control sequences to a terminal. */
export async function printLog(
  job: Job,
  options: LogOptions,
  { json, timestamps, grep, prefix }: LogOutput = {},
  onEvent: (event: LogEvent) => void = () => {},
): Promise<void> {
  for await (const event of job.logs(options)) {
    onEvent(event);
    if (json) printJson(prefix === undefined ? event : { job: job.name, ...event }, 0);
    if (json || event.kind !== 'line') continue;
    if (grep && !grep.test(event.message)) continue;
    const line = timestamps ? `${event.timestamp} ${event.message}` : event.message;
    print(`${prefix ?? ''}${isTerminal ? safeLine(line) : line}`);
  }
}

/**
 * Shows a new job until it has ended: what it waits for on stderr, then its log on stdout.
 * @returns the job at its end
 */
async function watchJob(
  job: Job,
  { json, retrying }: { json?: true | undefined; retrying: RetryOptions },
): Promise<JobInfo> {
  const started = new AbortController();
  const queue = showQueue(job, started.signal);
  try {
    await printLog(job, { ...retrying, follow: true }, { json }, (event) => {
      if (event.kind !== 'status' || event.status !== 'QUEUED') started.abort();
    });
  } finally {
    started.abort();
    await queue;
  }
  return job.wait(retrying);
}

/**
 * Shows what a new job waits for until it prints a line; the lines before it are shown as messages.
 * @returns false when the job has ended without it
 */
export async function waitForLine(
  job: Job,
  line: string,
  retrying: RetryOptions,
): Promise<boolean> {
  const started = new AbortController();
  const queue = showQueue(job, started.signal);
  try {
    for await (const event of job.logs({ ...retrying, follow: true })) {
      if (event.kind !== 'status' || event.status !== 'QUEUED') started.abort();
      if (event.kind !== 'line') continue;
      if (event.message === line) return true;
      note(event.message);
    }
    return false;
  } finally {
    started.abort();
    await queue;
  }
}

/** Shows what a job waits for, until the signal. Its errors are not shown: the log has the same ones. */
async function showQueue(job: Job, signal: AbortSignal): Promise<void> {
  const line = new StatusLine();
  try {
    for (;;) {
      const { status, progress } = await job.info({ signal });
      if (status !== 'QUEUED') return;
      line.show(progress);
      await sleep(QUEUE_INTERVAL_MS, signal);
    }
  } catch {
  } finally {
    line.clear();
  }
}

/** Names a job, and follows it until it ends or the user detaches. @returns the exit code, and the job if it has ended */
export async function followToEnd(
  job: Job,
  { json }: { json?: true | undefined } = {},
): Promise<{ code: number; info: JobInfo | null }> {
  // Before the first line, because a user may press Ctrl-C as soon as the command says something.
  const interrupts = new InterruptHandler('Job', job);
  note(`Job ${job.namespace}/${job.name}: ${job.url}`);
  let info: JobInfo;
  try {
    info = await watchJob(job, { json, retrying: announced({ signal: interrupts.detached }) });
  } catch (error) {
    if (!interrupts.detached.aborted) throw error;
    note(`Detached. Follow it with: loam logs -f ${job.namespace}/${job.name}`);
    return { code: EXIT.interrupted, info: null };
  } finally {
    interrupts.dispose();
  }
  if (json) printJson({ kind: 'job', ...info }, 0);
  note(describeEnd(info));
  const isCancelled = interrupts.choice === 'cancel';
  return { code: isCancelled ? EXIT.interrupted : exitCodeOfJob(info), info };
}

/** The exit code of a command that waited for a job: that of the job, and 1 for a job that ended badly without one. */
export function exitCodeOfJob({ status, exitCode }: Pick<JobInfo, 'status' | 'exitCode'>): number {
  if (status === 'SUCCEEDED') return 0;
  return exitCode || 1;
}

/** One line for people on how a job ended. */
export function describeEnd(job: JobInfo): string {
  const { status, exitCode, runtimeSeconds, namespace, name } = job;
  const how = isFinal(status) ? status.toLowerCase().replace('_', ' ') : 'goes on';
  const code = exitCode === null || status === 'SUCCEEDED' ? '' : ` with exit code ${exitCode}`;
  return `${namespace}/${name} ${how}${code} after ${duration(runtimeSeconds)}${reasonOfEnd(job)}`;
}

/** Why Loam has ended or failed a job, as `: reason`; empty if its command decided, or if there is no reason. */
export function reasonOfEnd({ status, progress }: Pick<JobInfo, 'status' | 'progress'>): string {
  if (status !== 'CANCELLED' && status !== 'FAILED') return '';
  return safeLine(/^(?:cancelled|failed)(: .*)$/.exec(progress)?.[1] ?? '');
}
