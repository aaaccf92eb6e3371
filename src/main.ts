import { setTimeout as delay } from 'node:timers/promises';
import { type App, createApp, createWorker } from './app.ts';
import { type Config, ConfigError, readConfig } from './base/config/config.ts';
import { eraseSecrets } from './base/config/environment.ts';
import { createLog } from './base/log.ts';
import { retryStartup } from './platform/database/startup-retry.ts';
import { freeStartupMemory, unsetMallocThreshold } from './start-memory.ts';

/**
 * A terminal sends Ctrl-C to npm and to us, and npm forwards its own signal to us, so one key press arrives twice within
 * milliseconds. A deliberate second Ctrl-C comes later than this.
 */
const SAME_SIGNAL_MS = 500;

/** How long startup continues after a signal: it may wait for migrations of another server, or for database recovery. */
const STARTUP_GRACE_MS = 5_000;

// Registered first: a signal during startup would end the process without stopping the parts that were started.
const stopped = stopSignal();
try {
  const config = readConfig();
  eraseSecrets();
  if (config.hardware.hasFile || config.volumes.hasFile)
    process.on('SIGHUP', () => reloadFiles(config));
  unsetMallocThreshold();
  const starting = retryStartup(() => start(config), { report: console.error });
  const aborted = stopped.then(async () => {
    await delay(STARTUP_GRACE_MS);
    throw new ConfigError('Stopped before the start was done');
  });
  aborted.catch(() => {});
  await using app = await Promise.race([starting, aborted]);
  using _giving = freeStartupMemory();
  await Promise.race([app.failed, stopped]);
} catch (error) {
  console.error(error instanceof ConfigError ? error.message : error);
  process.exitCode = 1;
}
// Handles that a dependency keeps open must not keep a stopped server alive.
process.exit();

/** Resolves on SIGTERM or Ctrl-C; a second signal ends the process at once. */
function stopSignal(): Promise<void> {
  return new Promise((resolve) => {
    let first: number | undefined;
    for (const name of ['SIGTERM', 'SIGINT'] as const) {
      process.on(name, () => {
        first ??= performance.now();
        if (performance.now() - first > SAME_SIGNAL_MS) process.exit(1);
        resolve();
      });
    }
  });
}

function reloadFiles({ hardware, volumes, logLevel }: Config): void {
  const log = createLog(logLevel);
  for (const [name, file] of [
    ['LOAM_HARDWARE', hardware] as const,
    ['LOAM_VOLUMES', volumes] as const,
  ]) {
    if (!file.hasFile) continue;
    try {
      file.reload();
      log.info(`Read ${name} again`);
    } catch (error) {
      log.error(`${name} stays as it was: ${(error as Error).message}`);
    }
  }
}

async function start(config: Config): Promise<Pick<App, 'failed' | typeof Symbol.asyncDispose>> {
  if (config.role === 'work') {
    const worker = await createWorker(config);
    console.log(`Loam is ready to run jobs; ${worker.address}/readyz says whether it still is`);
    return worker;
  }
  const app = await createApp(config);
  printWelcome(app, config);
  return app;
}

function printWelcome({ services, ssh, firstToken, firstLink }: App, { admin }: Config): void {
  const { base } = services.urls;
  const keys = ssh?.hostKeys.map(({ type, fingerprint }) => `${fingerprint} (${type})`);
  const overSsh = keys ? `\nGit over SSH: ${services.urls.ssh}, host keys ${keys.join(', ')}` : '';
  const ready = `Loam is ready at ${base}  (GraphQL: ${base}/graphql, REST: ${base}/docs/api, documentation: ${base}/docs)${overSsh}`;
  const call = 'curl -H "Authorization: Bearer $LOAM_TOKEN"';
  const first = `

The token of ${admin.username}, shown this once:

  ${firstToken}

Sign in with a browser, once and within 24 hours (after that with the token):

  ${firstLink}

Try it:

  export LOAM_TOKEN=${firstToken}
  ${call} ${base}/auth/v1/whoami
  ${call} -H 'Content-Type: application/json' -d '{"name": "hello"}' ${base}/auth/v1/repository/${admin.username}
  ${call} ${base}/auth/v1/repository/${admin.username}

Or with the loam command (${base}/docs/cli):

  curl -fsSL ${base}/cli/install.sh | sh
  loam login ${base}
`;
  console.log(firstToken ? ready + first : ready);
}
