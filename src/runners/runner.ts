/**
 * The contract of runners, which run attempts of jobs as processes, as containers, or as fakes in tests. The worker decides
 * which attempts run.
 *
 * The attempt id names everything that a runner creates for an attempt. `prepare` returns a handle, and the worker stores it
 * when `start` asks whether the work may begin. A server that restarts after that finds the handle, asks `attach` for the
 * state, and continues. A runner adopts what exists under an id and never creates it twice. The end of the log is not the end
 * of the work: only `wait` tells how the work ended.
 */
import type { Readable, Writable } from 'node:stream';
import type { Hardware } from '../base/hardware.ts';
import type { TerminalSize } from '../platform/frames.ts';

/** A computer and its capacity for jobs. */
export type Machine = {
  /** `local`: the machine of this server. */
  id: string;
  cpus: number;
  memoryBytes: number;
  /** Model → number of GPUs. */
  gpus: Readonly<Record<string, number>>;
  /** Whether the machine runs jobs with an image; default: true. */
  withImage?: boolean;
  /** Whether the machine runs jobs without an image; default: true. */
  withoutImage?: boolean;
  /**
   * Set for a cluster, whose engine shares its nodes among jobs: how many jobs of this worker it may have at once, waiting or
   * running. Its capacity is that of the largest node. Unset: the worker shares the machine among jobs and limits their number.
   */
  maxJobs?: number;
  /** Set for a joined machine: how many jobs it runs at once. Unset: its jobs use the slots of the worker. */
  slots?: number;
  /** The regions whose jobs the machine runs; unset: all. */
  regions?: readonly string[];
  /** Id of the namespace whose jobs alone the machine runs; unset: all. */
  namespaceId?: string;
  /** The volumes that jobs on the machine can mount; unset: none. */
  volumes?: readonly string[];
  /** Of a joined machine, as Node.js names them; unset: those of the worker. */
  platform?: { os: string; arch: string };
};

/** Whether jobs on the machine use the slots of the worker. */
export function usesWorkerSlots({ maxJobs, slots }: Pick<Machine, 'maxJobs' | 'slots'>): boolean {
  return maxJobs === undefined && slots === undefined;
}

/** The kinds of attempts that the runner supervises. */
export function listAttemptKinds({
  name,
  kinds = [name],
}: Pick<Runner, 'name' | 'kinds'>): readonly string[] {
  return kinds;
}

/**
 * A cluster or a joined machine. `unavailableReason`: why it takes no jobs now, for example because it does not answer;
 * `machines` omits it then. The rest is as of its machine.
 */
export type ClusterState = Pick<Machine, 'id' | 'regions' | 'namespaceId' | 'slots'> & {
  unavailableReason?: string | undefined;
};

/** The clusters and joined machines of the runner, also those that do not answer now. */
export function listClusters({
  machines,
  clusters = machines.filter((machine) => !usesWorkerSlots(machine)),
}: Pick<Runner, 'machines' | 'clusters'>): readonly ClusterState[] {
  return clusters;
}

/** The id of this server's own machine. */
export const LOCAL_MACHINE = 'local';

/** A folder of this machine, and where the job finds it. `volume`: what messages call it. */
export type MountedFolder = { volume: string; from: string; to: string; readOnly: boolean };

/** A volume of `LOAM_VOLUMES` in the file system of a job. Where it is on a machine is known there. */
export type VolumeMount = {
  /** The name of the volume. */
  volume: string;
  /** An absolute path, as the job sees it. */
  to: string;
  readOnly: boolean;
  /** The subfolder that the job sees as the volume; null: it sees the whole volume. */
  folder: string | null;
};

export type AttemptSpec = {
  /** Attempt id. */
  id: string;
  /** Id of the machine that the attempt is assigned to, one of the runner's machines. */
  machine: string;
  command: string;
  image: string | null;
  /** The whole environment, except variables that the runner sets itself, such as PATH. */
  env: Record<string, string>;
  /**
   * The job sees each as the variable `NAME`, and as a file that it cannot change, whose path is in `NAME_FILE`.
   */
  files: Readonly<Record<string, string>>;
  /**
   * Creates the working directory `dir`, with checkout and inputs, which must not exist yet, and may add files to `home`, an empty
   * folder that the job gets as its home folder; null: both folders are empty. A runner that can mount folders of the machine of
   * this process passes `mount`: then inputs that the job only reads are mounted instead of copied.
   */
  checkout:
    | ((
        dir: string,
        signal: AbortSignal,
        home: string,
        mount?: (folder: MountedFolder) => void,
      ) => Promise<void>)
    | null;
  mounts: readonly VolumeMount[];
  /** For people who look at the lists of a cluster. */
  job: { id: string; name: string; namespace: string };
  hardware: Hardware;
  timeoutMs: number;
  /**
   * The command is killed when its lease was not renewed for this long (`Runner.renewLease`), by a clock that runs while the
   * machine is suspended, also while no program calls the runner. Unset: it has no lease.
   */
  leaseMs?: number | undefined;
  /** Limits of the log: bytes of text with line ends, and lines. Further output is discarded. */
  log: { bytes: number; lines: number };
  /** Receives texts for the job's `progress` field during preparation. */
  report(progress: string): void;
};

/** JSON, because it is stored. */
export type Handle = { [key: string]: string | number };
export type LogCursor = { [key: string]: string | number };

export type RunnerLine = { timestamp: Date; stream: 'stdout' | 'stderr'; message: string };
/** `cursor`: position after the last of `lines`. */
export type LogBatch = { lines: RunnerLine[]; cursor: LogCursor };

export type Outcome =
  | {
      kind: 'exited';
      /** 128 + signal number when a signal ended the work. */
      exitCode: number;
      /** The work was stopped because it exceeded `timeoutMs`. */
      timedOut: boolean;
      startedAt: Date;
      endedAt: Date;
      /** A last line for the log: why the runner or the kernel ended the work or one of its processes. */
      note?: string;
      /** The kernel killed a process for lack of memory. Then the job has failed, whatever its exit code. */
      outOfMemory?: true;
      /** Whether the work has left files in `RESULTS_DIR`; unset: unknown. */
      hasResults?: boolean | undefined;
    }
  /** The work never ran; `reason` is shown to the job's user. */
  | { kind: 'unstartable'; reason: string }
  /**
   * The work was lost together with its machine or its supervising process. `unreachable`: the machine does not answer, so
   * the log may not end. `reason`: why, for the job's user, if that is known. `isMove`: an operator has taken the work from its
   * machine, and the loss does not count.
   */
  | { kind: 'lost'; unreachable?: true; isMove?: true; reason?: string };

/** Percentages are of the GPUs and vCPUs that are allocated to the attempt. */
export type Usage = {
  /** Null if the GPUs cannot be measured. */
  gpuPercent: number | null;
  cpuPercent: number;
  memoryBytes: number;
  diskBytes: number;
};

/** Thrown by `prepare` with a reason for the job's user. Other errors are faults of the server. */
export class Unstartable extends Error {
  override name = 'Unstartable';
}

/** Thrown by `start` with a reason for the job's user: the attempt was lost before its start, and has certainly not begun. */
export class AttemptLost extends Error {
  override name = 'AttemptLost';
}

/** The machine or engine does not answer at the moment. The state of the work is unknown, so the caller retries the step. */
export class RunnerUnavailable extends Error {
  override name = 'RunnerUnavailable';
}

/** The machine or engine failed, not because of the job. This may be temporary, so the caller retries for a while. */
export class RunnerFault extends Error {
  override name = 'RunnerFault';
}

/** The files at `output_path` exceed a limit of artifacts. The message completes the sentence "They were not kept: …". */
export class ArtifactsNotKept extends Error {
  override name: string = 'ArtifactsNotKept';
}

/** The files at `output_path` were lost with their machine, so the result of the attempt is incomplete. */
export class ArtifactsLost extends ArtifactsNotKept {
  override name = 'ArtifactsLost';
}

/** Thrown by `artifacts` for a snapshot: the files are those of the last snapshot. */
export class UnchangedFiles extends Error {
  override name = 'UnchangedFiles';
}

/** `unless`: the fingerprint (`TarFingerprint`) of the last snapshot, which is not wanted again; null: any is wanted. */
export type Snapshot = { unless: string | null };

/**
 * Which files are wanted. The tar has entries for no others, but for a wanted file that is larger or cannot be read, it has one
 * without contents. An agent of an earlier version ignores this.
 */
export type WantedFiles = {
  /** Glob pattern (`base/pattern.ts`) of paths relative to the folder; unset: all. */
  pattern?: string | undefined;
  maxFileBytes: number;
};

/** `maxEntries`: default: `MAX_OUTPUT_ENTRIES`. `snapshot`: the work may run. `wanted`: unset: all files, and links and folders. */
export type ReadOptions = {
  maxEntries?: number | undefined;
  snapshot?: Snapshot | undefined;
  wanted?: WantedFiles | undefined;
};

/** A command beside that of a job. */
export type ExecSpec = {
  /** For `/bin/sh -c`; null: a shell for people. */
  command: string | null;
  /** Variables beside those of the job, which they replace. */
  env: Readonly<Record<string, string>>;
  /** The command has a terminal of this size. Null: its streams are pipes. */
  terminal: TerminalSize | null;
};

/** A running command beside that of a job. The streams end with it, once their reader has read what it has printed. */
export type ExecSession = {
  /** Ending it closes the input of the command. */
  stdin: Writable;
  stdout: Readable;
  /** Null with a terminal, which has one stream for both. */
  stderr: Readable | null;
  /** Settles when the command has ended, with 128 + signal number if a signal ended it; null: it was lost with its machine. */
  exited: Promise<number | null>;
  /** Changes the size of the terminal. The caller waits for the end before the next change. Never rejects. */
  resize(size: TerminalSize): Promise<void>;
  /** Hangs the terminal up, or ends the command and its child processes. */
  close(): void;
};

/** Thrown by `exec`: no command can run beside that of the job. The message is a sentence for the user. */
export class NotExecutable extends Error {
  override name = 'NotExecutable';
}

/**
 * The most files, links, folders and other entries that are kept as artifacts. Storing that many takes a minute or two, and
 * each listing takes 50 ms and 15 MB of the server. A job may create forty times as many.
 */
export const MAX_OUTPUT_ENTRIES = 100_000;

export function tooManyEntriesError(max: number): ArtifactsNotKept {
  return new ArtifactsNotKept(`there are more than ${max} files, links and folders`);
}

/**
 * Decides whether the work may begin, and records that it does.
 * @param handle replaces the handle of `prepare`: a runner of a cluster adds where the attempt runs
 */
export type MayBegin = (handle?: Handle) => Promise<boolean>;

export type StartOptions = {
  /** Receives texts for the job's `progress` field while the work waits for its start. */
  report?(progress: string): void;
  /** Aborts the wait. */
  signal?: AbortSignal;
};

export type Runner = {
  name: string;
  /**
   * The kinds of attempts that the runner supervises; default: only its name. A claimed attempt has the runner's name, a
   * prepared attempt the kind in its handle (`runner`).
   */
  kinds?: readonly string[];
  /**
   * The machines that can run attempts now. A machine is omitted while it does not answer. The capacity of a machine does not
   * change while the runner exists.
   */
  readonly machines: readonly Machine[];
  /**
   * All clusters and joined machines, also those that `machines` omits now: their attempts use no slots of the worker. Default:
   * the machines with `maxJobs` or `slots`.
   */
  readonly clusters?: readonly ClusterState[];
  /** Whether an expected container engine does not answer. Then attempts may run on more machines than `machines` lists. */
  readonly hasUnavailableEngine?: boolean;
  /** A startup warning for the operator, for example that jobs run unconfined. */
  warning?: string;
  /**
   * Creates the environment that the attempt will run in. After a crash in the middle, a repeated call starts again.
   * @throws Unstartable
   */
  prepare(spec: AttemptSpec, signal: AbortSignal): Promise<Handle>;
  /**
   * Starts the work unless it has started already. A cluster may let it wait for hours.
   * @param mayBegin called immediately before the start, unless the work has started; default: the work may begin
   * @returns false when the work has not started and will not start: `mayBegin` returned false, the signal aborted, or the
   *   attempt was lost before its start
   * @throws Unstartable, AttemptLost
   */
  start(handle: Handle, mayBegin?: MayBegin, options?: StartOptions): Promise<boolean>;
  /**
   * The state of an attempt: prepared but not started, started (and perhaps ended), or gone. `unprepared`: its preparation is
   * lost or unusable and the work has certainly not started, so it must be prepared again.
   */
  attach(handle: Handle): Promise<'prepared' | 'started' | 'unprepared' | 'gone'>;
  /** Streams the lines after `cursor`; ends after the last line of ended work, or when `signal` aborts. */
  logs(handle: Handle, cursor: LogCursor | null, signal: AbortSignal): AsyncIterable<LogBatch>;
  /**
   * Renews the lease of an attempt that has one (`AttemptSpec.leaseMs`).
   * @param renewedAt seconds as of `os.uptime()`
   */
  renewLease?(handle: Handle, renewedAt: number): void;
  /** Sends the signal to the whole process tree. After TERM, the runner itself sends KILL when the grace period has passed. */
  signal(handle: Handle, signal: 'TERM' | 'KILL'): Promise<void>;
  /**
   * Replaces the content of files that the attempt was prepared with. The variables keep the old content, unless the work has
   * not begun: on a cluster it then begins with the new one. Nothing happens when the work has ended.
   */
  replaceFiles(handle: Handle, files: AttemptSpec['files']): Promise<void>;
  /**
   * Runs a command beside that of the started job: with its files, environment, account and limits, in which what it starts
   * counts. All of it ends with the job; the command also ends with this server.
   * @throws NotExecutable
   */
  exec?(handle: Handle, spec: ExecSpec): Promise<ExecSession>;
  /**
   * Rejects when `signal` aborts.
   * @param onInterrupted called when a cluster ends the attempt and its command has ended: its files can be read until it settles,
   *   or the cluster ends their machine. It may be called again after a restart of this server.
   */
  wait(
    handle: Handle,
    signal: AbortSignal,
    onInterrupted?: () => Promise<unknown>,
  ): Promise<Outcome>;
  /** Null when the usage cannot be measured, for example because the work does not run. */
  stats(handle: Handle): Promise<Usage | null>;
  /**
   * Called after the end. Returns a tar of the directory or file at `path`, with names relative to it; null when `path` does
   * not exist. The stream may fail with ArtifactsNotKept.
   * @param options.snapshot may also be called while the work runs, but not twice at a time: the stream fails when a file changes
   *   or disappears while it is read
   * @throws ArtifactsLost; UnchangedFiles, which a runner need not throw
   */
  artifacts(handle: Handle, path: string, options?: ReadOptions): Promise<Readable | null>;
  /**
   * Ends the attempt, releases its allocation, and frees its id; files are removed in the background. Rejects when the work
   * does not end: then the allocation remains, and the caller must retry.
   */
  remove(handle: Handle): Promise<void>;
  /** Removes all attempts except `keep`, like `remove`. Tries all attempts before it rejects. */
  sweep(keep: ReadonlySet<string>): Promise<void>;
};

/** The working directory of a job's command, as the job sees it. */
export const WORKING_DIR = '/work';

/** Name in the folder of an attempt → path at which the job sees the folder. */
export const MOUNTS = { work: WORKING_DIR, tmp: '/tmp', home: '/home/job' } as const;

/** The folder of the files in which a job leaves results (`RESULT_FILES`), in its folder for temporary files. */
export const RESULTS_FOLDER = '.loam-results';

/** The same as the job sees it. Runners create it, empty. */
export const RESULTS_DIR = `${MOUNTS.tmp}/${RESULTS_FOLDER}`;

/** The variable with the path of a result file → the name of the file. */
export const RESULT_FILES = { JOB_SUMMARY: 'summary.md', JOB_OUTPUTS: 'outputs' } as const;

/** The variables of the result files. @param tmp the folder for temporary files, as the job sees it */
export function resultVariables(tmp: string): Record<string, string> {
  const files = Object.entries(RESULT_FILES);
  return Object.fromEntries(
    files.map(([name, file]) => [name, `${tmp}/${RESULTS_FOLDER}/${file}`]),
  );
}

/** The folder of the files that the runner provides (`AttemptSpec.files`), as the job sees it. */
export const FILES_DIR = '/run/loam';

/** The values of LOAM_JOB_NETWORK. */
export type NetworkMode = 'internet' | 'none' | 'host';

/** Time between SIGTERM and SIGKILL. */
export const GRACE_MS = 30_000;

/** Maximum bytes of a line. The rest of the line is discarded. */
export const MAX_LINE_BYTES = 64 * 1024;

/** The end of a line of which the rest was discarded. */
export const CUT_MARK = ' [cut: the line is over 64 KiB]';

/** The stored text of a line, without a carriage return at its end. */
export function toMessage(text: string, isCut: boolean): string {
  const message = text.replace(/\r$/, '');
  // The cut may have split a multi-byte character, which then ends with a replacement character.
  return isCut ? message.replace(/\uFFFD$/, '') + CUT_MARK : message;
}

/**
 * The begin of the line by which a held job says that its command has failed (`../jobs/record/failure-hold.ts`). A log that has
 * reached its limits still takes the first such line.
 */
export const HOLD_MARK = '::loam-held::';

/** The last line of a log whose next line would exceed its limits. */
export function logFullMessage({ bytes, lines }: AttemptSpec['log']): string {
  return `The log ends here: it may hold ${bytes} bytes and ${lines} lines. What the job prints from here on is not kept.`;
}
