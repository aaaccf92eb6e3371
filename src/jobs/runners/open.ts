/** What runs the jobs of this server, by its configuration and by what this machine has. */
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { type Config, ConfigError } from '../../config.ts';
import type { Logger } from '../../log.ts';
import { composed } from './both.ts';
import { connect } from './docker/engine.ts';
import { openDockerRunner } from './docker/runner.ts';
import { type GpuLedger, openGpuLedger } from './gpu-ledger.ts';
import { openProcessRunner } from './process/runner.ts';
import type { Runner } from './runner.ts';

/** An engine that does not answer the start within this is taken to be away. */
const ANSWER_MS = 5_000;
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
 * for the others.
 * @throws ConfigError when what was asked for cannot be had
 */
export async function openRunner(options: Options): Promise<Runner & AsyncDisposable> {
  const { config, log } = options;
  if (config.runner === 'process') return openProcesses(options);
  const host = config.docker.host;
  const found = await engineAt(config);
  if (config.runner === 'docker') {
    if ('missing' in found)
      throw new ConfigError(
        `LOAM_RUNNER: docker was asked for, and no engine answers at ${host}: ${found.missing}`,
      );
    log.info(`All jobs run in containers: ${found.version} answers at ${host}`);
    return openContainers(options);
  }
  if ('missing' in found && !isExpected(config)) {
    log.info(
      `Jobs run as processes, and those with an image are refused: no container engine answers at ${host}`,
    );
    return openProcesses(options);
  }
  if ('missing' in found)
    log.warn(`Jobs in containers wait: no engine answers at ${host} yet (${found.missing})`);
  const others = config.defaultImage
    ? `in ${config.defaultImage} (LOAM_DEFAULT_IMAGE)`
    : 'as processes of this machine';
  if ('version' in found)
    log.info(
      `Jobs with an image run in containers: ${found.version} answers at ${host}. The others run ${others}.`,
    );
  await using cleanup = new AsyncDisposableStack();
  const gpus = await openGpuLedger();
  const docker = cleanup.use(await openContainers(options, gpus));
  const process = cleanup.use(await openProcesses(options, gpus));
  const inContainer = (image: string | null) => image !== null || config.defaultImage !== undefined;
  const runner = composed({ process, docker }, ({ image }) =>
    inContainer(image) ? 'docker' : 'process',
  );
  const owned = cleanup.move();
  return { ...runner, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}

/** Named by the operator, or used before: then it comes back. */
function isExpected({ docker, dataDir }: Config): boolean {
  const folder = containersOf(dataDir);
  return (
    docker.named || (existsSync(folder) && readdirSync(folder).some((name) => name[0] !== '.'))
  );
}

async function engineAt({ docker }: Config): Promise<{ version: string } | { missing: string }> {
  try {
    const { Version, Platform } = await connect(docker).call(
      (engine) => engine.version(),
      ANSWER_MS,
    );
    return { version: `${Platform?.Name || 'Docker'} ${Version}` };
  } catch (error) {
    return { missing: (error as Error).message };
  }
}

function openContainers({ config, log }: Options, gpus?: GpuLedger) {
  return openDockerRunner({
    dir: containersOf(config.dataDir),
    docker: config.docker,
    images: {
      allowed: config.images ?? null,
      fallback: config.defaultImage ?? DEFAULT_IMAGE,
      configFolder: config.docker.configFolder,
    },
    network: {
      mode: config.jobNetwork,
      prepared: config.containers.network,
      runtime: config.containers.runtime,
    },
    root: config.containers.root,
    gpus,
    diskFloor: config.diskFloor,
    uids: config.jobUids,
    log,
  });
}

function openProcesses({ config, hidden, log }: Options, gpus?: GpuLedger) {
  return openProcessRunner({
    dir: join(config.dataDir, 'attempts'),
    diskFloor: config.diskFloor,
    hidden,
    network: config.jobNetwork,
    uids: config.jobUids,
    gpus,
    log,
  });
}

/** Where the folders of containers lie. */
export function containersOf(dataDir: string): string {
  return join(dataDir, 'containers');
}
