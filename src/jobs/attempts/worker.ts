/**
 * The job worker of this server: claims jobs from the queue while it has room, and supervises each attempt until it ends. A
 * worker is identified by its data folder, which holds the files of its attempts: a server that starts on the same folder is
 * the same worker and resumes the attempts of the previous process. Stopping the server leaves its jobs running.
 */

import { join } from 'node:path';
import { runLoop } from '../../platform/loop.ts';
import { listAttemptKinds, listClusters, type Machine } from '../../runners/runner.ts';
import {
  admit,
  type ClaimablePools,
  findClaimablePools,
  type HeldCapacity,
  hasImageWorker,
  type Reservations,
} from '../queue/admission.ts';
import {
  type ClaimedAttempt,
  claimJobs,
  createSkipList,
  type SkipList,
  type WaitingJob,
} from '../queue/claim.ts';
import { findLostAttempts, msUntilNextDue, writeHeartbeat } from '../queue/heartbeats.ts';
import { createPeerWorkers, type PeerWorkers } from '../queue/peer-workers.ts';
import {
  listAdvertisedMachines,
  listUsableMachines,
  WORKER_SILENCE_S,
  type WorkerCapacity,
} from '../queue/worker-capacity.ts';
import { measureVolumes } from '../volumes/measure.ts';
import { type FullVolumes, NO_FULL_VOLUMES, readFullVolumes } from '../volumes/usage.ts';
import type { Deps } from './attempt-row.ts';
import { endLostAttempt } from './finish.ts';
import { HeldAttempts } from './held-attempts.ts';
import { InputCache } from './input-cache.ts';
import { DEFAULT_PAUSES, type RetryPauses, retry } from './retry.ts';

/** Interval of heartbeats and of the search for lost attempts: other workers take this one for dead after six intervals. */
const HEARTBEAT_MS = (WORKER_SILENCE_S * 1_000) / 6;
/** When a machine has not answered for this long, its unstarted attempts are queued again. An engine upgrade takes less. */
const AWAY_MS = 60_000;
/** Longest wait for a notification of the queue. */
const QUEUE_POLL_MS = 15_000;
/** Delay before the worker tries again to claim jobs that another transaction has locked. */
const LOCKED_RETRY_MS = 500;
/** Minimum time between two queries for the next delayed job; otherwise each claim would run one. */
const DUE_QUERY_MS = 250;
/** Maximum number of queues, and of jobs in each, that a short scan reads. It suffices if every job fits. */
const SHORT_SCAN = 16;
/** A long scan takes about 3 ms. */
const LONG_SCAN = { maxQueues: 32, maxJobsPerQueue: 64 };

export type Worker = AsyncDisposable & {
  /** How many of its slots are in use. Jobs on clusters use none. */
  readonly slotsUsed: number;
  /** Cluster → its jobs, waiting or running, and whether it answers. */
  listClusterLoads(): { cluster: string; jobs: number; isUp: boolean }[];
};

type Options = { pauses: RetryPauses; awayMs: number };

/** Removes orphaned attempts, resumes the attempts of the previous process, then starts claiming jobs. */
export async function startWorker(
  deps: Omit<Deps, 'inputCache'>,
  { pauses = DEFAULT_PAUSES, awayMs = AWAY_MS }: Partial<Options> = {},
): Promise<Worker> {
  const { dataDir, inputCacheGb } = deps.config;
  const maxBytes = inputCacheGb * 2 ** 30;
  const inputCache = new InputCache(join(dataDir, 'inputs'), { ...deps, maxBytes });
  const worker = new JobWorker({ ...deps, inputCache }, { pauses, awayMs });
  await worker.start();
  return worker;
}

/** The free capacity of a worker before a claim. */
type ClaimRoom = {
  /** Set when the machines run jobs of this namespace only. */
  namespaceId: string | undefined;
  machines: readonly Machine[];
  /** The machines of other workers, and the machines of this worker that do not answer. */
  elsewhere: readonly WorkerCapacity[];
  held: readonly HeldCapacity[];
  slotsFree: number;
  /** How many jobs could start, on slots and on clusters. */
  jobsFree: number;
  /** The pools from which they could start. */
  pools: ClaimablePools;
};

/** `claims` has fewer jobs than `admitted` if another transaction has locked some. */
type ClaimRound = {
  claims: readonly ClaimedAttempt[];
  admitted: readonly WaitingJob[];
  hasPassedOverJobs: boolean;
};

class JobWorker implements Worker {
  readonly #deps: Deps;
  readonly #id: string;
  readonly #slots: number;
  readonly #kinds: readonly string[];
  readonly #pauses: RetryPauses;
  readonly #peers: PeerWorkers;
  readonly #attempts: HeldAttempts;
  readonly #stopping = new AbortController();
  /** The loops and retries that run until the server stops. */
  #background: Promise<unknown>[] = [];
  /** By the namespace of `ClaimRoom`. */
  readonly #reservations = new Map<string | undefined, Reservations>();
  /** No job in the queue waits for this worker's machines, so freed capacity needs no claim until a job arrives. */
  #isQueueEmpty = false;
  /** While a claim runs, freed capacity only sets `#hasNewRoom`. After the claim, `#isQueueEmpty` decides whether to wake. */
  #isClaiming = false;
  #hasNewRoom = false;
  #dueQueriedAt = Number.NEGATIVE_INFINITY;
  #lastMachines = '';
  #fullVolumes: FullVolumes = NO_FULL_VOLUMES;

  constructor(deps: Deps, { pauses, awayMs }: Options) {
    this.#deps = deps;
    this.#id = deps.cluster.members.id;
    this.#slots = deps.config.jobSlots;
    this.#kinds = listAttemptKinds(deps.runner);
    this.#pauses = pauses;
    this.#peers = createPeerWorkers(deps, this.#id, HEARTBEAT_MS);
    const { signal } = this.#stopping;
    const onFreed = () => this.#onCapacityFreed();
    this.#attempts = new HeldAttempts(deps, { pauses, awayMs, signal, onFreed });
  }

  get slotsUsed(): number {
    return this.#attempts.slotsUsed;
  }

  listClusterLoads(): { cluster: string; jobs: number; isUp: boolean }[] {
    const counts = this.#attempts.countClusterJobs();
    return listClusters(this.#deps.runner)
      .filter(({ slots }) => slots === undefined)
      .map(({ id, unavailableReason }) => ({
        cluster: id,
        jobs: counts.get(id) ?? 0,
        isUp: unavailableReason === undefined,
      }));
  }

  async start(): Promise<void> {
    const { bus, runner, log } = this.#deps;
    if (runner.warning) log.warn(runner.warning);
    for (const machine of this.#machines) log.info(describeMachine(machine, this.#slots));

    // The heartbeat also renews the open attempts, so that no other worker takes them for lost. The sweep removes all attempts
    // that it does not know, so they are added to `known` before it runs.
    const unfinished = await this.#readOpenAttempts();
    await this.#writeHeartbeat();
    await this.#peers.refresh();
    this.#fullVolumes = await readFullVolumes(this.#deps);
    const { known } = this.#attempts;
    for (const { attemptId } of unfinished) known.add(attemptId);
    const sweep = this.#attempts.removeWithRetries('orphaned attempts', () => runner.sweep(known));
    await sweep.tried;
    for (const attempt of unfinished) this.#attempts.add(attempt);

    const { signal } = this.#stopping;
    const retrying = { bus, log, signal, pauses: this.#pauses };
    this.#background = [
      sweep.done,
      retry('Claiming jobs', () => this.#claimWhenNotified(), retrying),
      this.#everyHeartbeat('Writing the heartbeat of this worker', () => this.#beat()),
      this.#everyHeartbeat('Measuring volumes', (stop) => measureVolumes(this.#deps, stop)),
      // A loop of its own: recovery may wait for locked jobs, and a late heartbeat would make peers take this worker for dead.
      this.#everyHeartbeat('Looking for lost attempts', () => this.#recoverLostAttempts()),
    ];
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopping.abort();
    await Promise.all(this.#background);
    await this.#attempts.settled();
  }

  /** The machines that answer now and can get jobs. */
  get #machines(): readonly Machine[] {
    return listUsableMachines(this.#deps.runner, this.#slots);
  }

  /** The machines that the worker advertises to its peers. */
  get #capacity() {
    return listAdvertisedMachines(this.#deps.runner, this.#slots);
  }

  /** The attempts that the database assigns to this worker. */
  async #readOpenAttempts(): Promise<ClaimedAttempt[]> {
    const rows = await this.#deps.db.jobAttempt.findMany({
      where: { workerId: this.#id, runner: { in: [...this.#kinds] }, endedAt: null },
      select: {
        id: true,
        jobId: true,
        machine: true,
        job: { select: { gpu: true, gpuCount: true, cpu: true, memoryGb: true } },
      },
      orderBy: { id: 'asc' },
    });
    return rows.map(({ id: attemptId, jobId, machine, job }) => ({
      attemptId,
      jobId,
      machine,
      ...job,
    }));
  }

  /** Notifies only this process, because the freed capacity is of no use to other workers. */
  #onCapacityFreed(): void {
    if (this.#isClaiming) this.#hasNewRoom = true;
    else if (!this.#isQueueEmpty) this.#deps.bus.notify('queue');
  }

  /** Claims jobs each time the queue is notified, until the server stops. */
  async #claimWhenNotified(): Promise<void> {
    const { bus } = this.#deps;
    let waitMs = QUEUE_POLL_MS;
    // The connection may have broken after a claim was committed and before the worker got the answer.
    for (const attempt of await this.#readOpenAttempts())
      if (!this.#attempts.has(attempt.attemptId)) this.#attempts.add(attempt);
    for await (const _ of bus.wakes('queue', this.#stopping.signal, () => waitMs)) {
      const isLocked = await this.#claimAll();
      const hasRoom = this.#scopes.some((scope) => this.#computeRoom(scope).jobsFree > 0);
      const dueMs = hasRoom ? await this.#msUntilDue() : null;
      waitMs = QUEUE_POLL_MS;
      if (isLocked) waitMs = LOCKED_RETRY_MS;
      // One millisecond more, so that the job is due after the wait. A wait that is too short does no harm.
      if (dueMs !== null) waitMs = Math.min(waitMs, dueMs + 1, this.#pauses.longestMs);
    }
  }

  /** @returns whether another transaction has locked a job that was next; there is no notification when it unlocks the job */
  async #claimAll(): Promise<boolean> {
    const skipList = createSkipList();
    this.#isQueueEmpty = false;
    this.#isClaiming = true;
    this.#hasNewRoom = false;
    try {
      // A job that starts writes to the disk. The queue is notified when there is enough space again.
      if (!this.#deps.space.low) {
        let isEmpty = true;
        for (const scope of this.#scopes)
          if (!(await this.#claimUntilFull(scope, skipList))) isEmpty = false;
        this.#isQueueEmpty = isEmpty;
      }
    } finally {
      this.#isClaiming = false;
    }
    if (this.#hasNewRoom) this.#onCapacityFreed();
    return skipList.jobs.size > 0;
  }

  /** The namespaces that have machines of their own here, and undefined for the machines of all namespaces. */
  get #scopes(): readonly (string | undefined)[] {
    return [...new Set([...this.#machines.map(({ namespaceId }) => namespaceId), undefined])];
  }

  /**
   * @param scope claims for the machines of this namespace; undefined: for those of all
   * @returns whether the queue holds no more jobs for these machines
   */
  async #claimUntilFull(scope: string | undefined, skipList: SkipList): Promise<boolean> {
    let hasRefreshedPeers = false;
    const hasReservations = (this.#reservations.get(scope)?.size ?? 0) > 0;
    for (let isLong = hasReservations; !this.#stopping.signal.aborted; ) {
      const room = this.#computeRoom(scope);
      if (room.pools.size === 0) return false;
      const shortScan = Math.min(room.jobsFree, SHORT_SCAN);
      const scan = isLong ? LONG_SCAN : { maxQueues: shortScan, maxJobsPerQueue: shortScan };
      const result = await this.#claimOnce(room, { ...scan, skip: skipList }, hasRefreshedPeers);
      if (result === 'peers needed') {
        await this.#peers.refresh();
        hasRefreshedPeers = true;
        continue;
      }
      const { claims, admitted, hasPassedOverJobs } = result;
      const isLocked = claims.length < admitted.length;
      if (isLocked) skipList.addUnclaimed(admitted, claims);
      const sawWholePools = !isLong && !hasPassedOverJobs && admitted.length < shortScan;
      // All jobs of these pools are claimed. The queue is empty if the pools are all that the worker could claim from
      // without any attempts. A job that arrives later wakes the worker.
      if (sawWholePools && !isLocked)
        return (
          skipList.jobs.size === 0 && hasAllPools(room.pools, this.#poolsWithoutAttempts(room))
        );
      if (claims.length > 0 || isLocked) continue;
      if (isLong || !hasPassedOverJobs) return false;
      isLong = true;
    }
    return false;
  }

  #computeRoom(namespaceId: string | undefined): ClaimRoom {
    const capacity = this.#capacity;
    const isHere = (machine: WorkerCapacity) =>
      !machine.away && machine.namespaceId === namespaceId;
    const machines = capacity.filter(isHere);
    const elsewhere = [...this.#peers.machines, ...capacity.filter((one) => !isHere(one))];
    const held = this.#attempts.capacity();
    const slots = this.#slots;
    // The slots of this worker are for its own machines, which run jobs of all namespaces.
    const slotsFree = namespaceId === undefined ? slots - this.slotsUsed : 0;
    const claimable = findClaimablePools({ machines, slots, slotsFree, held });
    return { namespaceId, machines, elsewhere, held, slotsFree, ...claimable };
  }

  #listVolumes(machines: readonly Machine[]) {
    const readable = [...new Set(machines.flatMap(({ volumes = [] }) => volumes))];
    return { readable, writable: readable.filter((name) => !this.#fullVolumes.has(name)) };
  }

  #poolsWithoutAttempts({ machines }: ClaimRoom): ClaimablePools {
    const slots = this.#slots;
    return findClaimablePools({ machines, slots, slotsFree: slots, held: [] }).pools;
  }

  /**
   * Claims the jobs of one scan that fit, and starts to supervise their attempts.
   * @returns `peers needed` if the result depends on whether any worker runs images, and the known workers may be outdated
   */
  async #claimOnce(
    { pools, ...room }: ClaimRoom,
    scan: { maxQueues: number; maxJobsPerQueue: number; skip: SkipList },
    hasRefreshedPeers: boolean,
  ): Promise<ClaimRound | 'peers needed'> {
    const { runner, metrics } = this.#deps;
    const canRunImages = hasImageWorker(room.machines, room.elsewhere);
    let needsPeers = false;
    let hasPassedOverJobs = false;
    let admitted: readonly WaitingJob[] = [];
    const claims = await claimJobs(this.#deps, {
      workerId: this.#id,
      runner: runner.name,
      namespaceId: room.namespaceId,
      pools,
      volumes: this.#listVolumes(room.machines),
      ...scan,
      reserved: this.#reservations.get(room.namespaceId)?.values() ?? [],
      decide: (queues, reserved) => {
        const input = { ...room, slots: this.#slots, queues, reserved };
        const decision = admit<WaitingJob>(input);
        // If no known worker runs images, these jobs would fail. A worker that runs images may have joined just now.
        const hasImages = decision.admitted.some(({ job }) => job.image !== null);
        needsPeers = hasImages && !hasRefreshedPeers && !canRunImages;
        if (needsPeers) return [];
        this.#reservations.set(room.namespaceId, decision.reservations);
        hasPassedOverJobs = decision.hasPassedOverJobs;
        admitted = decision.admitted.map(({ job }) => job);
        return decision.admitted;
      },
    });
    if (needsPeers) return 'peers needed';
    for (const { region, waitedSeconds, ...attempt } of claims) {
      metrics.jobClaimed({ gpu: attempt.gpu, region }, waitedSeconds);
      this.#attempts.add(attempt);
    }
    return { claims, admitted, hasPassedOverJobs };
  }

  /** Returns the milliseconds until the next delayed job is due, or until that may be queried again; null if there is none. */
  async #msUntilDue(): Promise<number | null> {
    const msTooEarly = this.#dueQueriedAt + DUE_QUERY_MS - performance.now();
    if (msTooEarly > 0) return msTooEarly;
    this.#dueQueriedAt = performance.now();
    const models = new Set(this.#machines.flatMap(({ gpus }) => ['none', ...Object.keys(gpus)]));
    return msUntilNextDue(this.#deps, [...models]);
  }

  #everyHeartbeat(name: string, work: (signal: AbortSignal) => Promise<void>): Promise<void> {
    const { log } = this.#deps;
    const { signal } = this.#stopping;
    return runLoop({ name, every: HEARTBEAT_MS, waitsFirst: true, signal, log }, work);
  }

  #writeHeartbeat(): Promise<void> {
    const { runner } = this.#deps;
    return writeHeartbeat(this.#deps, {
      id: this.#id,
      runner: runner.name,
      kinds: this.#kinds,
      machines: this.#capacity,
    });
  }

  async #beat(): Promise<void> {
    const { bus } = this.#deps;
    await this.#writeHeartbeat();
    this.#fullVolumes = await readFullVolumes(this.#deps);
    const volumes = this.#listVolumes(this.#machines).writable;
    const machines = [...this.#machines.map(({ id }) => id), ...volumes].join();
    // A machine that answers again may have room for jobs, and so may a volume.
    if (machines !== this.#lastMachines) bus.notify('queue');
    this.#lastMachines = machines;
    // Jobs that this worker left to a peer are considered again when the machines of its peers change.
    if (await this.#peers.refresh()) bus.notify('queue');
  }

  async #recoverLostAttempts(): Promise<void> {
    const { log, metrics } = this.#deps;
    for (const lost of await findLostAttempts(this.#deps, { id: this.#id, kinds: this.#kinds }))
      await endLostAttempt(this.#deps, lost).then(
        (isLost) => isLost && metrics.attemptEnded('lost'),
        // The next search finds the attempt again. The other lost attempts need not wait for it.
        (error) => log.warn({ err: error, job: lost.jobId }, 'Cannot end a lost attempt yet'),
      );
  }
}

function hasAllPools(pools: ClaimablePools, expected: ClaimablePools): boolean {
  return [...expected].every(([model, maxGpus]) =>
    Object.entries(maxGpus).every(([region, count]) => pools.get(model)?.[region] === count),
  );
}

/** Describes the resources of a machine for the log at startup. */
function describeMachine(machine: Machine, slots: number): string {
  const { id, cpus, memoryBytes, gpus, maxJobs, regions } = machine;
  const memory = `${(memoryBytes / 2 ** 30).toFixed(1)} GiB`;
  const models = Object.entries(gpus).map(([model, count]) => `, ${count} × ${model}`);
  const capacity = `${cpus} vCPUs, ${memory}${models.join('')}`;
  const where = regions ? ` It runs jobs of ${regions.join(', ')} only.` : '';
  if (maxJobs !== undefined)
    return `Cluster "${id}" runs up to ${maxJobs} jobs of this worker at once, each with up to ${capacity}.${where}`;
  return (
    `Machine "${id}" has ${capacity} for jobs.${where} ` +
    `A job that requests more than the machine has shares the whole machine with other jobs, up to ${slots} in all`
  );
}
