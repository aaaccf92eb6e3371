import { setTimeout as delay } from 'node:timers/promises';
import { type App, createApp, createWorker } from './app.ts';
import { type Config, ConfigError, readConfig } from './base/config/config.ts';
import { forgetSecrets } from './base/config/environment.ts';
import { retryStartup } from './platform/database/startup-retry.ts';
import { giveBackMemory, unsetMallocThreshold } from './start-memory.ts';

/**
 * A terminal sends Ctrl-C to npm and to us, and npm passes its own on to us: one key arrives twice, milliseconds
 * apart. A second one that somebody means comes later than this.
 */
const SAME_SIGNAL_MS = 500;

/** How long a start goes on after a signal: it may wait for another server that migrates, or a database that recovers. */
const START_MS = 5_000;

// Listened for from the beginning: a signal during the start would end the process without stopping what was started.
const stopped = stopSignal();
try {
  const config = readConfig();
  forgetSecrets();
  unsetMallocThreshold();
  const starting = retryStartup(() => start(config), { say: console.error });
  const late = stopped.then(async () => {
    await delay(START_MS);
    throw new ConfigError('Stopped before the start was done');
  });
  late.catch(() => {});
  await using app = await Promise.race([starting, late]);
  using _giving = giveBackMemory();
  await Promise.race([app.failed, stopped]);
} catch (error) {
  console.error(error instanceof ConfigError ? error.message : error);
  process.exitCode = 1;
}
// What a dependency may still hold open must not keep a stopped server alive.
process.exit();

/** SIGTERM, or Ctrl-C; a second one of them ends the process at once. */
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

async function start(config: Config): Promise<Pick<App, 'failed' | typeof Symbol.asyncDispose>> {
  if (config.role === 'work') {
    const worker = await createWorker(config);
    console.log(`Loam is ready to run jobs; ${worker.address}/readyz says whether it still is`);
    return worker;
  }
  const app = await createApp(config);
  greet(app, config);
  return app;
}

function greet({ services, ssh, firstToken, firstLink }: App, { admin }: Config): void {
  const { base } = services.urls;
  const keys = ssh?.hostKeys.map(({ type, fingerprint }) => `${fingerprint} (${type})`);
  const overSsh = keys ? `\nGit over SSH: ${services.urls.ssh}, host keys ${keys.join(', ')}` : '';
  const ready = `Loam is ready at ${base}  (GraphQL: ${base}/graphql, REST: ${base}/docs)${overSsh}`;
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
`;
  console.log(firstToken ? ready + first : ready);
}
