/**
 * Decides which waiting jobs start now, and on which machine: a pure function of the free capacity and the queue order.
 *
 * A machine that has the requested resources gives a job exactly these, exclusively. A request beyond the machine is cut to
 * the size of the machine and counts as 1/slots of it, so that many such jobs share the machine. A machine smaller than the
 * default job of the API (8 vCPUs, 32 GB) shares its scarce resource among all jobs: each counts as 1/slots at most.
 * Otherwise such a machine would run four large jobs at once, but only one of 2 vCPUs. A request is cut only if no machine
 * of any worker that can run the job has all of it. GPUs are never cut.
 *
 * A job that names an image is left to workers that run images. If there are none, the next worker claims the job and fails
 * it with the reason.
 *
 * The first job in turn that does not fit gets a reservation: its need counts as used until it starts, and other jobs may
 * only use the capacity beside it. The job keeps the reservation although other jobs start meanwhile, because it was first.
 * A job that waits for GPUs reserves GPUs only, because the length of its wait is unknown. There is one reservation for
 * each GPU model, and one for jobs that wait for CPU or memory.
 */
import { HARDWARE_DEFAULTS as DEFAULT } from '../../base/hardware.ts';
import type { Machine } from '../../runners/runner.ts';
import { canRun, hasGpus, runsImages, type WorkerCapacity } from '../worker-capacity.ts';

/** The resources that a job asks for. */
export type ResourceRequest = { gpu: string; gpuCount: number; cpu: number; memoryGb: number };

/** The machine of a job and the most that the job may use of it. `shared`: other jobs may use the same resources. */
type Grant = { machine: string; cpus: number; memoryBytes: number; shared: boolean };

/** Capacity that an attempt holds. `leaving`: the attempt is over, but its processes may still run. */
export type HeldCapacity = ResourceRequest & { machine: string; leaving?: boolean };

/** A waiting job. `image`: unset means none. */
export type Candidate = ResourceRequest & {
  id: string;
  namespaceId: string;
  image?: string | null;
};

/** The first jobs of a namespace in a pool, the oldest first. */
export type QueueLine<C extends Candidate = Candidate> = {
  namespaceId: string;
  /** How many jobs of the namespace have attempts. The namespace with the fewest is next. */
  held: number;
  /** Order among namespaces with the same `held`; the smallest is next. */
  turn: number;
  jobs: readonly C[];
};

/** GPU model, or `any` for CPU and memory → the id of the job that has the reservation. */
export type Reservations = ReadonlyMap<string, string>;

type Input<C extends Candidate> = {
  machines: readonly Machine[];
  /** The machines of other workers, and those of this worker that do not answer. */
  elsewhere: readonly WorkerCapacity[];
  /** How many jobs this worker runs at once on all its machines together. */
  slots: number;
  slotsFree: number;
  held: Iterable<HeldCapacity>;
  lines: readonly QueueLine<C>[];
  /** Waiting jobs with a reservation. */
  reserved: readonly C[];
};

export type Admitted<C extends Candidate> = { job: C; grant: Grant };

const GIB = 2 ** 30;
/** CPU is counted in thousandths, because a share is a fraction of a vCPU and sums of integers are exact. */
const MILLI = 1000;
/** The smallest job that the API accepts. */
const SMALLEST_JOB = { gpu: 'none', gpuCount: 0, cpu: 2, memoryGb: 1 } as const;

/** Thousandths of a vCPU, bytes of memory, and GPUs by model. */
type Amount = { cpu: number; memory: number; gpus: Readonly<Record<string, number>> };

/** The amount that a job would use of a machine, whether or not it is free. */
function computeNeed(machine: Machine, slots: number, request: ResourceRequest): Amount {
  const cpu = machine.cpus * MILLI;
  const memory = machine.memoryBytes;
  return {
    cpu: computeShare(request.cpu * MILLI, cpu, slots, DEFAULT.cpu * MILLI),
    memory: computeShare(request.memoryGb * GIB, memory, slots, DEFAULT.memoryGb * GIB),
    gpus: request.gpu === 'none' ? {} : { [request.gpu]: request.gpuCount },
  };
}

/** Whether a job shares a resource of the machine with other jobs. @param byDefault the request of a default job */
function isShared(requested: number, total: number, byDefault: number): boolean {
  return requested > total || total < byDefault;
}

function computeShare(requested: number, total: number, slots: number, byDefault: number): number {
  if (!isShared(requested, total, byDefault)) return requested;
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
    shared: isSmall(machine) || !fitsWhole(machine, request),
  };
}

/** The free capacity of a machine. It is negative where more is reserved than the machine has. */
class MachineRoom {
  readonly machine: Machine;
  #slots: number;
  #cpu: number;
  #memory: number;
  #gpus: Record<string, number>;

  constructor(machine: Machine, slots: number) {
    this.machine = machine;
    this.#slots = slots;
    this.#cpu = machine.cpus * MILLI;
    this.#memory = machine.memoryBytes;
    this.#gpus = { ...machine.gpus };
  }

  need(request: ResourceRequest): Amount {
    return computeNeed(this.machine, this.#slots, request);
  }

  take({ cpu, memory, gpus }: Amount): void {
    this.#cpu -= cpu;
    this.#memory -= memory;
    for (const [model, count] of Object.entries(gpus))
      this.#gpus[model] = (this.#gpus[model] ?? 0) - count;
  }

  fitsGpus({ gpus }: Amount): boolean {
    return Object.entries(gpus).every(([model, count]) => (this.#gpus[model] ?? 0) >= count);
  }

  fits(need: Amount): boolean {
    return need.cpu <= this.#cpu && need.memory <= this.#memory && this.fitsGpus(need);
  }

  /** The largest shortage of any resource, as a fraction of the machine. */
  lack({ cpu, memory, gpus }: Amount): number {
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
    if (!room) continue;
    const { cpu, memory, gpus } = room.need(held);
    // A share belongs to the slot, which an attempt that is being removed gives up after ten seconds.
    const { cpus, memoryBytes } = room.machine;
    const isReleased = (requested: number, total: number, byDefault: number) =>
      held.leaving && isShared(requested, total, byDefault);
    room.take({
      cpu: isReleased(held.cpu, cpus, DEFAULT.cpu) ? 0 : cpu,
      memory: isReleased(held.memoryGb * GIB, memoryBytes, DEFAULT.memoryGb * GIB) ? 0 : memory,
      gpus,
    });
  }
  return rooms;
}

/**
 * Finds the pools in which a job could start, before the queue is read: GPU model, or `none` → the most GPUs that a job may
 * ask for (0 for `none`). A pool without a free GPU is left out.
 */
export function findClaimablePools(
  input: Pick<Input<Candidate>, 'machines' | 'slots' | 'held'>,
): Map<string, number> {
  const pools = new Map<string, number>();
  for (const room of computeRooms(input.machines, input.slots, input.held).values()) {
    const { machine } = room;
    // The smallest need is that of the smallest job, or the share of a job that asks for more than the machine.
    const oversized = room.need({ ...SMALLEST_JOB, cpu: Infinity, memoryGb: Infinity });
    const minimum = room.need(SMALLEST_JOB);
    const smallest = {
      cpu: Math.min(oversized.cpu, minimum.cpu),
      memory: Math.min(oversized.memory, minimum.memory),
      gpus: {},
    };
    if (!room.fits(smallest)) continue;
    pools.set('none', 0);
    for (const [model, count] of Object.entries(machine.gpus))
      if (room.gpusFree(model) > 0) pools.set(model, Math.max(pools.get(model) ?? 0, count));
  }
  return pools;
}

/**
 * Admits jobs in queue order, jobs with a reservation first. `passedOver`: some job did not fit, so jobs further back in the
 * queue than those given may start.
 */
export function admit<C extends Candidate>(
  input: Input<C>,
): { admitted: Admitted<C>[]; reservations: Reservations; passedOver: boolean } {
  const { machines, elsewhere, slots } = input;
  const hasImageWorker = runsImages([...machines, ...elsewhere]);
  const rooms = [...computeRooms(machines, slots, input.held).values()];
  const admitted: Admitted<C>[] = [];
  const reservations = new Map<string, string>();
  const seen = new Set<string>();
  let { slotsFree } = input;
  let passedOver = false;

  /** The machines that a job may start on: those that have all it asks for, if any machine of any worker does. */
  function candidateRooms(job: C): MachineRoom[] {
    const request = hasImageWorker ? job : { ...job, image: null };
    const isCapable = (machine: WorkerCapacity) =>
      hasGpus(machine, request) && canRun(machine, request);
    const capable = rooms.filter(({ machine }) => isCapable(machine));
    const whole = capable.filter(({ machine }) => fitsWhole(machine, request));
    if (whole.length > 0) return whole;
    return elsewhere.some((m) => isCapable(m) && fitsWhole(m, request)) ? [] : capable;
  }

  /** Places a job on a machine, or makes a reservation for it. @returns whether it starts */
  function place(job: C): boolean {
    seen.add(job.id);
    const candidates = candidateRooms(job).map((room) => ({ room, need: room.need(job) }));
    const [best] = candidates
      .filter(({ room, need }) => room.fits(need))
      .sort((a, b) => placementCost(a.room, job) - placementCost(b.room, job));
    if (best) {
      best.room.take(best.need);
      admitted.push({ job, grant: makeGrant(best.room.machine, job) });
      slotsFree--;
      return true;
    }
    const withGpus = candidates.filter(({ room, need }) => room.fitsGpus(need));
    const kind = withGpus.length > 0 ? 'any' : job.gpu;
    const [nearest] = (withGpus.length > 0 ? withGpus : candidates).sort(
      (a, b) => a.room.lack(a.need) - b.room.lack(b.need),
    );
    if (nearest && !reservations.has(kind)) {
      const { room, need } = nearest;
      room.take(kind === 'any' ? need : { cpu: 0, memory: 0, gpus: need.gpus });
      reservations.set(kind, job.id);
    }
    return false;
  }

  const lines = input.lines.map((line) => ({ ...line, next: 0 }));
  let turns = Math.max(0, ...lines.map(({ turn }) => turn));

  /** Counts a started job: its namespace moves behind all others with the same count, and this line behind its others. */
  function serve(namespaceId: string, served?: QueueLine<C>): void {
    turns++;
    for (const line of lines) {
      if (line.namespaceId !== namespaceId) continue;
      line.held++;
      line.turn = turns + (line === served ? 0.5 : 0);
    }
  }

  for (const job of input.reserved) if (slotsFree > 0 && place(job)) serve(job.namespaceId);
  while (slotsFree > 0) {
    let first: (typeof lines)[number] | undefined;
    for (const line of lines) {
      if (line.next >= line.jobs.length) continue;
      if (!first || (line.held - first.held || line.turn - first.turn) < 0) first = line;
    }
    if (!first) break;
    const job = first.jobs[first.next++] as C;
    if (seen.has(job.id)) continue;
    if (place(job)) serve(job.namespaceId, first);
    else passedOver = true;
  }
  return { admitted, reservations, passedOver };
}

/** The machine with the lowest cost is chosen: without GPUs for jobs that need none, then the one with most free CPU. */
function placementCost({ machine, used }: MachineRoom, { gpu }: ResourceRequest): number {
  const hasGpu = gpu === 'none' && Object.keys(machine.gpus).length > 0;
  return used + (hasGpu ? 10 : 0);
}
