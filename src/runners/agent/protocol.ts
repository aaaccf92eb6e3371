/**
 * The requests of an agent to the worker that owns its attempt, through any server: a server forwards those of other workers.
 * All are idempotent, so the agent repeats each until it has an answer. Paths are below `/agents/<attempt id>`:
 *
 *   GET  agent.mjs → the program of the agent
 *   POST claim     {@link AgentClaim} → {@link AgentSpec}. The first agent gets the attempt, any other 409
 *   GET  checkout  ?folder=home → tar of the home folder; without `folder`: of the working directory. 204 if it is empty
 *   POST begin     {@link AgentBegin} → {@link AgentPermission} when the command may begin; 503 while no worker supervises the attempt
 *   PUT  log       ?offset=N, whole frames of the log → {@link LogPosition}
 *   POST report    {@link AgentReport} → {@link LogPosition}
 *   GET  control   ?seen=V&can=exec → {@link AgentControl}; answered at the next change, or after 20 seconds. `can`: from agents
 *                  that open sessions for commands beside that of the job
 *   PUT  output    ?request=R, a tar; POST output?request=R {@link OutputFailure}: there is none
 *   GET  exec      ?session=S, upgraded to {@link EXEC_PROTOCOL}: the streams of a command that runs, as frames
 *                  (`../exec-stream.ts`); POST exec?session=S {@link ExecRefusal}: it does not run
 *
 * `Authorization: Bearer <token of the attempt>`. After the claim, the header `Loam-Agent` has the nonce of the claim, which
 * refuses a second agent that has the same token, for example on a node that was silent and returned. 410: the attempt is over;
 * the agent then kills the job. 503: the agent tries again, for example while the worker restarts.
 */
import type { Hardware } from '../../base/hardware.ts';
import type { ExecSpec, MountedFolder, ReadOptions, VolumeMount } from '../runner.ts';
import type { AttemptExit, AttemptStart, WorkSpec } from '../supervisor/supervise.ts';

export const AGENTS_PATH = '/agents';
/** Name of the agent's program below `AGENTS_PATH`. */
export const AGENT_PROGRAM = 'agent.mjs';
export const NONCE_HEADER = 'loam-agent';

/** How long an agent that has not claimed its attempt looks for a server. Afterwards the lease of the attempt counts. */
export const LEASE_MS = 3_600_000;
/** Exit code of an agent that no server answered, or that was refused (EX_TEMPFAIL). Nothing runs any more. */
export const NO_SERVER_EXIT = 75;
/** The agent needs this version of Node.js, or a later one. */
export const MIN_NODE_MAJOR = 22;
/** Exit code of a bootstrap program on an earlier Node.js (EX_UNAVAILABLE). */
export const NODE_VERSION_EXIT = 69;
/** An unanswered `control` request is answered after this time. It also tells both sides that the other one lives. */
export const CONTROL_MS = 20_000;
/** The most that a request sends of the log. */
export const LOG_REQUEST_BYTES = 2 ** 20;

/** Of the connection for a command beside that of the job. */
export const EXEC_PROTOCOL = 'loam-exec';
/** How often something is sent on such a connection. */
export const EXEC_KEEPALIVE_MS = 30_000;

/** The most characters of the reasons that an agent sends. */
export const MAX_REASON_LENGTH = 1_000;

/** `nonce`: random, chosen by the agent. `node`: the name of the machine, for people. */
export type AgentClaim = { nonce: string; node: string };

export type AgentSpec = {
  work: Omit<WorkSpec, 'memory' | 'disk'> & {
    memoryBytes: number;
    diskBytes: number;
    files: number;
  };
  command: string;
  /** The whole environment of the job, with its secrets. */
  env: Record<string, string>;
  image: string | null;
  job: { id: string; name: string; namespace: string };
  hardware: Hardware;
  /** Provided to the job, see `AttemptSpec` of the runner. Unset: an earlier version of the worker has prepared the attempt. */
  files?: Record<string, string>;
  /** The home folder is not empty at the start. An earlier version of the worker sends the working directory only. */
  hasHome?: true;
  /** See `AttemptSpec` of the runner; used where Loam places the attempt itself. Unset: none. */
  mounts?: readonly VolumeMount[];
  /** Used where the engine places the attempt. Unset: none. */
  volumes?: readonly AgentVolume[];
  /** The agent kills the job when it has reached no server for this long, by a clock that runs while the node is suspended. */
  leaseMs: number;
};

/**
 * A volume that the agent puts into the folders of the job. `from`: the folder on the node, or in the container of the job.
 * `folder`: the subfolder of it that the job sees; null: it sees all.
 */
export type AgentVolume = MountedFolder & { folder: string | null };

/** `gpus`: indices of the GPUs that the attempt has, where the agent itself has chosen them. */
export type AgentBegin = { gpus?: number[] };

/** `files`: those of the spec, as they are now; unset: they have not changed. */
export type AgentPermission = { files?: Record<string, string> };

/** `size`: bytes of the log that the worker has. The agent continues there. */
export type LogPosition = { size: number };

/**
 * `cpuSeconds`: CPU time of all processes since the start. `cpuPercent`: of the vCPUs of the job, from an agent that measures it
 * itself. `at`: epoch milliseconds.
 */
export type AgentUsage = ({ cpuSeconds: number } | { cpuPercent: number }) & {
  at: number;
  memoryBytes: number;
  /** Null if it cannot be measured, as in a pod. */
  gpuPercent: number | null;
  diskBytes: number;
};

/**
 * `isInterrupted`: the engine ended the agent before the command had ended, so the exit code may not be that of the command. The
 * agent then exits soon, also without being dismissed.
 */
export type AgentExit = AttemptExit & { isInterrupted?: true };

/**
 * `exit` is sent last, with the size of the whole log. The worker stores it only when it has the log, and otherwise answers with
 * the smaller size that it has, for example after a loss of power.
 */
export type AgentReport = {
  started?: AttemptStart;
  usage?: AgentUsage;
  exit?: AgentExit & { logBytes: number };
};

/** `version`: sent back as `seen`. */
export type AgentControl = {
  version: string;
  signal?: 'TERM' | 'KILL';
  /** The provided files have this content now. */
  files?: Record<string, string>;
  /** The worker wants a tar of this path, as the job sees it. With `snapshot`, also while the command runs. */
  output?: { request: string; path: string } & ReadOptions;
  /** The worker waits until the agent has started these commands beside that of the job. */
  execs?: WantedExec[];
  /** The engine reports the end of the command, so the agent need not wait for the command's own report. */
  isCommandOver?: true;
  /** The worker has everything: the agent exits. */
  isDismissed?: true;
};

/**
 * `reason`: null if nothing exists at the path. Otherwise it completes the sentence "They were not kept: …". `isUnchanged`: the
 * files are those of the last snapshot.
 */
export type OutputFailure = { reason: string | null; isUnchanged?: true | undefined };

/** `session`: the unguessable id of its connection, which is taken once. */
export type WantedExec = { session: string; spec: ExecSpec };

/** `reason`: a sentence for the user. */
export type ExecRefusal = { reason: string };
