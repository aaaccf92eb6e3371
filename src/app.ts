/**
 * The composition root: makes every part, in order, and takes them down in reverse.
 * `overrides` is the seam for tests; nothing else in the program knows about them.
 */
import type { Server } from 'node:http';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { recordUsage } from './auth/last-used.ts';
import { seedOperator } from './auth/operator.ts';
import { openRechecks } from './auth/rechecks.ts';
import { openCluster } from './cluster/cluster.ts';
import { openMembers, removeGoneServers } from './cluster/members.ts';
import type { Config } from './config.ts';
import { demandSameKey, readKeys } from './crypto/keys.ts';
import { createSigner } from './crypto/signed-links.ts';
import { openDatabase } from './database/client.ts';
import { openSession } from './database/session.ts';
import { startUpkeep } from './database/upkeep.ts';
import { Bus } from './events/bus.ts';
import { goOnAfterRestored } from './events/clock.ts';
import { removeOldEvents } from './events/retention.ts';
import { openGit } from './git/git.ts';
import { type ConnectionLimits, openServer } from './http/connections.ts';
import { CORS_HEADERS } from './http/cors.ts';
import { removeOldAnswers } from './http/idempotency.ts';
import { drain, listen } from './http/listening.ts';
import { openRateLimits } from './http/rate-limits.ts';
import { createHttp } from './http/server.ts';
import { createStarting } from './http/starting.ts';
import { removeLeftMarked } from './jobs/artifacts/kept.ts';
import { removeDeletedPages } from './jobs/logs/removal.ts';
import { openProcessRunner } from './jobs/runners/process/runner.ts';
import type { Runner } from './jobs/runners/runner.ts';
import { createSecretBox } from './jobs/secrets.ts';
import { removeGoneWorkers } from './jobs/worker/queue.ts';
import { startWorker } from './jobs/worker/worker.ts';
import { Reads } from './limits/reads.ts';
import { createLog, type Logger } from './log.ts';
import { PushRecorder } from './repos/pushes/recorder.ts';
import { recoverRepositories, removeAbandoned, takeOverFromDead } from './repos/recovery.ts';
import type { Services } from './services.ts';
import { identityOf, prepareDataFolder } from './storage/data-folder.ts';
import { watchDiskSpace } from './storage/disk-space.ts';
import { openStorage } from './storage/open.ts';

export type Overrides = {
  log?: Logger;
  runner?: Runner;
  connections?: Partial<ConnectionLimits>;
};

export type App = AsyncDisposable & {
  services: Services;
  server: Server;
  /** Set on the very first start, when no token was configured: to be shown once. */
  firstToken?: string;
  /** Settles when the server cannot go on (its data folder was taken over). */
  failed: Promise<never>;
};

export async function createApp(config: Config, overrides: Overrides = {}): Promise<App> {
  await using cleanup = new AsyncDisposableStack();
  const log = overrides.log ?? createLog(config.logLevel);
  const failure = Promise.withResolvers<never>();
  failure.promise.catch(() => {});

  await prepareDataFolder(config.dataDir);
  const id = await identityOf(config.dataDir);
  // The port first: whoever asks is answered from now on, and a port that is taken stops the start before
  // anything was begun.
  const limits = cleanup.use(await openRateLimits(config, log));
  const headersFor = async (address: string) => ({
    ...CORS_HEADERS,
    ...(await limits.of(address)),
  });
  const server = openServer(headersFor, overrides.connections);
  let handler = createStarting(limits, log);
  server.on('request', (req, res) => handler(req, res));
  const address = await listen(server, config, log);
  const base = config.baseUrl ?? address;
  const urls = { base, artifacts: config.artifactUrl ?? `${base}/artifacts` };
  cleanup.defer(() => {
    server.close();
    server.closeAllConnections();
  });

  const database = await openDatabase(config.database, join(config.dataDir, 'postgres'));
  cleanup.defer(() => database.close());
  const bus = new Bus();
  const session = await openSession({
    target: database.target,
    id,
    dataDir: config.dataDir,
    log,
    hear: bus.hear,
    onLost: (error) => {
      database.disown();
      failure.reject(error);
    },
  });
  cleanup.defer(() => session.close());
  database.own(log);
  await goOnAfterRestored({ pool: database.pool, log });
  const storage = cleanup.use(await openStorage(config));
  const keys = await readKeys(config);
  await demandSameKey(database.client, keys);
  await prepareDataFolder(config.repositoriesDir, 'LOAM_REPOSITORIES_DIR');
  const members = cleanup.use(
    await openMembers({
      id,
      role: config.role,
      shared: {
        repositories: await identityOf(config.repositoriesDir, '.folder-id'),
        storage: storage.identity,
      },
      database: config.database,
      pool: database.pool,
      session,
      bus,
      log,
    }),
  );
  const cluster = openCluster(members, keys);
  const space = cleanup.use(
    await watchDiskSpace({
      folders: [
        config.dataDir,
        config.repositoriesDir,
        ...(config.storage.kind === 'folder' ? [config.storage.path] : []),
      ],
      floor: config.diskFloor,
      log,
      onFree: () => bus.hear('queue'),
    }),
  );

  const usage = cleanup.use(recordUsage({ pool: database.pool, log }));
  const rechecks = cleanup.use(openRechecks({ pool: database.pool, log }));
  const report = (error: unknown) => log.error({ err: error }, 'background work on git failed');
  const git = cleanup.use(
    await openGit({
      root: config.repositoriesDir,
      server: id,
      hooks: join(config.dataDir, 'hooks'),
      transfers: config.gitTransfers,
      report,
    }),
  );
  const pushes = new PushRecorder({ db: database.client, git, log });
  await recoverRepositories({ db: database.client, git, log, pushes });
  const signer = createSigner(keys.derive('signed links'));
  const secretBox = createSecretBox(keys);
  const runner =
    overrides.runner ??
    cleanup.use(
      await openProcessRunner({
        dir: join(config.dataDir, 'attempts'),
        diskFloor: config.diskFloor,
        hidden: [
          config.dataDir,
          config.repositoriesDir,
          ...(config.storage.kind === 'folder' ? [config.storage.path] : []),
        ],
        network: config.jobNetwork,
        uids: config.jobUids,
        log,
      }),
    );
  // Not before the port is ours: a start that fails must not have made a token that nobody was shown.
  const firstToken = await seedOperator(database.client, config.admin);
  cleanup.defer(() => drain(server));
  cleanup.defer(() => bus.close());
  const services: Services = {
    config,
    db: database.client,
    pool: database.pool,
    bus,
    git,
    cluster,
    log,
    pushes,
    space,
    storage,
    signer,
    secretBox,
    usage,
    rechecks,
    reads: new Reads(),
    urls,
  };
  handler = createHttp(services, limits);
  await members.join(config.internalUrl ?? reachable(address));
  cleanup.use(takeOverFromDead(services, session));
  cleanup.use(await startWorker({ ...services, db: database.client, runner }));
  cleanup.use(
    startUpkeep(services, {
      'removing old events': () => removeOldEvents(services, config.eventDays),
      'removing old answers to requests': () => removeOldAnswers(services),
      'removing workers that are gone': () => removeGoneWorkers(services),
      'removing servers that are gone': () => removeGoneServers(services),
      'removing what nobody builds or removes any more': () => removeAbandoned(services),
      'removing what was not stored to its end': async () => {
        await storage.tidy();
        return false;
      },
      'removing artifacts that were deleted': () => removeLeftMarked(services),
      'removing logs of deleted jobs': () => removeDeletedPages(services),
    }),
  );

  // The first thing of the end, so that others take over before requests are refused here.
  cleanup.defer(() => members.leave());
  const owned = cleanup.move();
  return {
    services,
    server,
    firstToken,
    failed: failure.promise,
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}

/** An address of all interfaces is none that another machine could ask; the name of this machine is. */
function reachable(address: string): string {
  return address.replace(/^http:\/\/(?:0\.0\.0\.0|\[::\])(?=:)/, `http://${hostname()}`);
}
