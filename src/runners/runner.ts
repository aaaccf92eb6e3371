/**
 * What runs attempts of jobs: processes, containers, a fake in tests. The worker decides what
 * is to run, a runner runs it.
 *
 * One attempt id names everything that a runner makes for it. `prepare` gives a handle, and the worker stores it when `start`
 * asks whether the work may begin: a server that dies after that finds the handle, asks `attach` how far things
 * got, and goes on. What exists already under an id is adopted, never made twice. The end of the log is not
 * the end of the work: `wait` alone says how it ended.
 */
import type { Readable } from 'node:stream';
import type { Hardware } from '../base/hardware.ts';

/** A computer, and what it has for jobs. */
export type Machine = {
  /** `local`: the one that this server runs on. */
  id: string;
  cpus: number;
  memoryBytes: number;
  /** Model → how many. */
  gpus: Readonly<Record<string, number>>;
  /** Whether it runs jobs that name an image; unset: it does. */
  withImage?: boolean;
  /** Whether it runs jobs that name none; unset: it does. */
  withoutImage?: boolean;
};

/** Of the attempts that it looks after. */
export function kindsOf({
  name,
  kinds = [name],
}: Pick<Runner, 'name' | 'kinds'>): readonly string[] {
  return kinds;
}

/** The id of the computer that this server runs on. */
export const LOCAL = 'local';

export type AttemptSpec = {
  /** Of the attempt. */
  id: string;
  /** Id of the one of the runner's machines that it was given a place on. */
  machine: string;
  command: string;
  image: string | null;
  /** The whole environment but what the runner itself must set, such as PATH. */
  env: Record<string, string>;
  /** Makes the working directory, which must not exist yet; null: it is empty. */
  checkout: ((dir: string, signal: AbortSignal) => Promise<void>) | null;
  hardware: Hardware;
  timeoutMs: number;
  /** What it may print: bytes of text with line ends, and lines. What comes after is not kept. */
  log: { bytes: number; lines: number };
  /** Hears what the job's `progress` is to say while it is prepared, now and then. */
  report(progress: string): void;
};

/** JSON, so that it can be stored. */
export type Handle = { [key: string]: string | number };
export type LogCursor = { [key: string]: string | number };

export type RunnerLine = { timestamp: Date; stream: 'stdout' | 'stderr'; message: string };
/** `cursor` resumes after the last of the lines. */
export type LogBatch = { lines: RunnerLine[]; cursor: LogCursor };

export type Outcome =
  | {
      kind: 'exited';
      /** 128 + the signal's number when one ended it. */
      exitCode: number;
      /** It overran `timeoutMs`, which is why it was stopped. */
      timedOut: boolean;
      startedAt: Date;
      endedAt: Date;
      /** Why the runner or the kernel ended it, or a part of it: a last line for the log. */
      note?: string;
      /** The kernel killed a process of it for want of memory. It has failed then, whatever its command says. */
      outOfMemory?: true;
    }
  /** It never ran; `reason` is for the one who asked for it. */
  | { kind: 'unstartable'; reason: string }
  /**
   * It was lost with what it ran on: the machine, or the process that supervised it. `unreachable`: that does not answer, and
   * so its log may not end.
   */
  | { kind: 'lost'; unreachable?: true };

/** Percent of the GPUs and vCPUs given, and bytes. */
export type Usage = {
  gpuPercent: number;
  cpuPercent: number;
  memoryBytes: number;
  diskBytes: number;
};

/** `prepare` throws it for a reason that the job's user must see; other errors are faults of the server. */
export class Unstartable extends Error {
  override name = 'Unstartable';
}

/** What the work runs on does not answer at the moment. It says nothing about the work: the step is to be repeated. */
export class RunnerAway extends Error {
  override name = 'RunnerAway';
}

/** What the work runs on failed at something by itself. It may pass, so the step is repeated for a while. */
export class RunnerFault extends Error {
  override name = 'RunnerFault';
}

/** There is more at `output_path` than is kept of it; the message ends the sentence "They were not kept: …". */
export class TooLarge extends Error {
  override name = 'TooLarge';
}

/**
 * Files, links, folders and the like. So many files take a minute or two to store, and whoever lists them takes
 * 50 ms and 15 MB of the server each time; a job may make forty times as many.
 */
export const MAX_OUTPUT_ENTRIES = 100_000;

export function tooManyEntries(max: number): TooLarge {
  return new TooLarge(`there are more than ${max} files, links and folders`);
}

export type Runner = {
  name: string;
  /**
   * Of the attempts that it looks after; unset: its name alone. The name stands in an attempt that is claimed, the kind
   * that its handle names (`runner`) in one that is prepared.
   */
  kinds?: readonly string[];
  /**
   * Those that it runs attempts on at this moment: one that does not answer is left out, and is there again when it
   * does. What a machine has stays the same while the runner lives.
   */
  readonly machines: readonly Machine[];
  /** Whether a container engine of it does not answer and is expected back: until then it runs more than `machines` says. */
  readonly engineAway?: boolean;
  /** For the operator, at the start: that jobs run unconfined. */
  warning?: string;
  /**
   * Makes the place that the attempt will run in. Called again after a crash in the middle, it begins anew.
   * @throws Unstartable
   */
  prepare(spec: AttemptSpec, signal: AbortSignal): Promise<Handle>;
  /**
   * Starts the work, or finds it started.
   * @param mayBegin is asked when nothing but the beginning is left, unless the work has begun; left out: it may
   * @returns false where it may not: then nothing of it has begun, nor will
   */
  start(handle: Handle, mayBegin?: () => Promise<boolean>): Promise<boolean>;
  /**
   * How far it got: prepared and not started, started (perhaps over by now), or not there any more. `unprepared`: what was
   * prepared is not there any more, or useless, and surely nothing of the work has begun; it is to be prepared anew.
   */
  attach(handle: Handle): Promise<'prepared' | 'started' | 'unprepared' | 'gone'>;
  /** The lines after `cursor`, live; ends after the last line of ended work, or when `signal` aborts. */
  logs(handle: Handle, cursor: LogCursor | null, signal: AbortSignal): AsyncIterable<LogBatch>;
  /** TERM goes to the whole process tree, and the runner itself sends KILL after the grace period. */
  signal(handle: Handle, signal: 'TERM' | 'KILL'): Promise<void>;
  /** Rejects when `signal` aborts. */
  wait(handle: Handle, signal: AbortSignal): Promise<Outcome>;
  /** Null when there is nothing to measure. */
  stats(handle: Handle): Promise<Usage | null>;
  /**
   * After the end: a tar of the directory or file at `path`, names relative to it; null: nothing is there. It may
   * fail with TooLarge.
   */
  artifacts(handle: Handle, path: string): Promise<Readable | null>;
  /**
   * Ends it, gives back what it holds, and makes its id free; files are removed in the background. Rejects when the work
   * does not end: then it still holds what it held, and it is to be called again.
   */
  remove(handle: Handle): Promise<void>;
  /** Ends and removes, in the same way, all attempts but these. Rejects after all were tried. */
  sweep(keep: ReadonlySet<string>): Promise<void>;
};

/** Where the command of a job starts, as the job sees it. */
export const WORKING_DIR = '/work';

/** By their names in the folder of an attempt: where a job sees its folders. */
export const MOUNTS = { work: WORKING_DIR, tmp: '/tmp', home: '/home/job' } as const;

/** What a job reaches, as LOAM_JOB_NETWORK has it. */
export type NetworkMode = 'internet' | 'none' | 'host';

/** Spec section 4.3: between SIGTERM and SIGKILL. */
export const GRACE_MS = 30_000;

/** Bytes of a line; what is beyond is cut off (decisions, section 4). */
export const MAX_LINE = 64 * 1024;

/** What is kept of a line, without a carriage return at its end. */
export function messageOf(text: string, isCut: boolean): string {
  const message = text.replace(/\r$/, '');
  // The cut may have gone through a character.
  return isCut ? `${message.replace(/\uFFFD$/, '')} [cut: the line is over 64 KiB]` : message;
}

/** The last line of a log that has no room for the next one. */
export function logFull({ bytes, lines }: AttemptSpec['log']): string {
  return `The log ends here: it may hold ${bytes} bytes and ${lines} lines. What the job prints from here on is not kept.`;
}
