/** The types of jobs, their logs and their filters. The queries in `jobs.ts` are checked against them. */
import type { OptionNames } from './options.ts';

export type JobStatus = 'QUEUED' | 'RUNNING' | 'SUCCEEDED' | 'FAILED' | 'TIMED_OUT' | 'CANCELLED';
/** Those of the API contract; a server may have other names, such as `RTX-4090`. */
export type Gpu =
  | 'NONE'
  | 'T4'
  | 'L4'
  | 'A100_40GB'
  | 'A100_80GB'
  | 'H100_80GB'
  | (string & Record<never, never>);
export type Region =
  | 'US_EAST_1'
  | 'US_WEST_2'
  | 'EU_WEST_1'
  | 'EU_CENTRAL_1'
  | 'AP_NORTHEAST_1'
  | (string & Record<never, never>);

/** A metric that a job prints. Values may be NaN or infinite. */
export type JobMetric = {
  name: string;
  /** The number of points, of all attempts. */
  points: number;
  /** Null if all values are NaN. */
  min: number | null;
  max: number | null;
  /** The value that was printed last, its step and its time. */
  last: number;
  lastStep: number;
  lastAt: string;
};

/** A job as it was when it was read. Times are ISO 8601, in UTC; null means: not yet, or not given. */
export type JobInfo = {
  id: string;
  namespace: string;
  name: string;
  status: JobStatus;
  /** What it does; of a waiting job, what it waits for, its position in the queue, and an estimate. */
  progress: string;
  command: string;
  /** `namespace/name`. */
  repo: string | null;
  branch: string | null;
  commitSha: string | null;
  snapshot: string | null;
  image: string | null;
  gpu: Gpu;
  gpuCount: number;
  cpu: number;
  memoryGb: number;
  diskGb: number;
  region: Region;
  timeoutMinutes: number;
  maxCost: string | null;
  idleTimeoutMinutes: number | null;
  holdOnFailureMinutes: number;
  /** `NONE`: nobody can open a shell in the job. */
  shellAccess: 'ALLOWED' | 'NONE';
  /** The sandbox of a failed job that stays until `until`; null if it was not held. */
  hold: {
    isActive: boolean;
    exitCode: number;
    since: string;
    until: string;
    seconds: number;
  } | null;
  retries: number;
  retryCount: number;
  outputPath: string | null;
  /** Artifacts of other jobs in the working directory; an empty path is the root. */
  inputs: readonly { jobName: string; path: string; to: string }[];
  /** Files of repositories in the working directory. */
  repositoryInputs: readonly {
    repo: string;
    ref: string;
    commitSha: string;
    path: string;
    to: string;
    readOnly: boolean;
  }[];
  /** Volumes of the server that it mounts. */
  volumes: readonly { name: string; to: string; readOnly: boolean }[];
  /** Caches that it names, and what its last attempt restored (`restoredKey`) and saved. */
  caches: readonly {
    path: string;
    key: string;
    restoreKeys: readonly string[];
    resolvedKey: string | null;
    restoredKey: string | null;
    restoredBytes: number | null;
    isSaved: boolean;
    problem: string | null;
  }[];
  /** What its metrics must meet for it to succeed, and the results; `passed` is null until its command has succeeded. */
  checks: readonly {
    metric: string;
    min: number | null;
    max: number | null;
    regressPercent: number | null;
    better: 'HIGHER' | 'LOWER' | null;
    baselineJob: string | null;
    passed: boolean | null;
    message: string | null;
  }[];
  /** What it wrote to the file `$JOB_OUTPUTS`: variables of the jobs that need it. */
  outputs: readonly { name: string; value: string }[];
  /** The folder whose content the next attempt gets. */
  checkpointPath: string | null;
  /** How often it is stored while the job runs. */
  checkpointMinutes: number | null;
  /** What the next attempt gets; null if there is none. */
  checkpoint: { createdAt: string; sizeBytes: number; files: number; attempt: number } | null;
  /** The paths and patterns of the JUnit files of its tests. */
  testReports: string[];
  /** Whether the job has written a summary (`Job.summary`). */
  hasSummary: boolean;
  /** The tests of its last attempt with reports; null if there are none. */
  testReport: { total: number; passed: number; failed: number; skipped: number } | null;
  /** Of the last process, or 128 + the number of the signal that ended it. */
  exitCode: number | null;
  /** As text: a number would lose cents. */
  costPerHour: string;
  totalCost: string;
  runtimeSeconds: number;
  createdAt: string;
  startedAt: string | null;
  completedAt: string | null;
  createdBy: { username: string } | null;
  labels: readonly { key: string; value: string }[];
  /** The values of its combination of a matrix; empty for other jobs. */
  matrixValues: readonly { key: string; value: string }[];
  environmentNames: readonly string[];
  secretNames: readonly string[];
  /** What the job may do in Loam while it runs; null: nothing. */
  permissions: { repo: 'READ' | 'WRITE' | null; jobs: 'READ' | 'WRITE' | null } | null;
  idTokens: readonly { variable: string; audience: string }[];
  /** Of the secrets and variables of the repository or its namespace that the job gets. */
  storedSecretNames: readonly string[];
  storedVariableNames: readonly string[];
  rerunOf: { name: string } | null;
  /** Null until they are stored. `sizeBytes` is that of the archive. */
  artifacts: { fileCount: number; sizeBytes: number; path: string } | null;
};

/** Jobs match all given filters. Times are ISO 8601. */
export type JobFilter = {
  statuses?: JobStatus[];
  gpus?: Gpu[];
  /** Each by key, with one of several values or any value. */
  labels?: { key: string; values?: string[] }[];
  namePrefix?: string;
  /** A user name. */
  creator?: string;
  /** `namespace/name`. */
  repository?: string;
  image?: string;
  /** The id of an array, or of a matrix of a run. */
  array?: string;
  createdFrom?: string;
  createdTo?: string;
  completedFrom?: string;
  completedTo?: string;
};

export const JOB_FILTERS: OptionNames<JobFilter> = {
  statuses: true,
  gpus: true,
  labels: true,
  namePrefix: true,
  creator: true,
  repository: true,
  image: true,
  array: true,
  createdFrom: true,
  createdTo: true,
  completedFrom: true,
  completedTo: true,
};

export type LogLine = { kind: 'line'; seq: number; timestamp: string; message: string };
export type StatusChange = { kind: 'status'; seq: number; timestamp: string; status: JobStatus };
export type LogEnd = { kind: 'end'; seq: number; status: JobStatus; exitCode: number | null };
export type LogEvent = LogLine | StatusChange | LogEnd;

/** Whether the job has reached a final status. */
export function isFinal(status: JobStatus): boolean {
  return status !== 'QUEUED' && status !== 'RUNNING';
}
