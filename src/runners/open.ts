/** Opens the runner of this server, which depends on its configuration and on the capabilities of this machine. */
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import type { OwnMachines } from '../base/config/clusters.ts';
import { type Config, ConfigError } from '../base/config/config.ts';
import type { DockerConfig, EngineConfig } from '../base/config/docker.ts';
import type { Logger } from '../base/log.ts';
import type { OpenedClusters } from './clusters.ts';
import type { DockerRunner } from './docker/runner.ts';
import { type GpuLedger, openGpuLedger } from './gpus/ledger.ts';
import type { MachinesEngine } from './machines/engine.ts';
import { JOINED_KIND } from './machines/protocol.ts';
import { openProcessRunner } from './process/runner.ts';
import {
  type Handle,
  LOCAL_MACHINE,
  listClusters,
  type Machine,
  NotExecutable,
  type Runner,
  RunnerUnavailable,
  usesWorkerSlots,
} from './runner.ts';
import { type LocalVolumes, openLocalVolumes } from './volumes.ts';

/** The image of jobs that name none, with `LOAM_RUNNER=docker`: Debian with git and common tools. */
const DEFAULT_IMAGE = 'buildpack-deps:bookworm-scm';

type Options = {
  config: Config;
  /** Folders that no job may see. */
  hidden: readonly string[];
  /**
   * For clusters and joined machines, whose agents send requests to this process; unset: there are none.
   * `url`: base URL at which the nodes of clusters reach this process, without a trailing slash. `worker`: id of this worker
   */
  agents?: { url: string; worker: string };
  log: Logger;
};

/** `agents` and `joined`: as of the option. */
export type OpenedRunner = Runner &
  AsyncDisposable & {
    agents?: Pick<OpenedClusters, 'findSession' | 'program'>;
    joined?: MachinesEngine;
  };

/** @throws ConfigError when a configured runner does not work here */
export async function openRunner(options: Options): Promise<OpenedRunner> {
  const { config, agents, hidden, log } = options;
  const { runner: mode, dataDir, hardware, jobNetwork: network, jobAllow: allow } = config;
  await using cleanup = new AsyncDisposableStack();
  const volumes = cleanup.use(await openLocalVolumes({ volumes: config.volumes, hidden, log }));
  const own =
    mode === 'none' ? null : await openOwnMachines({ ...options, volumes }, mode, cleanup);
  if (!agents) {
    const owned = cleanup.move();
    const runner = composeRunners(mode, own?.kinds ?? {}, own?.choose ?? (() => null), { volumes });
    return Object.assign(runner, { [Symbol.asyncDispose]: () => owned.disposeAsync() });
  }
  // Loaded on demand: the program of joined machines does without.
  const { openClusters } = await import('./clusters.ts');
  const { clusters = [], ownMachines, agentLeaseMinutes } = config;
  const { url: agentUrl, worker } = agents;
  const leaseMs = agentLeaseMinutes * 60_000;
  const opened = await openClusters(
    {
      clusters,
      dataDir,
      hardware,
      agentUrl,
      leaseMs,
      worker,
      network,
      allow,
      volumes: config.volumes,
      log,
    },
    cleanup,
  );
  const { runners, machines, joined, findSession, program } = opened;
  const names = Object.keys(runners);
  const pick = (some: readonly string[]) =>
    Object.fromEntries(Object.entries(runners).filter(([name]) => some.includes(name)));
  const { position = 0, regions } = ownMachines ?? {};
  const kinds = {
    ...pick(names.slice(0, position)),
    ...own?.kinds,
    ...pick(names.slice(position)),
    [JOINED_KIND]: machines,
  };
  const choose: Choose = (hasImage, machine) => {
    const cluster = runners[machine];
    const capacity = cluster ? cluster.machines[0] : joined.capacityOf(machine);
    if (!cluster && !capacity) return own?.choose(hasImage, machine) ?? null;
    const { withImage = true, withoutImage = true } = capacity ?? {};
    const kind = cluster ? machine : JOINED_KIND;
    return (hasImage ? withImage : withoutImage) ? kind : null;
  };
  const owned = cleanup.move();
  const name = config.clusters ? 'clusters' : mode;
  return Object.assign(composeRunners(name, kinds, choose, { regions, volumes }), {
    agents: { findSession, program },
    joined,
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  });
}

type OwnOptions = Options & { volumes: LocalVolumes };

type OpenedMachines = { kinds: Kinds; choose: Choose };

/**
 * `auto` uses containers for jobs with an image (for all jobs if there is a default image), and processes for other jobs.
 * `docker` starts no processes, but supervises processes that were started under another setting until they end.
 * @throws ConfigError when the configured runner does not work here
 */
async function openOwnMachines(
  options: OwnOptions,
  mode: OwnMachines['runner'],
  cleanup: AsyncDisposableStack,
): Promise<OpenedMachines> {
  const { config, log, agents } = options;
  const { hardware } = config;
  // On a joined machine, the catalogue is that of the server.
  const gpus = await openGpuLedger({ hardware, ...(agents && { log }) });
  const onlyProcesses = async (): Promise<OpenedMachines> => {
    const processes = cleanup.use(await openProcesses(options, gpus));
    const choose: Choose = (hasImage, machine) =>
      machine === LOCAL_MACHINE && !hasImage ? 'process' : null;
    return { kinds: { process: processes }, choose };
  };
  if (mode === 'process') return onlyProcesses();
  const hasProcessAttempts = containsAttempts(processAttemptsDir(config.dataDir));
  const engines = await Promise.allSettled(
    skipsEngines(config)
      ? []
      : configuredEngines(config).map((engine) => openEngine(options, engine, gpus)),
  );
  for (const engine of engines) if (engine.status === 'fulfilled') cleanup.use(engine.value.runner);
  const failed = engines.find((engine) => engine.status === 'rejected');
  if (failed) throw failed.reason;
  const opened = engines.flatMap((engine) => (engine.status === 'fulfilled' ? [engine.value] : []));
  const unavailable = opened.filter(({ runner }) => runner.engine.unavailableReason !== undefined);
  const answering = opened.filter((engine) => !unavailable.includes(engine));
  for (const engine of answering) log.info(describeEngine(engine));

  if (mode === 'docker') {
    if (answering.length === 0)
      throw new ConfigError(
        `LOAM_RUNNER: docker requires a container engine, and none answers: ${unavailable.map(describeFailure).join('; ')}`,
      );
    const exception = hasProcessAttempts
      ? ', except jobs that already run as processes from before a restart'
      : '';
    log.info(`All jobs run in containers${exception}`);
  } else if (answering.length === 0 && !isEngineExpected(config)) {
    log.info(
      `Jobs run as processes, and jobs with an image are refused: no container engine answers at ${config.docker.host}. Install Docker or Podman, or set DOCKER_HOST, and start again.`,
    );
    return onlyProcesses();
  } else {
    const others = config.defaultImage
      ? `in ${config.defaultImage} (LOAM_DEFAULT_IMAGE)`
      : 'as processes of this machine';
    log.info(`Jobs with an image run in containers. The others run ${others}.`);
  }
  for (const engine of unavailable)
    log.warn(
      `A container engine does not answer yet; jobs that need it wait: ${describeFailure(engine)}`,
    );

  const containers = Object.fromEntries(opened.map(({ kind, runner }) => [kind, runner]));
  const onMachine = (machine: string) =>
    opened.find(({ runner }) => runner.machines.some(({ id }) => id === machine))?.kind ?? null;
  const kinds =
    mode === 'auto' || hasProcessAttempts
      ? { process: cleanup.use(await openProcesses(options, gpus)), ...containers }
      : containers;
  const choose: Choose = (hasImage, machine) => {
    const inContainer = mode === 'docker' || hasImage || config.defaultImage;
    if (inContainer) return onMachine(machine);
    return machine === LOCAL_MACHINE ? 'process' : null;
  };
  return { kinds, choose };
}

/** `kind` is stored with attempts, so that they are found again. */
type OpenedEngine = { kind: string; host: string; isEncrypted: boolean; runner: DockerRunner };

const DOCKER_KIND = 'docker';

function configuredEngines({ docker, engines }: Config): (DockerConfig & Partial<EngineConfig>)[] {
  return engines ?? [docker];
}

function describeFailure({ host, runner }: OpenedEngine): string {
  return `${host} (${runner.engine.unavailableReason})`;
}

function describeEngine({ host, isEncrypted, runner }: OpenedEngine): string {
  const [machine] = runner.machines;
  const answer = `${runner.engine.facts?.version} answers at ${host}`;
  if (machine?.id === LOCAL_MACHINE) return `${answer}, on this machine`;
  const risk = isEncrypted
    ? ''
    : '; WITHOUT TLS: whoever can reach it has root access to its machine';
  return `${answer}, on another machine, "${machine?.id}"${risk}`;
}

/** An engine is expected when it is configured, when there is a default image, or when it has run attempts before. */
function isEngineExpected({ docker, engines, defaultImage, dataDir }: Config): boolean {
  return (
    engines !== undefined ||
    docker.named ||
    defaultImage !== undefined ||
    containsAttempts(containerAttemptsDir(dataDir))
  );
}

/** Names that begin with a dot belong to files of the runner itself. */
function containsAttempts(folder: string): boolean {
  return existsSync(folder) && readdirSync(folder).some((name) => name[0] !== '.');
}

/** True when no engine is configured and the default socket does not exist. */
function skipsEngines(config: Config): boolean {
  const [, socket] = /^unix:\/\/(.*)$/.exec(config.docker.host) ?? [];
  const isOptional = config.runner === 'auto' && !isEngineExpected(config);
  return isOptional && socket !== undefined && !existsSync(socket);
}

async function openEngine(
  { config, volumes, log }: OwnOptions,
  engine: DockerConfig & Partial<EngineConfig>,
  gpusHere: GpuLedger,
): Promise<OpenedEngine> {
  const { name, network, gpus } = engine;
  const folder = containerAttemptsDir(config.dataDir);
  // Loaded on demand, to save memory on servers without engines.
  const [{ openDockerRunner }, { isEncrypted }] = await Promise.all([
    import('./docker/runner.ts'),
    import('./docker/engine.ts'),
  ]);
  const runner = await openDockerRunner({
    dir: name === undefined ? folder : join(config.dataDir, 'engines', name),
    docker: engine,
    engine: name,
    images: {
      allowed: config.images ?? null,
      fallback: config.defaultImage ?? DEFAULT_IMAGE,
      configFolder: engine.configFolder,
    },
    network: {
      mode: config.jobNetwork,
      allow: config.jobAllow,
      prepared: network ?? config.containers.network,
      runtime: config.containers.runtime,
    },
    root: config.containers.root,
    gpus: gpusHere,
    remoteGpus: gpus,
    diskFloor: config.diskFloor,
    uids: config.jobUids,
    volumes,
    log,
  });
  return {
    kind: name === undefined ? DOCKER_KIND : `${DOCKER_KIND}:${name}`,
    host: engine.host,
    isEncrypted: isEncrypted(engine),
    runner,
  };
}

function openProcesses({ config, hidden, volumes, log }: OwnOptions, gpus: GpuLedger) {
  return openProcessRunner({
    dir: processAttemptsDir(config.dataDir),
    diskFloor: config.diskFloor,
    hidden,
    // With `docker` no process is started, and the configured network may work only for containers.
    network: config.runner === 'docker' ? undefined : config.jobNetwork,
    allow: config.jobAllow,
    uids: config.jobUids,
    gpus,
    volumes,
    log,
  });
}

function processAttemptsDir(dataDir: string): string {
  return join(dataDir, 'attempts');
}

/** Contains the folders of container attempts on an engine without a name. */
function containerAttemptsDir(dataDir: string): string {
  return join(dataDir, 'containers');
}

/**
 * Several runners that are combined into one: of several kinds on the same machine, or of several machines. `choose` selects
 * the runner of an attempt, and the attempt's handle then stores its kind.
 */
type Kinds = Readonly<Record<string, Runner>>;

/** Selects the kind of runner for a job on a machine; null: none can run it. */
type Choose = (hasImage: boolean, machine: string) => string | null;

/**
 * @param name is stored with attempts that are claimed but not prepared
 * @param own.regions the regions of machines that are not clusters; unset: all
 * @param own.volumes those of this machine; unset: none
 */
export function composeRunners(
  name: string,
  kinds: Kinds,
  choose: Choose,
  own: { regions?: readonly string[] | undefined; volumes?: Pick<LocalVolumes, 'names'> } = {},
): Runner {
  const { regions } = own;
  const runners = Object.values(kinds);
  const warnings = runners.flatMap(({ warning }) => warning ?? []);
  // Handles without a kind belong to processes. They come from a runner that was not combined with others.
  const runnerOf = ({ runner = 'process' }: Handle): Runner => {
    const kind = kinds[String(runner)];
    if (!kind) throw new Error(`no runner of the kind "${runner}"`);
    return kind;
  };

  /** Runs the step on each runner, and reports the errors after all have been tried. */
  async function forEachRunner(step: (runner: Runner) => Promise<void>): Promise<void> {
    const ends = await Promise.allSettled(runners.map(step));
    const errors = ends.flatMap((end) => (end.status === 'rejected' ? [end.reason] : []));
    if (errors.length === 1) throw errors[0];
    if (errors.length > 1) throw new AggregateError(errors, errors.map(String).join('; '));
  }

  return {
    name,
    kinds: [...new Set([name, ...Object.keys(kinds)])],
    get machines() {
      const offered = mergeMachines(runners.flatMap(({ machines }) => machines)).map((machine) => ({
        ...machine,
        ...(regions && usesWorkerSlots(machine) && { regions }),
        ...(own.volumes && machine.id === LOCAL_MACHINE && { volumes: own.volumes.names }),
        withImage: choose(true, machine.id) !== null,
        withoutImage: choose(false, machine.id) !== null,
      }));
      return offered.filter(({ withImage, withoutImage }) => withImage || withoutImage);
    },
    get clusters() {
      return runners.flatMap(listClusters);
    },
    get hasUnavailableEngine() {
      return runners.some(({ hasUnavailableEngine }) => hasUnavailableEngine);
    },
    ...(warnings.length > 0 && { warning: warnings.join(' ') }),
    async prepare(spec, signal) {
      // A machine that answers says itself why it cannot run the job, unless its engine may return.
      const isEngineAway = runners.some(({ hasUnavailableEngine }) => hasUnavailableEngine);
      const isAnswering = ({ machines }: Runner) =>
        machines.some(
          (machine) => machine.id === spec.machine && !(usesWorkerSlots(machine) && isEngineAway),
        );
      const answering = () => Object.keys(kinds).find((kind) => isAnswering(kinds[kind] as Runner));
      const runner = choose(spec.image !== null, spec.machine) ?? answering() ?? null;
      // The machine answered when the job was assigned to it.
      if (runner === null)
        throw new RunnerUnavailable(`the machine ${spec.machine} does not answer`);
      return { ...(await runnerOf({ runner }).prepare(spec, signal)), runner };
    },
    start(handle, mayBegin, options) {
      const { runner = 'process' } = handle;
      const mayBeginAt = mayBegin && ((at?: Handle) => mayBegin(at && { ...at, runner }));
      return runnerOf(handle).start(handle, mayBeginAt, options);
    },
    attach: (handle) => runnerOf(handle).attach(handle),
    logs: (handle, cursor, signal) => runnerOf(handle).logs(handle, cursor, signal),
    renewLease: (handle, renewedAt) => runnerOf(handle).renewLease?.(handle, renewedAt),
    signal: (handle, signal) => runnerOf(handle).signal(handle, signal),
    wait: (handle, ...rest) => runnerOf(handle).wait(handle, ...rest),
    replaceFiles: (handle, files) => runnerOf(handle).replaceFiles(handle, files),
    exec: async (handle, spec) => {
      const runner = runnerOf(handle);
      if (!runner.exec) throw new NotExecutable('Jobs on this kind of machine have no shell yet.');
      return runner.exec(handle, spec);
    },
    stats: (handle) => runnerOf(handle).stats(handle),
    artifacts: (handle, ...args) => runnerOf(handle).artifacts(handle, ...args),
    remove: (handle) => forEachRunner((runner) => runner.remove(handle)),
    sweep: (keep) => forEachRunner((runner) => runner.sweep(keep)),
  };
}

/** A machine that several runners use is listed once. They share its GPUs. */
function mergeMachines(machines: readonly Machine[]): Machine[] {
  const found = new Map<string, Machine>();
  for (const machine of machines) {
    const other = found.get(machine.id);
    found.set(machine.id, other ? { ...other, gpus: { ...machine.gpus, ...other.gpus } } : machine);
  }
  return [...found.values()];
}
