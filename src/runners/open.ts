/** What runs the jobs of this server, by its configuration and by what this machine has. */
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { type Config, ConfigError } from '../base/config/config.ts';
import type { DockerConfig, EngineConfig } from '../base/config/docker.ts';
import type { Logger } from '../base/log.ts';
import type { DockerRunner } from './docker/runner.ts';
import { type GpuLedger, openGpuLedger } from './gpu-ledger.ts';
import { openProcessRunner } from './process/runner.ts';
import { type Handle, LOCAL, type Machine, type Runner, RunnerAway } from './runner.ts';

/** For `LOAM_RUNNER=docker`, where every job needs an image: git and the usual tools on Debian. */
const DEFAULT_IMAGE = 'buildpack-deps:bookworm-scm';

type Options = {
  config: Config;
  /** Folders that no job may see. */
  hidden: readonly string[];
  log: Logger;
};

/**
 * `auto` takes both kinds: containers for jobs that name an image (and for all, where there is a default image), processes
 * for the others. `docker` still looks after processes of an earlier start, until they have ended, and begins no other.
 * @throws ConfigError when what was asked for cannot be had
 */
export async function openRunner(options: Options): Promise<Runner & AsyncDisposable> {
  const { config, log } = options;
  if (config.runner === 'process') return openProcesses(options);
  await using cleanup = new AsyncDisposableStack();
  const hasProcesses = holdsAttempts(attemptsOf(config.dataDir));
  const gpus = await openGpuLedger();
  const engines = await Promise.allSettled(
    hasNoEngine(config) ? [] : enginesOf(config).map((engine) => openEngine(options, engine, gpus)),
  );
  for (const engine of engines) if (engine.status === 'fulfilled') cleanup.use(engine.value.runner);
  const failed = engines.find((engine) => engine.status === 'rejected');
  if (failed) throw failed.reason;
  const opened = engines.flatMap((engine) => (engine.status === 'fulfilled' ? [engine.value] : []));
  const away = opened.filter(({ runner }) => runner.engine.unavailableReason !== undefined);
  const answering = opened.filter((engine) => !away.includes(engine));
  for (const engine of answering) log.info(describeEngine(engine));

  if (config.runner === 'docker') {
    if (answering.length === 0)
      throw new ConfigError(
        `LOAM_RUNNER: docker was asked for, and no engine answers: ${away.map(reasonOf).join('; ')}`,
      );
    const others = hasProcesses ? ', but for those that an earlier start began as processes' : '';
    log.info(`All jobs run in containers${others}`);
  } else if (answering.length === 0 && !isExpected(config)) {
    log.info(
      `Jobs run as processes, and those with an image are refused: no container engine answers at ${config.docker.host}. Install Docker or Podman, or set DOCKER_HOST, and start again.`,
    );
    return openProcesses(options, gpus);
  } else {
    const others = config.defaultImage
      ? `in ${config.defaultImage} (LOAM_DEFAULT_IMAGE)`
      : 'as processes of this machine';
    log.info(`Jobs with an image run in containers. The others run ${others}.`);
  }
  for (const engine of away)
    log.warn(`An engine does not answer yet, and what needs it waits: ${reasonOf(engine)}`);

  const containers = Object.fromEntries(opened.map(({ kind, runner }) => [kind, runner]));
  const onMachine = (machine: string) =>
    opened.find(({ runner }) => runner.machines.some(({ id }) => id === machine))?.kind ?? null;
  const kinds =
    config.runner === 'auto' || hasProcesses
      ? { process: cleanup.use(await openProcesses(options, gpus)), ...containers }
      : containers;
  const runner = composed(config.runner, kinds, (hasImage, machine) => {
    const inContainer = config.runner === 'docker' || hasImage || config.defaultImage;
    if (inContainer) return onMachine(machine);
    return machine === LOCAL ? 'process' : null;
  });
  const owned = cleanup.move();
  return Object.assign(runner, { [Symbol.asyncDispose]: () => owned.disposeAsync() });
}

/** One with its kind of runner, which stands in its attempts: they are found again by it. */
type Opened = { kind: string; host: string; isEncrypted: boolean; runner: DockerRunner };

const KIND = 'docker';

function enginesOf({ docker, engines }: Config): (DockerConfig & Partial<EngineConfig>)[] {
  return engines ?? [docker];
}

function reasonOf({ host, runner }: Opened): string {
  return `${host} (${runner.engine.unavailableReason})`;
}

function describeEngine({ host, isEncrypted, runner }: Opened): string {
  const [machine] = runner.machines;
  const what = `${runner.engine.facts?.version} answers at ${host}`;
  if (machine?.id === LOCAL) return `${what}, on this machine`;
  const open = isEncrypted ? '' : '; WITHOUT TLS: who can reach it is root on its machine';
  return `${what}, on another machine, "${machine?.id}"${open}`;
}

/** Named by the operator, or by what an image is for, or used before: then it comes back. */
function isExpected({ docker, engines, defaultImage, dataDir }: Config): boolean {
  return (
    engines !== undefined ||
    docker.named ||
    defaultImage !== undefined ||
    holdsAttempts(containersOf(dataDir))
  );
}

/** What a runner keeps for itself there begins with a dot. */
function holdsAttempts(folder: string): boolean {
  return existsSync(folder) && readdirSync(folder).some((name) => name[0] !== '.');
}

/** Nobody has named one, and where they usually listen there is nothing. */
function hasNoEngine(config: Config): boolean {
  const [, socket] = /^unix:\/\/(.*)$/.exec(config.docker.host) ?? [];
  const isOptional = config.runner === 'auto' && !isExpected(config);
  return isOptional && socket !== undefined && !existsSync(socket);
}

async function openEngine(
  { config, log }: Options,
  engine: DockerConfig & Partial<EngineConfig>,
  gpusHere: GpuLedger,
): Promise<Opened> {
  const { name, network, gpus } = engine;
  const folder = containersOf(config.dataDir);
  // What speaks to engines takes memory that a server without one has no use for.
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
      prepared: network ?? config.containers.network,
      runtime: config.containers.runtime,
    },
    root: config.containers.root,
    gpus: gpusHere,
    remoteGpus: gpus,
    diskFloor: config.diskFloor,
    uids: config.jobUids,
    log,
  });
  return {
    kind: name === undefined ? KIND : `${KIND}:${name}`,
    host: engine.host,
    isEncrypted: isEncrypted(engine),
    runner,
  };
}

function openProcesses({ config, hidden, log }: Options, gpus?: GpuLedger) {
  return openProcessRunner({
    dir: attemptsOf(config.dataDir),
    diskFloor: config.diskFloor,
    hidden,
    // Of those that are to begin; it may be one that containers alone can have.
    network: config.runner === 'docker' ? undefined : config.jobNetwork,
    uids: config.jobUids,
    gpus,
    log,
  });
}

function attemptsOf(dataDir: string): string {
  return join(dataDir, 'attempts');
}

/** Where the folders of containers lie, unless their engine has a name. */
export function containersOf(dataDir: string): string {
  return join(dataDir, 'containers');
}

/**
 * Several runners as one: of several kinds on the same machine, and of several machines. `choose` says which one runs an
 * attempt, and its handle names it from then on.
 */
type Kinds = Readonly<Record<string, Runner>>;

/** Which runs a job on a machine, by whether it names an image; null: none does. */
type Choose = (hasImage: boolean, machine: string) => string | null;

/** @param name stands in an attempt that was claimed and is not prepared */
export function composed(name: string, kinds: Kinds, choose: Choose): Runner {
  const runners = Object.values(kinds);
  const warnings = runners.flatMap(({ warning }) => warning ?? []);
  // Handles of processes did not name it before there were others.
  const of = ({ runner = 'process' }: Handle): Runner => {
    const kind = kinds[String(runner)];
    if (!kind) throw new Error(`no runner of the kind "${runner}"`);
    return kind;
  };

  /** Each has its part of what is left, and all are tried. */
  async function all(step: (runner: Runner) => Promise<void>): Promise<void> {
    const ends = await Promise.allSettled(runners.map(step));
    const errors = ends.flatMap((end) => (end.status === 'rejected' ? [end.reason] : []));
    if (errors.length === 1) throw errors[0];
    if (errors.length > 1) throw new AggregateError(errors, errors.map(String).join('; '));
  }

  return {
    name,
    kinds: [...new Set([name, ...Object.keys(kinds)])],
    get machines() {
      const offered = joined(runners.flatMap(({ machines }) => machines)).map((machine) => ({
        ...machine,
        withImage: choose(true, machine.id) !== null,
        withoutImage: choose(false, machine.id) !== null,
      }));
      return offered.filter(({ withImage, withoutImage }) => withImage || withoutImage);
    },
    get engineAway() {
      return runners.some(({ engineAway }) => engineAway);
    },
    ...(warnings.length > 0 && { warning: warnings.join(' ') }),
    async prepare(spec, signal) {
      const runner = choose(spec.image !== null, spec.machine);
      // The machine was there when the job was given to it.
      if (runner === null) throw new RunnerAway(`the machine ${spec.machine} does not answer`);
      return { ...(await of({ runner }).prepare(spec, signal)), runner };
    },
    start: (handle, mayBegin) => of(handle).start(handle, mayBegin),
    attach: (handle) => of(handle).attach(handle),
    logs: (handle, cursor, signal) => of(handle).logs(handle, cursor, signal),
    signal: (handle, signal) => of(handle).signal(handle, signal),
    wait: (handle, signal) => of(handle).wait(handle, signal),
    stats: (handle) => of(handle).stats(handle),
    artifacts: (handle, path) => of(handle).artifacts(handle, path),
    remove: (handle) => all((runner) => runner.remove(handle)),
    sweep: (keep) => all((runner) => runner.sweep(keep)),
  };
}

/** A computer that several of them use is one, and all of them share its GPUs. */
function joined(machines: readonly Machine[]): Machine[] {
  const found = new Map<string, Machine>();
  for (const machine of machines) {
    const other = found.get(machine.id);
    found.set(machine.id, other ? { ...other, gpus: { ...machine.gpus, ...other.gpus } } : machine);
  }
  return [...found.values()];
}
