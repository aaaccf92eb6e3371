/**
 * The joined machines that this worker drives, as an engine of the agent runner (`../agent/runner.ts`). Loam itself places
 * attempts on them. A machine asks for its orders with a request that stays open (`protocol.ts`); the routes are in
 * `jobs/machines/http.ts`. Nothing is stored here: what a restarted worker needs is in the folders of attempts and in the reports.
 */
import { randomUUID } from 'node:crypto';
import { EventEmitter, once } from 'node:events';
import { uptime } from 'node:os';
import { isDeepStrictEqual } from 'node:util';
import { busy } from '../../base/errors.ts';
import { type Catalogue, modelOf } from '../../base/hardware.ts';
import type {
  Capacity,
  ClusterEngine,
  EngineState,
  Placement,
  Submission,
} from '../agent/engine.ts';
import type { ClusterState, Machine } from '../runner.ts';
import {
  type MachineFacts,
  type MachineOrders,
  type MachineReport,
  POLL_MS,
  SILENCE_MS,
} from './protocol.ts';

/** What the database says about a machine. */
export type MachineSettings = {
  id: string;
  /** When the machine was removed, another one may get its name. */
  name: string;
  namespaceId: string | null;
  /** Empty: all. */
  regions: readonly string[];
  /** The boot and the folder of the program that reports for the machine. */
  instance: string;
  facts: MachineFacts;
  /** Set: the machine gets no attempts. */
  drainSince: Date | null;
  /** When its attempts are moved to other machines. */
  drainDeadline: Date | null;
};

type KnownMachine = {
  readonly id: string;
  readonly name: string;
  /** Unset for a machine that is only known by its attempts. */
  settings?: MachineSettings;
  /** Unset until the machine has reported to this process. */
  reported?: {
    /** Those of its attempts that it was given here. */
    attempts: ReadonlyMap<string, MachineReport['attempts'][number]>;
    /** Whether it has other attempts. */
    hasOthers: boolean;
    /** The version of the orders that it has seen; -1: none of this process. */
    seen: number;
    sequence: number;
    /** Seconds of the clock that runs while this machine is suspended. */
    at: number;
  };
  /** Its GPUs by model, as the catalogue names them. */
  counted?: { catalogue: Catalogue; gpus: MachineFacts['gpus']; models: Record<string, number> };
  /** How many requests of the machine are open: more than one for a moment, after a connection has broken. */
  polls: number;
  /** The number of the latest request, which ends earlier ones. */
  lastPoll: number;
  /** Attempts that the machine shall have. */
  readonly wanted: Map<string, { token: string }>;
  isRemoved: boolean;
  /**
   * Attempts that were taken from it, because it was drained, and that nobody has removed yet, with the first version of the
   * orders without them.
   */
  readonly moved: Map<string, number>;
  version: number;
};

/** A machine without an open request gets no attempts after this time: its program restarts, or its network has failed. */
const ABSENCE_MS = 5_000;
/** How long a machine may send the last files of its jobs after the deadline of a drain. */
const LEAVING_MS = 5 * 60_000;
const DRAINED = 'the machine was drained';
const REMOVED = 'the machine was removed';

export class MachinesEngine implements ClusterEngine, Placement {
  readonly title = 'The machine';
  readonly #program: string;
  readonly #hardware: { readonly current: Catalogue };
  /** By id. */
  readonly #machines = new Map<string, KnownMachine>();
  /** Attempt → its machine. */
  readonly #places = new Map<string, KnownMachine>();
  /** Distinguishes the versions of this process from those of the previous one. */
  readonly #epoch = randomUUID();
  readonly #changes = new EventEmitter().setMaxListeners(0);
  readonly #closing = new AbortController();

  /**
   * @param submitted the attempts of the previous process
   * @param options.program version of the program for machines that this server has
   * @param options.hardware names the models of GPUs
   */
  constructor(
    submitted: readonly Submission[],
    options: { program: string; hardware: { readonly current: Catalogue } },
  ) {
    this.#program = options.program;
    this.#hardware = options.hardware;
    for (const submission of submitted) this.#want(submission);
  }

  get machines(): readonly Machine[] {
    return [...this.#machines.values()].flatMap((machine) => {
      const capacity = this.#capacityOf(machine);
      if (!capacity || whyUnavailable(machine) !== undefined) return [];
      return [{ ...capacity, ...describePlace(machine) }];
    });
  }

  get clusters(): readonly ClusterState[] {
    return [...this.#machines.values()].map((machine) => ({
      ...describePlace(machine),
      unavailableReason: whyUnavailable(machine),
    }));
  }

  capacityOf(name: string): Capacity | undefined {
    return this.#capacityOf(this.#find(name));
  }

  idOf(name: string): string | undefined {
    return this.#find(name)?.id;
  }

  #find(name: string): KnownMachine | undefined {
    return this.#machines
      .values()
      .find((machine) => machine.name === name && machine.settings && !machine.isRemoved);
  }

  #capacityOf(machine: KnownMachine | undefined): Capacity | undefined {
    const facts = machine?.settings?.facts;
    if (!machine || !facts) return undefined;
    const { cpus, memoryBytes, withImage, withoutImage, volumes = [], os, arch } = facts;
    const gpus = this.#countGpus(machine, facts);
    const platform = { os, arch };
    return { cpus, memoryBytes, gpus, withImage, withoutImage, volumes, platform };
  }

  /** @returns model → number. Kept, because each claim asks for it, and finding the models takes milliseconds */
  #countGpus(machine: KnownMachine, { gpus }: MachineFacts): Readonly<Record<string, number>> {
    const catalogue = this.#hardware.current;
    const { counted } = machine;
    if (counted?.catalogue === catalogue && isDeepStrictEqual(counted.gpus, gpus)) {
      // The next comparison is then one of references.
      counted.gpus = gpus;
      return counted.models;
    }
    const models: Record<string, number> = {};
    for (const gpu of gpus) {
      const model = modelOf(catalogue, gpu);
      models[model] = (models[model] ?? 0) + 1;
    }
    machine.counted = { catalogue, gpus, models };
    return models;
  }

  /** Whether the machine has reported to this process, and neither was removed nor has another driver. */
  drives(id: string): boolean {
    const machine = this.#machines.get(id);
    return machine?.reported !== undefined && !machine.isRemoved;
  }

  /**
   * Takes the report of a machine, and waits until its orders are others than those that it has seen, or until it sends another
   * report.
   * @param signal aborts when the machine has closed the request
   * @throws AppError 503 for a report that is older than the last one, or when the machine was removed meanwhile
   */
  async poll(
    settings: MachineSettings,
    { seen, sequence, attempts }: Omit<MachineReport, 'load'>,
    signal: AbortSignal,
  ): Promise<MachineOrders> {
    const machine = this.#machine(settings.id, settings.name);
    // It was on its way for longer, and says what was true before.
    const last = machine.reported;
    const { facts, instance } = settings;
    if (last && machine.settings?.instance === instance && last.sequence > sequence)
      throw busy('A later report of this machine has arrived');
    const own = attempts.filter(({ id }) => this.#places.get(id) === machine);
    machine.reported = {
      // It may report anything: others must not take memory here.
      attempts: new Map(own.map((attempt) => [attempt.id, attempt])),
      hasOthers: own.length < attempts.length,
      seen: this.#readVersion(seen),
      sequence,
      at: uptime(),
    };
    // Those of `update` are as new as those that were read for this request, or newer.
    const known = machine.isRemoved ? undefined : machine.settings;
    machine.settings = { ...(known ?? settings), facts, instance };
    machine.isRemoved = false;
    this.#moveAttempts(machine);
    this.#changes.emit(machine.id);
    const poll = ++machine.lastPoll;
    this.#changes.emit(`${machine.id} orders`);
    const over = AbortSignal.any([signal, this.#closing.signal, AbortSignal.timeout(POLL_MS)]);
    machine.polls++;
    while (seen === this.#versionOf(machine) && poll === machine.lastPoll && !over.aborted)
      await once(this.#changes, `${machine.id} orders`, { signal: over }).catch(() => {});
    machine.polls--;
    if (machine.isRemoved) throw busy('This process does not drive the machine any more');
    // The open connection shows that the machine lives.
    if (machine.reported && !signal.aborted) machine.reported.at = uptime();
    return {
      version: this.#versionOf(machine),
      program: this.#program,
      models: this.#hardware.current.gpus.map(({ name, match }) => ({ name, match })),
      attempts: Array.from(machine.wanted, ([id, { token }]) => ({ id, token })),
    };
  }

  /**
   * Takes the settings of all machines that this worker drives: before it claims jobs, and for example after one was drained. The
   * attempts of a machine that is not among them are lost: it was removed, or had none of ours when another worker took it over.
   */
  update(driven: readonly MachineSettings[]): void {
    for (const settings of driven) {
      const machine = this.#machine(settings.id, settings.name);
      machine.settings = settings;
      machine.isRemoved = false;
      this.#moveAttempts(machine);
    }
    const ids = new Set(driven.map(({ id }) => id));
    for (const machine of this.#machines.values()) {
      if (ids.has(machine.id)) continue;
      machine.isRemoved = true;
      this.#orderAnew(machine);
      if (machine.wanted.size === 0 && machine.moved.size === 0) this.#machines.delete(machine.id);
    }
  }

  /**
   * At the deadline of a drain, the attempts get SIGTERM and are queued again. Those that have not left some minutes later are
   * taken away.
   */
  #moveAttempts(machine: KnownMachine): void {
    const deadline = findPastDeadline(machine);
    if (!deadline || machine.wanted.size === 0) return;
    this.#changes.emit(machine.id);
    if (deadline.getTime() + LEAVING_MS > Date.now()) return;
    const version = machine.version + 1;
    for (const id of machine.wanted.keys()) machine.moved.set(id, version);
    machine.wanted.clear();
    this.#orderAnew(machine);
  }

  async submit(submission: Submission): Promise<void> {
    if (this.#places.has(submission.attempt)) return;
    this.#orderAnew(this.#want(submission));
  }

  #want({ attempt, machine: name, machineId, agent: { token } }: Submission): KnownMachine {
    const machine = this.#machine(machineId ?? '', name);
    machine.wanted.set(attempt, { token });
    this.#places.set(attempt, machine);
    return machine;
  }

  #machine(id: string, name: string): KnownMachine {
    const known = this.#machines.get(id);
    if (known) return known;
    const machine: KnownMachine = {
      id,
      name,
      wanted: new Map(),
      moved: new Map(),
      isRemoved: false,
      polls: 0,
      lastPoll: 0,
      version: 0,
    };
    this.#machines.set(id, machine);
    return machine;
  }

  /** @returns the version of the new orders */
  #orderAnew(machine: KnownMachine): number {
    machine.version++;
    this.#changes.emit(`${machine.id} orders`);
    this.#changes.emit(machine.id);
    return machine.version;
  }

  #versionOf({ version }: KnownMachine): string {
    return `${this.#epoch}.${version}`;
  }

  #readVersion(text: string): number {
    const [epoch, version] = text.split('.');
    return epoch === this.#epoch ? Number(version) : -1;
  }

  state(attempt: string): EngineState {
    const machine = this.#places.get(attempt);
    if (machine?.isRemoved) return movedAway(REMOVED);
    if (!machine?.reported || isSilent(machine)) return { kind: 'unknown' };
    const held = machine.reported.attempts.get(attempt);
    if (held?.refused !== undefined) return { kind: 'refused', reason: held.refused };
    if (held?.lost !== undefined) return { kind: 'ended', end: { ...LOSS, reason: held.lost } };
    const moved = machine.moved.get(attempt);
    if (moved !== undefined && hasLeft(machine, attempt, moved)) return movedAway(DRAINED);
    const since = findPastDeadline(machine);
    const leaving = since && { since, reason: DRAINED };
    return { kind: 'running', progress: held?.progress, leaving };
  }

  async nextChange(attempt: string, signal: AbortSignal): Promise<void> {
    const machine = this.#places.get(attempt);
    await once(this.#changes, machine?.id ?? '', { signal }).catch(() => {});
  }

  describe(attempt: string) {
    const machine = this.#places.get(attempt);
    return machine && { node: machine.name, inspect: `loam machines show ${machine.name}` };
  }

  /**
   * Resolves when the machine reports that nothing of the attempt is left, so that its GPUs are free. A silent machine ends it
   * when it returns, before it gets other attempts.
   */
  async remove(attempt: string): Promise<void> {
    const machine = this.#places.get(attempt);
    if (!machine) return;
    const version = machine.wanted.delete(attempt)
      ? this.#orderAnew(machine)
      : (machine.moved.get(attempt) ?? 0);
    const { signal } = this.#closing;
    while (!hasLeft(machine, attempt, version) && !isSilent(machine) && !machine.isRemoved) {
      const over = AbortSignal.any([signal, AbortSignal.timeout(POLL_MS)]);
      await once(this.#changes, machine.id, { signal: over }).catch(() => {});
      signal.throwIfAborted();
    }
    machine.moved.delete(attempt);
    this.#places.delete(attempt);
  }

  isRevoked(attempt: string): boolean {
    return this.#places.get(attempt)?.isRemoved === true;
  }

  async list(): Promise<string[]> {
    return [...this.#places.keys()];
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closing.abort();
  }
}

/** The deadline of the drain of a machine, if it has passed. */
function findPastDeadline({ settings }: KnownMachine): Date | undefined {
  const deadline = settings?.drainDeadline;
  return deadline && deadline.getTime() <= Date.now() ? deadline : undefined;
}

/** Milliseconds since the last sign of the machine. */
function silentMs({ reported }: KnownMachine): number {
  return reported ? (uptime() - reported.at) * 1_000 : Number.POSITIVE_INFINITY;
}

function isSilent(machine: KnownMachine): boolean {
  return silentMs(machine) > SILENCE_MS;
}

/**
 * Whether nothing of the attempt is left on the machine: it reports the attempt until then.
 * @param version the first version of its orders without the attempt. Before it has seen them, it may not have begun with it yet
 */
function hasLeft({ reported }: KnownMachine, attempt: string, version: number): boolean {
  return reported !== undefined && reported.seen >= version && !reported.attempts.has(attempt);
}

function describePlace({ name, settings }: KnownMachine) {
  const { regions = [], namespaceId, facts } = settings ?? {};
  return {
    id: name,
    slots: facts?.slots ?? 0,
    ...(regions.length > 0 && { regions }),
    ...(namespaceId && { namespaceId }),
  };
}

/** Why the machine gets no attempts now. */
function whyUnavailable(machine: KnownMachine): string | undefined {
  const { settings, reported } = machine;
  if (machine.isRemoved) return 'it was removed';
  if (!settings || !reported) return 'it has not reported yet';
  if (machine.polls === 0 && silentMs(machine) > ABSENCE_MS) return 'it does not report';
  if (settings.drainSince) return 'it is being drained';
  // Nothing here counts what they use.
  return reported.hasOthers ? 'it has not ended the attempts that were removed' : undefined;
}

const LOSS = { exitCode: null, outOfMemory: false, isLoss: true } as const;

function movedAway(reason: string): EngineState {
  return { kind: 'ended', end: { ...LOSS, isMove: true, reason } };
}
