/**
 * Decides which waiting jobs start now, and on which machine: a pure function of the free capacity and the queue order.
 *
 * Resources: a machine that has the requested resources gives them to the job exclusively. A request larger than the machine
 * is reduced to the size of the machine and counts as 1/slots of it, so that several such jobs share the machine. A resource
 * of which the machine has less than the default job of the API requests (8 vCPUs, 32 GB) is shared by all jobs: each counts
 * as 1/slots at most. Otherwise such a machine would run four large jobs at once, but only one of 2 vCPUs. A request is only
 * reduced if no machine of any worker that can run the job has all of it. GPUs are never reduced.
 *
 * Clusters: the engine of a cluster shares its nodes among jobs. A request is reduced to the size of its largest node, and the
 * worker only limits the number of its jobs there (`maxJobs`). These jobs use no slots of the worker, and reserve nothing.
 *
 * Joined machines: as the worker's own, but each has slots of its own, and may run jobs of one namespace only.
 *
 * Placement: a job goes to the first machine, in the order of the runner, that can run it now. The ordinary machines count as
 * one place in this order, at which the one with the lowest cost is chosen.
 *
 * Images: only workers that run images claim jobs that name an image. If there is no such worker, the next worker claims the
 * job and fails it with the reason.
 *
 * Reservations: the first job in queue order that does not fit gets a reservation. Its need counts as used until it starts, so
 * other jobs only get the remaining capacity, and the reservation stays while they start. A job that waits for GPUs only
 * reserves GPUs, because the length of its wait is unknown. There is one reservation for each GPU model, and one for jobs that
 * wait for CPU or memory.
 */
import { HARDWARE_DEFAULTS as DEFAULT } from '../../base/hardware.ts';
import { type Machine, usesWorkerSlots } from '../../runners/runner.ts';
import {
  canRun,
  hasGpus,
  type JobDemands,
  runsImages,
  servesNamespace,
  servesRegion,
  type WorkerCapacity,
} from './worker-capacity.ts';

/** The resources that a job requests. */
export type ResourceRequest = { gpu: string; gpuCount: number; cpu: number; memoryGb: number };

/** The machine of a job and the most that the job may use of it. `shared`: other jobs may use the same resources. */
type Grant = { machine: string; cpus: number; memoryBytes: number; shared: boolean };

/** Capacity that an attempt holds. `isLeaving`: the attempt has ended and has no slot, but its processes may still run. */
export type HeldCapacity = ResourceRequest & { machine: string; isLeaving?: boolean };

/** A waiting job. */
export type CandidateJob = ResourceRequest & {
  id: string;
  namespaceId: string;
  region: string;
} & JobDemands;

/** The first waiting jobs of a namespace in a pool, the oldest first. */
export type NamespaceQueue<C extends CandidateJob = CandidateJob> = {
  namespaceId: string;
  /** How many open attempts the namespace has. The namespace with the fewest is next. */
  held: number;
  /** Position among queues with the same `held`; the smallest is next. */
  rank: number;
  jobs: readonly C[];
};

/** GPU model, or `any` for CPU and memory → the id of the job that has the reservation. */
export type Reservations = ReadonlyMap<string, string>;

type AdmissionInput<C extends CandidateJob> = {
  machines: readonly Machine[];
  /** The machines of other workers, and the machines of this worker that do not answer. */
  elsewhere: readonly WorkerCapacity[];
  /** How many jobs this worker runs at once on all its machines that are not clusters. */
  slots: number;
  slotsFree: number;
  held: Iterable<HeldCapacity>;
  queues: readonly NamespaceQueue<C>[];
  /** Waiting jobs with a reservation. */
  reserved: readonly C[];
};

export type Admitted<C extends CandidateJob> = { job: C; grant: Grant };

const GIB = 2 ** 30;
/** CPU is counted in thousandths, because a share is a fraction of a vCPU and sums of integers are exact. */
const MILLI = 1000;
/** The smallest job that a catalogue can allow. */
const SMALLEST_JOB = { gpu: 'none', gpuCount: 0, cpu: 1, memoryGb: 1 } as const;

/** Thousandths of a vCPU, bytes of memory, and GPUs by model. */
type ResourceAmount = { cpu: number; memory: number; gpus: Readonly<Record<string, number>> };

function isCluster({ maxJobs }: Machine): boolean {
  return maxJobs !== undefined;
}

/** Computes how much of a machine a job would use, whether or not that much is free. */
function computeNeed(machine: Machine, slots: number, request: ResourceRequest): ResourceAmount {
  if (isCluster(machine)) return { cpu: 0, memory: 0, gpus: {} };
  const cpu = machine.cpus * MILLI;
  const memory = machine.memoryBytes;
  const shares = machine.slots ?? slots;
  return {
    cpu: computeShare(request.cpu * MILLI, cpu, shares, DEFAULT.cpu * MILLI),
    memory: computeShare(request.memoryGb * GIB, memory, shares, DEFAULT.memoryGb * GIB),
    gpus: request.gpu === 'none' ? {} : { [request.gpu]: request.gpuCount },
  };
}

/** Whether a job shares a resource of the machine with other jobs. */
function isShared(requested: number, total: number, defaultRequest: number): boolean {
  return requested > total || total < defaultRequest;
}

function computeShare(
  requested: number,
  total: number,
  slots: number,
  defaultRequest: number,
): number {
  if (!isShared(requested, total, defaultRequest)) return requested;
  return Math.min(requested, Math.floor(total / slots));
}

function fitsWhole(machine: Machine, request: ResourceRequest): boolean {
  return request.cpu <= machine.cpus && request.memoryGb * GIB <= machine.memoryBytes;
}

function isSmall({ cpus, memoryBytes }: Machine): boolean {
  return cpus < DEFAULT.cpu || memoryBytes < DEFAULT.memoryGb * GIB;
}

function makeGrant(machine: Machine, request: ResourceRequest): Grant {
  return {
    machine: machine.id,
    // Integers, because the columns of the attempt are integers.
    cpus: Math.min(request.cpu, Math.ceil(machine.cpus)),
    memoryBytes: Math.min(request.memoryGb * GIB, Math.floor(machine.memoryBytes)),
    shared: !isCluster(machine) && (isSmall(machine) || !fitsWhole(machine, request)),
  };
}

/** The free capacity of a machine. It is negative where more is reserved than the machine has. */
class MachineRoom {
  readonly machine: Machine;
  #slots: number;
  #jobs: number;
  #cpu: number;
  #memory: number;
  #gpus: Record<string, number>;

  constructor(machine: Machine, slots: number) {
    this.machine = machine;
    this.#slots = slots;
    this.#jobs = machine.maxJobs ?? machine.slots ?? Number.POSITIVE_INFINITY;
    this.#cpu = machine.cpus * MILLI;
    this.#memory = machine.memoryBytes;
    this.#gpus = { ...machine.gpus };
  }

  need(request: ResourceRequest): ResourceAmount {
    return computeNeed(this.machine, this.#slots, request);
  }

  /** @param jobs how many places of jobs are taken, too */
  take({ cpu, memory, gpus }: ResourceAmount, jobs: 0 | 1): void {
    this.#jobs -= jobs;
    this.#cpu -= cpu;
    this.#memory -= memory;
    for (const [model, count] of Object.entries(gpus))
      this.#gpus[model] = (this.#gpus[model] ?? 0) - count;
  }

  fitsGpus({ gpus }: ResourceAmount): boolean {
    return Object.entries(gpus).every(([model, count]) => (this.#gpus[model] ?? 0) >= count);
  }

  fits(need: ResourceAmount): boolean {
    return (
      this.#jobs > 0 && need.cpu <= this.#cpu && need.memory <= this.#memory && this.fitsGpus(need)
    );
  }

  get isCluster(): boolean {
    return isCluster(this.machine);
  }

  get usesWorkerSlots(): boolean {
    return usesWorkerSlots(this.machine);
  }

  /** How many more jobs the machine may have, as far as its number of jobs is limited by itself. */
  get jobsFree(): number {
    return Math.max(0, this.#jobs);
  }

  /** Computes the largest shortage of any resource, as a fraction of the machine. */
  computeShortage({ cpu, memory, gpus }: ResourceAmount): number {
    const { machine } = this;
    return Math.max(
      (cpu - this.#cpu) / (machine.cpus * MILLI),
      (memory - this.#memory) / machine.memoryBytes,
      ...Object.entries(gpus).map(
        ([model, count]) => (count - (this.#gpus[model] ?? 0)) / (machine.gpus[model] ?? 1),
      ),
    );
  }

  get used(): number {
    return 1 - this.#cpu / (this.machine.cpus * MILLI);
  }

  gpusFree(model: string): number {
    return Math.max(0, this.#gpus[model] ?? 0);
  }
}

function computeRooms(
  machines: readonly Machine[],
  slots: number,
  heldCapacity: Iterable<HeldCapacity>,
): Map<string, MachineRoom> {
  const rooms = new Map(machines.map((machine) => [machine.id, new MachineRoom(machine, slots)]));
  for (const held of heldCapacity) {
    const room = rooms.get(held.machine);
    // An attempt that is being removed counts in a cluster no more than it has a slot elsewhere.
    if (!room || (room.isCluster && held.isLeaving)) continue;
    const { cpu, memory, gpus } = room.need(held);
    // A share of a shared resource belongs to the slot. A leaving attempt has no slot any more.
    const { cpus, memoryBytes } = room.machine;
    const isReleased = (requested: number, total: number, defaultRequest: number) =>
      held.isLeaving && isShared(requested, total, defaultRequest);
    const used = {
      cpu: isReleased(held.cpu, cpus, DEFAULT.cpu) ? 0 : cpu,
      memory: isReleased(held.memoryGb * GIB, memoryBytes, DEFAULT.memoryGb * GIB) ? 0 : memory,
      gpus,
    };
    room.take(used, held.isLeaving ? 0 : 1);
  }
  return rooms;
}

/** Stands for every region, where a machine serves all. */
export const ANY_REGION = '*';

/**
 * GPU model, or `none` → region or `ANY_REGION` → the maximum number of GPUs that a job may request (0 for `none`). Regions and
 * models in which no job could start are omitted.
 */
export type ClaimablePools = ReadonlyMap<string, Readonly<Record<string, number>>>;

/** Finds the pools in which a job could start, and how many jobs could start in all, before the queue is read. */
export function findClaimablePools({
  machines,
  slots,
  slotsFree,
  held,
}: Pick<AdmissionInput<CandidateJob>, 'machines' | 'slots' | 'slotsFree' | 'held'>): {
  pools: ClaimablePools;
  jobsFree: number;
} {
  const pools = new Map<string, Record<string, number>>();
  const add = (model: string, regions: readonly string[], count: number) => {
    const pool = pools.get(model) ?? {};
    for (const region of regions) pool[region] = Math.max(pool[region] ?? 0, count);
    pools.set(model, pool);
  };
  const rooms = [...computeRooms(machines, slots, held).values()];
  for (const room of rooms) {
    const { machine } = room;
    if (room.usesWorkerSlots && slotsFree <= 0) continue;
    // The smallest need is that of the smallest job, or the share of a job that requests more than the machine has.
    const oversized = room.need({ ...SMALLEST_JOB, cpu: Infinity, memoryGb: Infinity });
    const minimum = room.need(SMALLEST_JOB);
    const smallest = {
      cpu: Math.min(oversized.cpu, minimum.cpu),
      memory: Math.min(oversized.memory, minimum.memory),
      gpus: {},
    };
    if (!room.fits(smallest)) continue;
    const { regions = [ANY_REGION], gpus } = machine;
    add('none', regions, 0);
    for (const [model, count] of Object.entries(gpus))
      if (room.gpusFree(model) > 0) add(model, regions, count);
  }
  return { pools, jobsFree: sumJobsFree(rooms, slotsFree) };
}

function sumJobsFree(rooms: readonly MachineRoom[], slotsFree: number): number {
  const elsewhere = rooms.filter((room) => !room.usesWorkerSlots).map((room) => room.jobsFree);
  return elsewhere.reduce((sum, jobs) => sum + jobs, Math.max(0, slotsFree));
}

/**
 * Admits jobs in queue order, jobs with a reservation first. `hasPassedOverJobs`: some job did not fit, so jobs that are further
 * back in the queue than `queues` may start.
 */
export function admit<C extends CandidateJob>(
  input: AdmissionInput<C>,
): { admitted: Admitted<C>[]; reservations: Reservations; hasPassedOverJobs: boolean } {
  const admission = new Admission(input);
  admission.run(input.reserved);
  const { admitted, reservations, hasPassedOverJobs } = admission;
  return { admitted, reservations, hasPassedOverJobs };
}

/**
 * Whether any worker runs images of these jobs. Machines of one namespace do not count for the jobs of all.
 * @param machines those that are claimed for
 */
export function hasImageWorker(
  machines: readonly WorkerCapacity[],
  elsewhere: readonly WorkerCapacity[],
): boolean {
  const others = elsewhere.filter(({ namespaceId }) => namespaceId === undefined);
  return runsImages([...machines, ...others]);
}

/** `next`: the index of the next job to consider. */
type QueueCursor<C extends CandidateJob> = NamespaceQueue<C> & { next: number };

class Admission<C extends CandidateJob> {
  readonly admitted: Admitted<C>[] = [];
  readonly reservations = new Map<string, string>();
  hasPassedOverJobs = false;
  readonly #rooms: readonly MachineRoom[];
  readonly #elsewhere: readonly WorkerCapacity[];
  readonly #hasImageWorker: boolean;
  readonly #queues: readonly QueueCursor<C>[];
  /** Ids of the jobs that were considered. */
  readonly #seen = new Set<string>();
  #slotsFree: number;
  #lastRank: number;

  constructor({ machines, elsewhere, slots, slotsFree, held, queues }: AdmissionInput<C>) {
    this.#rooms = [...computeRooms(machines, slots, held).values()];
    this.#elsewhere = elsewhere;
    this.#hasImageWorker = hasImageWorker(machines, elsewhere);
    this.#queues = queues.map((queue) => ({ ...queue, next: 0 }));
    this.#slotsFree = slotsFree;
    this.#lastRank = Math.max(0, ...queues.map(({ rank }) => rank));
  }

  run(reserved: readonly C[]): void {
    for (const job of reserved) if (this.#place(job, true)) this.#countStart(job.namespaceId);
    while (sumJobsFree(this.#rooms, this.#slotsFree) > 0) {
      const queue = this.#nextQueue();
      if (!queue) return;
      const job = queue.jobs[queue.next++] as C;
      if (this.#seen.has(job.id)) continue;
      if (this.#place(job)) this.#countStart(job.namespaceId, queue);
      else this.hasPassedOverJobs = true;
    }
  }

  #nextQueue(): QueueCursor<C> | undefined {
    let first: QueueCursor<C> | undefined;
    for (const queue of this.#queues) {
      if (queue.next >= queue.jobs.length) continue;
      if (!first || (queue.held - first.held || queue.rank - first.rank) < 0) first = queue;
    }
    return first;
  }

  /** Places a job on a machine, or makes a reservation for it. @returns whether it starts */
  #place(job: C, hasReservation = false): boolean {
    this.#seen.add(job.id);
    const rooms = this.#candidateRooms(job);
    const best = this.#choose(rooms, job);
    if (!best) {
      // Where no slot is free, a job may wait for a slot alone, and its turn is still to come.
      this.#reserve(job, hasReservation ? rooms : rooms.filter((room) => this.#hasSlot(room)));
      return false;
    }
    best.take(best.need(job), 1);
    this.admitted.push({ job, grant: makeGrant(best.machine, job) });
    if (best.usesWorkerSlots) this.#slotsFree--;
    return true;
  }

  #hasSlot(room: MachineRoom): boolean {
    return room.usesWorkerSlots ? this.#slotsFree > 0 : room.jobsFree > 0;
  }

  /** Chooses the machine on which a job starts now; undefined if it fits on none. */
  #choose(candidates: readonly MachineRoom[], job: C): MachineRoom | undefined {
    const fitting = candidates.filter((room) => this.#hasSlot(room) && room.fits(room.need(job)));
    const [first] = fitting;
    if (!first || first.isCluster) return first;
    const [cheapest] = fitting
      .filter((room) => !room.isCluster)
      .sort((a, b) => placementCost(a, job) - placementCost(b, job));
    return cheapest;
  }

  /**
   * Lists the machines that a job may start on. If any machine of any worker has all that the job requests, only such machines
   * are listed.
   */
  #candidateRooms(job: C): readonly MachineRoom[] {
    const request = this.#hasImageWorker ? job : { ...job, image: null };
    const isCapable = (machine: WorkerCapacity) =>
      servesRegion(machine, request) &&
      servesNamespace(machine, request) &&
      hasGpus(machine, request) &&
      canRun(machine, request);
    const capable = this.#rooms.filter(({ machine }) => isCapable(machine));
    const whole = capable.filter(({ machine }) => fitsWhole(machine, request));
    if (whole.length > 0) return whole;
    return this.#elsewhere.some((m) => isCapable(m) && fitsWhole(m, request)) ? [] : capable;
  }

  /**
   * Reserves the capacity of the machine that lacks the least, unless another job has this kind of reservation. Clusters are
   * left out: what a job waits for there is a place among their jobs.
   */
  #reserve(job: C, rooms: readonly MachineRoom[]): void {
    const candidates = rooms
      .filter((room) => !room.isCluster)
      .map((room) => ({ room, need: room.need(job) }));
    const withGpus = candidates.filter(({ room, need }) => room.fitsGpus(need));
    const kind = withGpus.length > 0 ? 'any' : job.gpu;
    const [nearest] = (withGpus.length > 0 ? withGpus : candidates).sort(
      (a, b) => a.room.computeShortage(a.need) - b.room.computeShortage(b.need),
    );
    if (!nearest || this.reservations.has(kind)) return;
    const { room, need } = nearest;
    room.take(kind === 'any' ? need : { cpu: 0, memory: 0, gpus: need.gpus }, 0);
    this.reservations.set(kind, job.id);
  }

  /**
   * Counts a job that starts: its namespace moves behind all others with the same number of jobs, and the queue of the job
   * behind the other queues of its namespace.
   */
  #countStart(namespaceId: string, served?: NamespaceQueue<C>): void {
    this.#lastRank++;
    for (const queue of this.#queues) {
      if (queue.namespaceId !== namespaceId) continue;
      queue.held++;
      queue.rank = this.#lastRank + (queue === served ? 0.5 : 0);
    }
  }
}

/** The machine with the lowest cost is chosen. Jobs without GPUs prefer machines without GPUs, then the most free CPU. */
function placementCost({ machine, used }: MachineRoom, { gpu }: ResourceRequest): number {
  const wouldWasteGpus = gpu === 'none' && Object.keys(machine.gpus).length > 0;
  return used + (wouldWasteGpus ? 10 : 0);
}
