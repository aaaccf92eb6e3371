/**
 * The worker program of a joined machine: joins by a worker token, then runs the attempts that the server orders. It makes
 * outgoing requests only. Jobs outlive it, and the next start continues them.
 *
 *   node worker.mjs --server URL --data DIR [--token TOKEN] [--name NAME] [--join]
 *
 * Its folder, where the launcher (`install.sh`) finds the program:
 *   machine.json   the name and the secret of the machine
 *   attempts       the folders of attempts (`attempt.ts`)
 *   runner         the files of the process and Docker runners
 *   program        link to the version of this program that runs at the next start, in `programs`
 */
import './node-22.ts';
import { existsSync, realpathSync, statSync } from 'node:fs';
import { mkdir, readdir, rm } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { Backoff } from '../../base/backoff.ts';
import { type Config, ConfigError, readConfig } from '../../base/config/config.ts';
import { createLog, type Logger } from '../../base/log.ts';
import { listGpus } from '../gpus/gpus.ts';
import {
  type JoinAnswer,
  type MachineFacts,
  type MachineOrders,
  type MachineReport,
  REFUSED_EXIT,
  RESTART_EXIT,
} from '../machines/protocol.ts';
import { openRunner } from '../open.ts';
import type { Runner } from '../runner.ts';
import { takeClaim, writeJsonAtomically } from '../supervisor/claim.ts';
import { isAlive, readClaim, readJsonFile } from '../supervisor/folder.ts';
import { readBootId } from '../supervisor/proc.ts';
import { MachineAttempt } from './attempt.ts';
import { createLoadMeter, findFacts } from './facts.ts';
import { install, ownVersion } from './program.ts';
import { isAccepted, poll, requestJoin, ServerRefused } from './server.ts';

const MACHINE_FILE = 'machine.json';
/** Those of the command and of `install.sh`, which the shell of a user may have set. */
const OTHER_VARIABLES = new Set(['LOAM', 'LOAM_URL', 'LOAM_TOKEN', 'LOAM_CA']);
const PAUSES = { firstMs: 200, longestMs: 10_000 };

type Options = {
  server: string;
  data: string;
  token?: string | undefined;
  name?: string | undefined;
  /** Only joins. */
  join?: boolean | undefined;
};

/** Runs until a signal, or until the server refuses the machine. @returns the exit code */
export async function runWorker(options: Options, signal: AbortSignal): Promise<number> {
  const { server, data } = options;
  await mkdir(data, { recursive: true, mode: 0o700 });
  const known = await readJsonFile<JoinAnswer>(join(data, MACHINE_FILE));
  // The program may be running, as when this version is installed beside it.
  if (options.join && known && (await isAccepted(server, known))) return 0;
  await takeFolder(data);
  const own = Object.entries(process.env).filter(([name]) => !OTHER_VARIABLES.has(name));
  const config = readConfig({ ...Object.fromEntries(own), LOAM_DATA_DIR: join(data, 'runner') });
  // The installation shows what matters as text.
  const log = createLog(options.join ? 'silent' : config.logLevel);
  const say = options.join ? (text: string) => console.log(text) : (text: string) => log.warn(text);
  await mkdir(config.dataDir, { recursive: true, mode: 0o700 });
  await using cleanup = new AsyncDisposableStack();
  const runner = cleanup.use(await openRunner({ config, hidden: [data], log }));
  const slots = process.env.LOAM_JOB_SLOTS ? config.jobSlots : undefined;
  const gpus = await listGpus();
  const program = ownVersion().slice(0, 12);
  const findOwnFacts = () => findFacts(runner, { gpus, program, slots });
  const facts = findOwnFacts();
  const isNew = options.join || !known;
  const machine = isNew ? await joinServer(options, { facts, say, signal }) : known;
  if (!machine) return 0;
  for (const note of facts.notes) say(note);
  if (options.join) return 0;
  const { hardware } = config;
  const worker = new MachineWorker({ ...options, runner, machine, findOwnFacts, hardware, log });
  await worker.resume(signal);
  return await worker.run(signal);
}

/** @returns null when `signal` aborts */
async function joinServer(
  { server, data, token, name }: Options,
  { facts, say, signal }: { facts: MachineFacts; say(text: string): void; signal: AbortSignal },
): Promise<JoinAnswer | null> {
  if (token === undefined)
    throw new ConfigError(
      '--token: this machine needs a worker token, because it has not joined yet or was removed',
    );
  const backoff = new Backoff(PAUSES);
  while (!signal.aborted) {
    try {
      const machine = await requestJoin(server, {
        token,
        facts,
        ...(name !== undefined && { name }),
      });
      writeJsonAtomically(join(data, MACHINE_FILE), machine, data);
      say(`This machine has joined ${server} as "${machine.name}".`);
      return machine;
    } catch (error) {
      if (error instanceof ServerRefused) throw error;
      say(`${server} does not let this machine join yet: ${describe(error)}`);
      await backoff.pause(signal);
    }
  }
  return null;
}

/** The cause says more than the message of `fetch`. */
function describe(error: unknown): string {
  const { message, cause } = error as Error;
  return cause instanceof Error ? cause.message : message;
}

/** Another one after a restart of the machine, and for a copy of the folder. */
function readInstance(data: string): string {
  const { dev, ino } = statSync(data);
  return `${readBootId()}.${dev}.${ino}`;
}

/** Refuses a second program on the same folder. */
async function takeFolder(data: string): Promise<void> {
  const file = join(data, 'claim');
  const claim = await readClaim(file);
  if (claim && isAlive(claim)) throw new ConfigError(`--data: process ${claim.pid} uses ${data}`);
  await rm(file, { force: true });
  if (!takeClaim(file)) throw new ConfigError(`--data: another process uses ${data}`);
}

type Deps = Options & {
  runner: Runner;
  machine: JoinAnswer;
  findOwnFacts(): MachineFacts;
  /** Names the GPUs for the runner, as the server does. */
  hardware: Config['hardware'];
  log: Logger;
};

class MachineWorker {
  readonly #deps: Deps;
  readonly #attempts = new Map<string, MachineAttempt>();
  /** Their ids. */
  readonly #ids = new Set<string>();
  readonly #measureLoad = createLoadMeter();
  /** Aborts the open request when there is something to report. */
  #changed = new AbortController();
  #seen = '';

  constructor(deps: Deps) {
    this.#deps = deps;
  }

  get #dir(): string {
    return join(this.#deps.data, 'attempts');
  }

  /** Continues the attempts of the previous process. */
  async resume(signal: AbortSignal): Promise<void> {
    await mkdir(this.#dir, { recursive: true, mode: 0o700 });
    const ids = await readdir(this.#dir);
    const known = ids.filter((id) => existsSync(join(this.#dir, id, 'attempt.json')));
    // Killed while it created or removed them.
    for (const id of ids.filter((id) => !known.includes(id)))
      await rm(join(this.#dir, id), { recursive: true, force: true });
    for (const id of known) this.#add(id);
    void this.#sweep(signal);
  }

  /** Removes all other attempts, as soon as the container engine answers. Meanwhile the machine takes new ones. */
  async #sweep(signal: AbortSignal): Promise<void> {
    const { runner, log } = this.#deps;
    const backoff = new Backoff(PAUSES);
    while (!signal.aborted) {
      try {
        return await runner.sweep(this.#ids);
      } catch (error) {
        log.warn({ err: error }, 'Attempts of an earlier process cannot be removed yet');
        await backoff.pause(signal);
      }
    }
  }

  #add(id: string, token?: string): void {
    const { runner, server, machine, log } = this.#deps;
    const onChanged = () => this.#changed.abort();
    const deps = { runner, server, dir: this.#dir, machine: machine.name, log, onChanged };
    // Before anything of it is created, which a sweep would remove.
    this.#ids.add(id);
    const attempt = new MachineAttempt(deps, id, token);
    this.#attempts.set(id, attempt);
    void attempt.done.then(() => {
      this.#attempts.delete(id);
      this.#ids.delete(id);
      onChanged();
    });
  }

  /** @returns the exit code of the program */
  async run(signal: AbortSignal): Promise<number> {
    const { server, machine, data, hardware, log } = this.#deps;
    const instance = readInstance(data);
    const backoff = new Backoff(PAUSES);
    while (!signal.aborted) {
      this.#changed = new AbortController();
      const { signal: changed } = this.#changed;
      try {
        const report = await this.#buildReport();
        const count = [...this.#attempts.values()].filter(({ mayRun }) => mayRun).length;
        const sender = { ...machine, instance };
        const stop = AbortSignal.any([signal, changed]);
        const orders = await poll(server, sender, { report, count }, stop);
        backoff.reset();
        if (orders.models) hardware.replaceModels(orders.models);
        this.#apply(orders);
        if (
          orders.program !== ownVersion() &&
          (await install(orders.program, { server, data, log }))
        )
          return RESTART_EXIT;
      } catch (error) {
        if (signal.aborted || changed.aborted) continue;
        if (error instanceof ServerRefused) {
          log.error(`The server refuses this machine: ${error.message}`);
          await Promise.all([...this.#attempts.values()].map((attempt) => attempt.end()));
          return REFUSED_EXIT;
        }
        log.warn(`${server} does not answer (${describe(error)}); jobs go on`);
        await backoff.pause(signal);
      }
    }
    return 0;
  }

  async #buildReport(): Promise<MachineReport> {
    return {
      facts: this.#deps.findOwnFacts(),
      load: await this.#measureLoad(),
      attempts: Array.from(this.#attempts.values(), ({ report }) => report),
      seen: this.#seen,
      // The clock of the kernel, which also orders the reports of a restarted program, in microseconds.
      sequence: Number(process.hrtime.bigint() / 1_000n),
    };
  }

  #apply({ version, attempts }: MachineOrders): void {
    this.#seen = version;
    const wanted = new Map(attempts.map(({ id, token }) => [id, token]));
    for (const [id, attempt] of this.#attempts) if (!wanted.has(id)) void attempt.end();
    for (const [id, token] of wanted) if (!this.#attempts.has(id)) this.#add(id, token);
  }
}

// The launcher starts it by a link.
if (realpathSync(process.argv[1] ?? '') === import.meta.filename) {
  const { values } = parseArgs({
    options: {
      server: { type: 'string' },
      data: { type: 'string' },
      token: { type: 'string' },
      name: { type: 'string' },
      join: { type: 'boolean' },
    },
  });
  const stopping = new AbortController();
  // While it stops, this program may wait for programs whose handles do not keep it alive.
  setInterval(() => {}, 2 ** 30);
  for (const name of ['SIGTERM', 'SIGINT'] as const) process.on(name, () => stopping.abort());
  try {
    const { server, data, token, name, join: onlyJoins } = values;
    if (!server || !data) throw new ConfigError('--server and --data must be given');
    const url = server.replace(/\/+$/, '');
    process.exit(
      await runWorker(
        { server: url, data: resolve(data), token, name, join: onlyJoins },
        stopping.signal,
      ),
    );
  } catch (error) {
    const isExpected = error instanceof ConfigError || error instanceof ServerRefused;
    console.error(isExpected ? (error as Error).message : error);
    process.exit(1);
  }
}
