/**
 * Which of the jobs that wait start now, and on which machine: a pure function of what is free and who is next.
 *
 * A machine that has what a job asks for gives it exactly that, to it alone. What a job asks for beyond the machine is
 * cut to what the machine has, and counts as one part in as many as there are slots: so that many jobs share it. A
 * machine that has less than the contract's default job asks for (8 vCPUs, 32 GB) is small, and shares what it has
 * less of among all jobs: each counts as one part at most. Otherwise such a machine would run four large jobs at once
 * and only one of 2 vCPUs. A job is cut only where no machine of any worker that runs such jobs has it whole. GPUs are
 * never cut.
 *
 * A job that names an image is left to those who run images. Where no worker does, whoever is next takes it, and fails it
 * with the reason.
 *
 * The first in turn that does not fit gets a reservation: what it needs counts as used for all others, who may
 * start only in what is left beside it, until it has started. It has had its turn, and so keeps it although others
 * come in between. One that waits for GPUs reserves GPUs alone, as nobody can tell for how long; there is one
 * reservation for each model, and one for those that wait for CPU or memory.
 */
import { HARDWARE_DEFAULTS as DEFAULT } from '../../base/hardware.ts';
import type { Machine } from '../../runners/runner.ts';
import { hasGpus, runs, runsImages, type WorkerCapacity } from '../worker-capacity.ts';

/** What a job asks for. */
export type ResourceRequest = { gpu: string; gpuCount: number; cpu: number; memoryGb: number };

/** What it was given: the most that it may use there. `shared`: not to it alone. */
export type Grant = { machine: string; cpus: number; memoryBytes: number; shared: boolean };

/** `leaving`: it is over, and it is not sure yet that nothing of it runs. */
export type Reservation = ResourceRequest & { machine: string; leaving?: boolean };

/** `image`: unset: none. */
export type Candidate = ResourceRequest & {
  id: string;
  namespaceId: string;
  image?: string | null;
};

/** The first jobs of a namespace in a pool, the oldest first. */
export type QueueLine<C extends Candidate = Candidate> = {
  namespaceId: string;
  /** How many jobs the namespace holds: who holds fewer is next. */
  held: number;
  /** Of those that hold equally many, the smallest is next. */
  turn: number;
  jobs: readonly C[];
};

/** `gpu` or `any` (CPU or memory) → the job that waits for it. */
export type Reservations = ReadonlyMap<string, string>;

type Input<C extends Candidate> = {
  machines: readonly Machine[];
  /** What other workers have, and what of this one is away. */
  elsewhere: readonly WorkerCapacity[];
  /** How many jobs this worker runs at once, on all its machines. */
  slots: number;
  slotsFree: number;
  held: Iterable<Reservation>;
  lines: readonly QueueLine<C>[];
  /** Jobs with a reservation that still wait. */
  reserved: readonly C[];
};

export type Admitted<C extends Candidate> = { job: C; grant: Grant };

const GIB = 2 ** 30;
/** Shares are parts of vCPUs, and sums of whole numbers are exact. */
const MILLI = 1000;
/** Of the contract: `cpu` 2, `memory_gb` 1. */
const LEAST = { gpu: 'none', gpuCount: 0, cpu: 2, memoryGb: 1 } as const;

/** Thousandths of a vCPU, bytes, GPUs by model. */
type Amount = { cpu: number; memory: number; gpus: Readonly<Record<string, number>> };

/** What a job takes of a machine, which may be more than is free there. */
function needOf(machine: Machine, slots: number, wish: ResourceRequest): Amount {
  const cpu = machine.cpus * MILLI;
  const memory = machine.memoryBytes;
  return {
    cpu: part(wish.cpu * MILLI, cpu, slots, DEFAULT.cpu * MILLI),
    memory: part(wish.memoryGb * GIB, memory, slots, DEFAULT.memoryGb * GIB),
    gpus: wish.gpu === 'none' ? {} : { [wish.gpu]: wish.gpuCount },
  };
}

/** Whether many jobs share a resource of which one asks for so much. @param byDefault what a default job asks for */
function isShared(asked: number, there: number, byDefault: number): boolean {
  return asked > there || there < byDefault;
}

function part(asked: number, there: number, slots: number, byDefault: number): number {
  return isShared(asked, there, byDefault) ? Math.min(asked, Math.floor(there / slots)) : asked;
}

function isWhole(machine: Machine, wish: ResourceRequest): boolean {
  return wish.cpu <= machine.cpus && wish.memoryGb * GIB <= machine.memoryBytes;
}

function isSmall({ cpus, memoryBytes }: Machine): boolean {
  return cpus < DEFAULT.cpu || memoryBytes < DEFAULT.memoryGb * GIB;
}

function grantOn(machine: Machine, wish: ResourceRequest): Grant {
  return {
    machine: machine.id,
    // Whole numbers, as the attempt keeps them.
    cpus: Math.min(wish.cpu, Math.ceil(machine.cpus)),
    memoryBytes: Math.min(wish.memoryGb * GIB, Math.floor(machine.memoryBytes)),
    shared: isSmall(machine) || !isWhole(machine, wish),
  };
}

/** What is free on a machine, less than nothing where more is reserved than there is. */
class Room {
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

  need(wish: ResourceRequest): Amount {
    return needOf(this.machine, this.#slots, wish);
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

  /** How far it is from having room, in parts of the machine, by the resource that is farthest. */
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

function roomsOf(
  machines: readonly Machine[],
  slots: number,
  held: Iterable<Reservation>,
): Map<string, Room> {
  const rooms = new Map(machines.map((machine) => [machine.id, new Room(machine, slots)]));
  for (const holding of held) {
    const room = rooms.get(holding.machine);
    if (!room) continue;
    const { cpu, memory, gpus } = room.need(holding);
    // What is shared goes with the slot, which one that leaves gives up after ten seconds.
    const { cpus, memoryBytes } = room.machine;
    const gone = (asked: number, there: number, byDefault: number) =>
      holding.leaving && isShared(asked, there, byDefault);
    room.take({
      cpu: gone(holding.cpu, cpus, DEFAULT.cpu) ? 0 : cpu,
      memory: gone(holding.memoryGb * GIB, memoryBytes, DEFAULT.memoryGb * GIB) ? 0 : memory,
      gpus,
    });
  }
  return rooms;
}

/**
 * In which pools a job could start at all, before anybody looks who waits: GPU model, or `none`, → the most GPUs that a
 * job may ask for (0 for `none`). A pool whose GPUs are all held is left out.
 */
export function openPools(
  input: Pick<Input<Candidate>, 'machines' | 'slots' | 'held'>,
): Map<string, number> {
  const pools = new Map<string, number>();
  for (const room of roomsOf(input.machines, input.slots, input.held).values()) {
    const { machine } = room;
    // The least is the smallest job, or the share of one that asks for more than the machine.
    const beyond = room.need({ ...LEAST, cpu: Infinity, memoryGb: Infinity });
    const least = room.need(LEAST);
    const smallest = {
      cpu: Math.min(beyond.cpu, least.cpu),
      memory: Math.min(beyond.memory, least.memory),
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
 * Goes through the lines in turn, those with a reservation before them. `passedOver`: whether any job did not fit, so
 * that others may start that stand behind those given.
 */
export function admit<C extends Candidate>(
  input: Input<C>,
): { admitted: Admitted<C>[]; reservations: Reservations; passedOver: boolean } {
  const { machines, elsewhere, slots } = input;
  const imagesRun = runsImages([...machines, ...elsewhere]);
  const rooms = [...roomsOf(machines, slots, input.held).values()];
  const admitted: Admitted<C>[] = [];
  const reservations = new Map<string, string>();
  const seen = new Set<string>();
  let { slotsFree } = input;
  let passedOver = false;

  /** Where it may run: those that have it whole, if there are any, also of others. */
  function placesFor(job: C): Room[] {
    const wish = imagesRun ? job : { ...job, image: null };
    const able = rooms.filter(({ machine }) => hasGpus(machine, wish) && runs(machine, wish));
    const whole = able.filter(({ machine }) => isWhole(machine, wish));
    if (whole.length > 0) return whole;
    const isWholeOn = (m: WorkerCapacity) => hasGpus(m, wish) && runs(m, wish) && isWhole(m, wish);
    return elsewhere.some(isWholeOn) ? [] : able;
  }

  /** @returns whether it starts */
  function decide(job: C): boolean {
    seen.add(job.id);
    const places = placesFor(job).map((room) => ({ room, need: room.need(job) }));
    const [best] = places
      .filter(({ room, need }) => room.fits(need))
      .sort((a, b) => preference(a.room, job) - preference(b.room, job));
    if (best) {
      best.room.take(best.need);
      admitted.push({ job, grant: grantOn(best.room.machine, job) });
      slotsFree--;
      return true;
    }
    const withGpus = places.filter(({ room, need }) => room.fitsGpus(need));
    const kind = withGpus.length > 0 ? 'any' : job.gpu;
    const [nearest] = (withGpus.length > 0 ? withGpus : places).sort(
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

  /** It holds one more, and is the last now of those that hold as many; and this pool the last of the namespace. */
  function serve(namespaceId: string, served?: QueueLine<C>): void {
    turns++;
    for (const line of lines) {
      if (line.namespaceId !== namespaceId) continue;
      line.held++;
      line.turn = turns + (line === served ? 0.5 : 0);
    }
  }

  for (const job of input.reserved) if (slotsFree > 0 && decide(job)) serve(job.namespaceId);
  while (slotsFree > 0) {
    let first: (typeof lines)[number] | undefined;
    for (const line of lines) {
      if (line.next >= line.jobs.length) continue;
      if (!first || (line.held - first.held || line.turn - first.turn) < 0) first = line;
    }
    if (!first) break;
    const job = first.jobs[first.next++] as C;
    if (seen.has(job.id)) continue;
    if (decide(job)) serve(job.namespaceId, first);
    else passedOver = true;
  }
  return { admitted, reservations, passedOver };
}

/** The smallest is taken: machines without GPUs for jobs that need none, and of equals the one with most room. */
function preference({ machine, used }: Room, { gpu }: ResourceRequest): number {
  const hasGpu = gpu === 'none' && Object.keys(machine.gpus).length > 0;
  return used + (hasGpu ? 10 : 0);
}
