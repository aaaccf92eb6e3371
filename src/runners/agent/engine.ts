/**
 * The contract of cluster engines (Slurm, Kubernetes, joined machines): the part of a runner that differs between them. An engine
 * places one agent per attempt on a node and reports what it knows about it. Everything else, such as the log and the exit code,
 * comes from the agent itself (`agent.ts`, and on a joined machine `../worker/`).
 */
import type { Hardware } from '../../base/hardware.ts';
import type { ClusterState, Machine, VolumeMount } from '../runner.ts';
import type { AgentVolume } from './protocol.ts';

/** What a node needs to run the agent of an attempt. */
export type Submission = {
  /** Id of the attempt. It names everything that the engine creates for it. */
  attempt: string;
  /** The machine that the attempt is assigned to, one of the engine's machines. */
  machine: string;
  /** Unset: no other machine ever has this name. */
  machineId?: string | undefined;
  /** For people who look at the engine's own lists. */
  job: { id: string; name: string; namespace: string };
  /** The program of the agent is at `${url}/<attempt>/agent.mjs`, its requests go to paths below `url`. */
  agent: { url: string; token: string };
  /** Null: the command runs without an image of its own, where the engine supports that. */
  image: string | null;
  /** Unset: none; an earlier version has stored it. */
  mounts?: readonly VolumeMount[];
  hardware: Hardware;
  /** What the job may use: its request, or the size of the largest node. */
  cpus: number;
  memoryBytes: number;
  /** The engine's own limit must be later than this, because the agent enforces the timeout. */
  timeoutMs: number;
};

/** How the engine saw the end of an attempt. The agent's own report takes precedence. */
export type EngineEnd = {
  /** Exit code of the command; null: the engine does not know it. */
  exitCode: number | null;
  outOfMemory: boolean;
  /**
   * The engine or its machine ended the attempt, for example by preemption, eviction or a failure of the node. The attempt is
   * lost, whatever its exit code, and certainly runs no more.
   */
  isLoss: boolean;
  /** An operator has taken the attempt from its machine: the loss says nothing about the job, and does not count. */
  isMove?: true;
  /**
   * The engine ends jobs that it could not start in this way, too: if the command has not begun, the attempt is lost. Otherwise
   * the exit code says how the attempt ended.
   */
  mayBeStartFailure?: true;
  /** In the engine's words, for the log of the server and the job's user. */
  reason: string;
};

export type EngineState =
  /** `reason` completes "waiting for Kubernetes: …", translated into plain words. */
  | { kind: 'waiting'; reason: string }
  /**
   * `commandEnd`: set when the command has ended, and the agent still runs. `progress`: what the agent does before the command
   * begins, for the job's `progress`. `leaving`: an operator takes the attempt from its machine since this time. Its command
   * gets SIGTERM, and whatever its exit code, the attempt counts as moved.
   */
  | {
      kind: 'running';
      commandEnd?: EngineEnd;
      progress?: string | undefined;
      leaving?: { since: Date; reason: string } | undefined;
    }
  /** The engine can never start it, for example because the image does not exist. `reason` is a sentence for the user. */
  | { kind: 'refused'; reason: string }
  /** No process of the attempt runs any more, neither the command nor the agent. */
  | { kind: 'ended'; end: EngineEnd }
  /**
   * The engine does not know whether the attempt runs: its node is silent, or the engine has forgotten it. Then only the lease
   * of the agent tells when it has certainly ended.
   */
  | { kind: 'unknown' };

/** What jobs may use of a machine. Jobs with or without an image are refused if it cannot run them. */
export type Capacity = Pick<
  Machine,
  'cpus' | 'memoryBytes' | 'gpus' | 'withImage' | 'withoutImage' | 'volumes' | 'platform'
>;

/** What attempts may be placed on. */
export type Placement = {
  /** The machines that take attempts now. */
  readonly machines: readonly Machine[];
  /** All machines, with the reason why they take no attempts now. */
  readonly clusters: readonly ClusterState[];
  /** Undefined while it is not known what the machine has. */
  capacityOf(machine: string): Capacity | undefined;
  /** The id of the machine, where another one may have the same name later. */
  idOf?(machine: string): string | undefined;
};

/** An engine that shares its nodes among jobs itself. */
export type SharingEngine = ClusterEngine & {
  /** The largest node, and GPU model → the most GPUs of one job. */
  readonly capacity: Capacity;
};

/** The placement of an engine that shares its nodes among jobs itself, so that it counts as one machine. */
export function oneMachine(
  engine: SharingEngine,
  options: { id: string; maxJobs: number; regions?: readonly string[] | undefined },
): Placement {
  const { id, maxJobs, regions } = options;
  const where = { id, ...(regions && { regions }) };
  return {
    get machines() {
      const isAvailable = engine.unavailableReason === undefined;
      return isAvailable ? [{ ...where, ...engine.capacity, maxJobs }] : [];
    },
    get clusters() {
      return [{ ...where, unavailableReason: engine.unavailableReason }];
    },
    capacityOf: () => engine.capacity,
  };
}

export type ClusterEngine = AsyncDisposable & {
  /** For messages to users: `Kubernetes`, `Slurm`. */
  readonly title: string;
  /** Where the operator names its GPUs, for example `LOAM_SLURM_GPUS`; unset: the engine finds them itself. */
  readonly gpuSetting?: string;
  /** Why the engine takes no jobs at the moment: it does not answer, or Loam lacks a permission. */
  readonly unavailableReason?: string | undefined;
  /**
   * Lists the volumes that the agent puts into the folders of the job; the engine mounts the others. Unset: the agent has
   * the volumes of its own machine.
   * @throws Unstartable when the engine cannot have a volume there
   */
  placeVolumes?(mounts: readonly VolumeMount[], image: string | null): AgentVolume[];
  /**
   * Submits the agent of the attempt, unless it was submitted already. The machine has its GPU model, and allows its image.
   * @throws Unstartable when the engine refuses it for good, RunnerUnavailable while the engine does not answer
   */
  submit(submission: Submission): Promise<void>;
  /** The latest state. It never goes back from `ended` or `refused`. An attempt that was not submitted is `unknown`. */
  state(attempt: string): EngineState;
  /** Settles at the next change of the attempt's state, or when `signal` aborts. */
  nextChange(attempt: string, signal: AbortSignal): Promise<void>;
  /**
   * Where the attempt runs, as far as that is known, and the command with which an operator looks at it, for example
   * `scontrol show job 17`; undefined for an attempt that was not submitted.
   */
  describe(attempt: string): { node?: string | undefined; inspect: string } | undefined;
  /**
   * Ends the attempt if it runs, and removes everything that the engine has of it. Resolves when the engine has accepted that,
   * which it then does even if its node is silent at the moment.
   * @param options.hasEnded the agent is about to exit by itself, so it need not be killed at once
   * @throws RunnerUnavailable while the engine does not answer
   */
  remove(attempt: string, options?: { hasEnded?: boolean }): Promise<void>;
  /** Whether nothing that the attempt sends counts any more, because its machine was removed. */
  isRevoked?(attempt: string): boolean;
  /** The attempts of this worker that the engine has. @throws RunnerUnavailable */
  list(): Promise<string[]>;
};
