/**
 * The job worker of this server: claims jobs from the queue while it has room, and supervises each attempt until it ends. A
 * worker is identified by its data folder, which holds the files of its attempts: a server that starts on the same folder is
 * the same worker and resumes the attempts of the previous process. Stopping the server leaves its jobs running.
 */

import { setTimeout as delay } from 'node:timers/promises';
import { kindsOf, type Machine } from '../../runners/runner.ts';
import { capacityOf, runsImages } from '../worker-capacity.ts';
import { admit, findClaimablePools, type Reservations } from './admission.ts';
import type { Deps } from './attempt-row.ts';
import { type Claim, claimJobs, createSkipList, type SkipList, type WaitingJob } from './claim.ts';
import { loseAttempt } from './finish.ts';
import { HeldAttempts } from './held-attempts.ts';
import { openPeerWorkers, type PeerWorkers } from './peer-workers.ts';
import { findLostAttempts, msUntilNextDue, writeHeartbeat } from './queue.ts';
import { PAUSES, type Pauses, retry } from './retry.ts';

/** One sixth of the silence after which other workers take this one for dead. */
const HEARTBEAT_MS = 10_000;
/** After this silence of a machine, its unstarted attempts are queued again. An upgrade of a container engine takes less. */
const AWAY_MS = 60_000;
/** Delay before the worker looks again at jobs that another transaction has locked. */
const LOCKED_RETRY_MS = 500;
/** Minimum time between two queries for the next delayed job; otherwise each claim would make one. */
const DUE_QUERY_MS = 250;
/** How much of the queue one claim reads: a short scan suffices if every job fits; the long one takes about 3 ms. */
const SHORT_SCAN = 16;
const LONG_SCAN = { lines: 32, depth: 64 };

export type Worker = AsyncDisposable & {
  /** How many of its slots are in use. */
  readonly used: number;
};

type Options = { pauses: Pauses; awayMs: number };

/** Removes orphaned attempts, resumes the attempts of the previous process, then starts claiming jobs. */
export async function startWorker(
  deps: Deps,
  { pauses = PAUSES, awayMs = AWAY_MS }: Partial<Options> = {},
): Promise<Worker> {
  const worker = new JobWorker(deps, { pauses, awayMs });
  await worker.start();
  return worker;
}

class JobWorker implements Worker {
  readonly #deps: Deps;
  readonly #id: string;
  readonly #slots: number;
  readonly #kinds: readonly string[];
  readonly #pauses: Pauses;
  readonly #peers: PeerWorkers;
  readonly #attempts: HeldAttempts;
  readonly #stopping = new AbortController();
  /** Everything that runs until the server stops. */
  #background: Promise<unknown>[] = [];
  #reservations: Reservations = new Map();
  /** Nothing in the queue waits for this worker's machines, so freed capacity needs no claim until a job arrives. */
  #isDrained = false;
  /** During a claim, freed capacity only sets `#hasNewRoom`, because the result of the claim overwrites `#isDrained`. */
  #isClaiming = false;
  #hasNewRoom = false;
  #dueQueriedAt = Number.NEGATIVE_INFINITY;
  #lastMachines = '';

  constructor(deps: Deps, { pauses, awayMs }: Options) {
    this.#deps = deps;
    this.#id = deps.cluster.members.id;
    this.#slots = deps.config.jobSlots;
    this.#kinds = kindsOf(deps.runner);
    this.#pauses = pauses;
    this.#peers = openPeerWorkers(deps, this.#id, HEARTBEAT_MS);
    const { signal } = this.#stopping;
    const onFreed = () => this.#onCapacityFreed();
    this.#attempts = new HeldAttempts(deps, { pauses, awayMs, signal, onFreed });
  }

  get used(): number {
    return this.#attempts.slotsUsed;
  }

  async start(): Promise<void> {
    const { bus, runner, log } = this.#deps;
    if (runner.warning) log.warn(runner.warning);
    for (const machine of this.#machines) log.info(describeMachine(machine, this.#slots));

    const unfinished = await this.#readOpenAttempts();
    await this.#writeHeartbeat();
    await this.#peers.refresh();
    const { known } = this.#attempts;
    for (const { attemptId } of unfinished) known.add(attemptId);
    const sweep = this.#attempts.removeWithRetries('orphaned attempts', () => runner.sweep(known));
    await sweep.tried;
    for (const attempt of unfinished) this.#attempts.add(attempt);

    const { signal } = this.#stopping;
    const retrying = { bus, log, signal, pauses: this.#pauses };
    this.#background = [
      sweep.done,
      retry('Claiming jobs', () => this.#claimOnWakes(), retrying),
      this.#repeat('Cannot write the heartbeat of this worker', () => this.#beat()),
      // Apart from the heartbeat, because recovery may wait for locked jobs while peers take a silent worker for dead.
      this.#repeat('Cannot look for lost attempts', () => this.#recoverLostAttempts()),
    ];
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopping.abort();
    await Promise.all(this.#background);
    await this.#attempts.settled();
  }

  /** Machines that answer now. A worker without slots has none. */
  get #machines(): readonly Machine[] {
    return this.#slots > 0 ? this.#deps.runner.machines : [];
  }

  /** What the worker advertises to its peers. Machines without slots are not advertised. */
  get #capacity() {
    return this.#slots > 0 ? capacityOf(this.#deps.runner) : [];
  }

  /** The attempts that the database assigns to this worker. */
  async #readOpenAttempts(): Promise<Claim[]> {
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

  /** Only the queue of this worker is woken: its capacity is of no use to other workers. */
  #onCapacityFreed(): void {
    if (this.#isClaiming) this.#hasNewRoom = true;
    else if (!this.#isDrained) this.#deps.bus.notify('queue');
  }

  /** Claims jobs each time the queue is notified, until the server stops. */
  async #claimOnWakes(): Promise<void> {
    const { bus } = this.#deps;
    let timer: NodeJS.Timeout | undefined;
    try {
      // A claim may have been committed although the database went away before it confirmed the commit.
      for (const attempt of await this.#readOpenAttempts())
        if (!this.#attempts.has(attempt.attemptId)) this.#attempts.add(attempt);
      for await (const _ of bus.wakes('queue', this.#stopping.signal)) {
        clearTimeout(timer);
        const isLocked = await this.#claimAll();
        const dueMs = this.used < this.#slots ? await this.#msUntilDue() : null;
        // Retries are delayed by at most a minute. Later wakes need no timer: the bus also wakes an idle subscriber.
        const waitMs = Math.min(
          dueMs ?? Number.POSITIVE_INFINITY,
          isLocked ? LOCKED_RETRY_MS : this.#pauses.longestMs,
        );
        if (dueMs !== null || isLocked) timer = setTimeout(() => bus.notify('queue'), waitMs + 1);
      }
    } finally {
      clearTimeout(timer);
    }
  }

  /** @returns whether another transaction has locked a job that was next; no notification tells when it is unlocked */
  async #claimAll(): Promise<boolean> {
    const skipList = createSkipList();
    this.#isDrained = false;
    this.#isClaiming = true;
    this.#hasNewRoom = false;
    try {
      // A starting job writes to the disk. The queue is notified when there is space again.
      if (!this.#deps.space.low) this.#isDrained = await this.#claimUntilFull(skipList);
    } finally {
      this.#isClaiming = false;
    }
    if (this.#hasNewRoom) this.#onCapacityFreed();
    return skipList.jobs.size > 0;
  }

  /** @returns whether the queue holds no more jobs for this worker's machines */
  async #claimUntilFull(skipList: SkipList): Promise<boolean> {
    const { runner, metrics } = this.#deps;
    const slots = this.#slots;
    let hasRefreshedPeers = false;
    for (let isLong = this.#reservations.size > 0; !this.#stopping.signal.aborted; ) {
      const slotsFree = slots - this.used;
      const held = this.#attempts.capacity();
      const capacity = this.#capacity;
      const machines = capacity.filter(({ away }) => !away);
      const elsewhere = [...this.#peers.machines, ...capacity.filter(({ away }) => away)];
      const pools = findClaimablePools({ machines, slots, held });
      if (slotsFree <= 0 || pools.size === 0) return false;
      const short = Math.min(slotsFree, SHORT_SCAN);
      let passedOver = false;
      let needsPeers = false;
      let admitted: readonly WaitingJob[] = [];
      const claims = await claimJobs(this.#deps, {
        workerId: this.#id,
        runner: runner.name,
        pools,
        ...(isLong ? LONG_SCAN : { lines: short, depth: short }),
        reserved: this.#reservations.values(),
        skip: skipList,
        decide: (lines, reserved) => {
          const room = { machines, elsewhere, slots, slotsFree, held };
          const decision = admit<WaitingJob>({ ...room, lines, reserved });
          // Jobs with an image would fail because no worker runs images; a worker that does may have joined just now.
          const hasImages = decision.admitted.some(({ job }) => job.image !== null);
          needsPeers = hasImages && !hasRefreshedPeers && !runsImages([...machines, ...elsewhere]);
          if (needsPeers) return [];
          this.#reservations = decision.reservations;
          passedOver = decision.passedOver;
          admitted = decision.admitted.map(({ job }) => job);
          return decision.admitted;
        },
      });
      if (needsPeers) {
        await this.#peers.refresh();
        hasRefreshedPeers = true;
        continue;
      }
      for (const { region, waited, ...claim } of claims) {
        metrics.jobClaimed({ gpu: claim.gpu, region }, waited);
        this.#attempts.add(claim);
      }
      const isLocked = claims.length < admitted.length;
      if (isLocked) skipList.add(admitted, claims);
      // The scan saw all jobs of these pools and claimed them. A job that arrives later wakes the worker.
      if (!isLong && !passedOver && admitted.length < short && !isLocked)
        return (
          skipList.jobs.size === 0 &&
          hasAllPools(pools, findClaimablePools({ machines, slots, held: [] }))
        );
      if (claims.length > 0 || isLocked) continue;
      if (isLong || !passedOver) return false;
      isLong = true;
    }
    return false;
  }

  /** Milliseconds until the queue must be checked for delayed jobs; null when none is delayed. */
  async #msUntilDue(): Promise<number | null> {
    const early = this.#dueQueriedAt + DUE_QUERY_MS - performance.now();
    if (early > 0) return early;
    this.#dueQueriedAt = performance.now();
    const models = new Set(this.#machines.flatMap(({ gpus }) => ['none', ...Object.keys(gpus)]));
    return msUntilNextDue(this.#deps, [...models]);
  }

  async #repeat(failure: string, work: () => Promise<void>): Promise<void> {
    const { signal } = this.#stopping;
    while (!signal.aborted) {
      await delay(HEARTBEAT_MS, undefined, { signal }).catch(() => {});
      if (signal.aborted) return;
      await work().catch((error) => this.#deps.log.error({ err: error }, failure));
    }
  }

  #writeHeartbeat(): Promise<void> {
    const { runner } = this.#deps;
    const machines = this.#capacity;
    return writeHeartbeat(this.#deps, {
      ...{ id: this.#id, runner: runner.name, kinds: this.#kinds, machines },
    });
  }

  async #beat(): Promise<void> {
    const { bus } = this.#deps;
    await this.#writeHeartbeat();
    const machines = this.#machines.map(({ id }) => id).join();
    // A machine that answers again has room for jobs.
    if (machines !== this.#lastMachines) bus.notify('queue');
    this.#lastMachines = machines;
    // Jobs that were left to a peer are considered again when that peer is gone.
    if (await this.#peers.refresh()) bus.notify('queue');
  }

  async #recoverLostAttempts(): Promise<void> {
    const { log, metrics } = this.#deps;
    for (const lost of await findLostAttempts(this.#deps, { id: this.#id, kinds: this.#kinds }))
      await loseAttempt(this.#deps, lost).then(
        (isLost) => isLost && metrics.attemptEnded('lost'),
        // The next search finds the attempt again, and other lost attempts need not wait for it.
        (error) => log.warn({ err: error, job: lost.jobId }, 'Cannot end a lost attempt yet'),
      );
  }
}

function hasAllPools(pools: ReadonlyMap<string, number>, all: ReadonlyMap<string, number>) {
  return [...all].every(([model, count]) => pools.get(model) === count);
}

/** For the log at startup: what jobs get of a machine, and what happens to jobs that ask for more. */
function describeMachine({ id, cpus, memoryBytes, gpus }: Machine, slots: number): string {
  const memory = `${(memoryBytes / 2 ** 30).toFixed(1)} GB`;
  const models = Object.entries(gpus).map(([model, count]) => `, ${count} × ${model}`);
  return (
    `Machine "${id}" has ${cpus} vCPUs, ${memory}${models.join('')} for jobs. ` +
    `Jobs that ask for more get all of it, shared by up to ${slots} jobs`
  );
}
