/**
 * The composition root: creates all parts in order and disposes them in reverse. `openProcess` creates the parts of every
 * process, `createApp` adds those that answer requests, `createWorker` is for a process that only runs jobs. `overrides`
 * replaces parts in tests.
 */

import type { Server } from 'node:http';
import { hostname } from 'node:os';
import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import { type RequestHandler, Router } from 'express';
import type pg from 'pg';
import type { PrismaClient } from '../prisma/generated/client.ts';
import { CORS_HEADERS } from './api/http/cors.ts';
import { isDatabaseReachable, version } from './api/http/diagnostics.ts';
import { drain, takePort } from './api/http/listening.ts';
import { openMetricsPort } from './api/http/metrics.ts';
import { openRateLimits, type RateLimits } from './api/http/rate-limits.ts';
import { createHttpApp } from './api/http/server.ts';
import { createStartingApp, createWorkerApp } from './api/http/starting.ts';
import type { SshLimits } from './api/ssh/front/protocol.ts';
import { type Ssh, serveSsh, takeSshPort } from './api/ssh/ssh.ts';
import {
  createJobsFile,
  measureTriggerLag,
  startClock,
  startTriggerLoop,
  updateRuns,
} from './automation/automation.ts';
import type { Config } from './base/config/config.ts';
import { createLog, type Logger } from './base/log.ts';
import type { Urls } from './base/urls.ts';
import type { Cluster } from './cluster/cluster.ts';
import { openCluster, ServerUnavailable } from './cluster/cluster.ts';
import { forwardTo } from './cluster/forward.ts';
import { openMembers } from './cluster/members.ts';
import { acceptTunnels, openTunnel } from './cluster/tunnels.ts';
import type { PendingOperation } from './git/disk/disk.ts';
import type { Git } from './git/git.ts';
import { openGit } from './git/git.ts';
import { checkVersion } from './git/processes/run.ts';
import { createJobTokens, type JobTokens } from './identity/job-tokens.ts';
import type { LastUsedRecorder } from './identity/last-used.ts';
import { openLastUsedRecorder } from './identity/last-used.ts';
import { seedOperator } from './identity/operator.ts';
import type { Rechecks } from './identity/rechecks.ts';
import { openRechecks } from './identity/rechecks.ts';
import type { Issuer } from './identity/sign-in/issuers.ts';
import { issueSignInLink } from './identity/sign-in/links.ts';
import { TokenIssuer } from './identity/token-issuer.ts';
import { findWorkerOf } from './jobs/attempts/attempt-row.ts';
import {
  createCheckout,
  createInputReader,
  createRemoteCheckout,
  createRemoteInputReader,
} from './jobs/attempts/checkouts.ts';
import { startWorker, type Worker } from './jobs/attempts/worker.ts';
import { startBudgetLoop } from './jobs/costs/budget-loop.ts';
import { startDependencyLoop } from './jobs/dependencies/loop.ts';
import { createMachinesRouter, followMachines } from './jobs/machines/http.ts';
import { measureMachines } from './jobs/machines/machines.ts';
import { startSilenceLoop } from './jobs/machines/reports.ts';
import { countWaitingJobs } from './jobs/queue/overview.ts';
import type { QueuePositions } from './jobs/queue/queue-position.ts';
import { createQueuePositions } from './jobs/queue/queue-position.ts';
import type { SecretBox } from './jobs/record/secret-box.ts';
import { createSecretBox } from './jobs/record/secret-box.ts';
import { AppHosts, isForApp } from './jobs/shells/apps/http/app-hosts.ts';
import { isShellPath } from './jobs/shells/http.ts';
import { openShells, type ShellHead, type Shells } from './jobs/shells/run.ts';
import { removeShellsOfPreviousProcess } from './jobs/shells/sessions.ts';
import { maintenanceTasks, startMaintenance } from './maintenance.ts';
import {
  createSealer,
  type Keys,
  readKeys,
  requireSameKey,
  type Sealer,
} from './platform/crypto/keys.ts';
import type { Signer } from './platform/crypto/signed-links.ts';
import { createSigner } from './platform/crypto/signed-links.ts';
import type { PublicHostKey } from './platform/crypto/ssh-keys.ts';
import type { Db } from './platform/database/client.ts';
import { openDatabase } from './platform/database/client.ts';
import { openSession, type Session } from './platform/database/session.ts';
import { Bus } from './platform/events/bus.ts';
import { advanceClockAfterRestore, measureOutboxLag } from './platform/events/outbox.ts';
import { readFirstFrame } from './platform/frames.ts';
import { ResponseLimiter } from './platform/limits/reads.ts';
import { createMetrics, type Metrics } from './platform/metrics/metrics.ts';
import { prepareDataFolder, readOrCreateId } from './platform/storage/data-folder.ts';
import type { DiskSpace } from './platform/storage/disk-space.ts';
import { watchDiskSpace } from './platform/storage/disk-space.ts';
import { openStorage } from './platform/storage/open.ts';
import type { Storage } from './platform/storage/storage.ts';
import type { ConnectionLimits } from './platform/web/connections.ts';
import { isHandshake, WebSockets } from './platform/web/websockets.ts';
import type { Lfs } from './repositories/lfs/lfs.ts';
import { openLfs } from './repositories/lfs/lfs.ts';
import type { LargeFiles } from './repositories/lfs/store/store.ts';
import { openLargeFiles } from './repositories/lfs/store/store.ts';
import { PushRecorder } from './repositories/pushes/recorder.ts';
import type { FindingIds } from './repositories/pushes/secret-scanning/find.ts';
import { createFindingIds } from './repositories/pushes/secret-scanning/find.ts';
import type { JobsFile } from './repositories/pushes/triggers.ts';
import { recoverRepositories, takeOverFromDeadServers } from './repositories/recovery.ts';
import {
  type ExecConnection,
  isExecUpgrade,
  serveExecTunnel,
  serveExecUpgrade,
} from './runners/agent/exec-upgrades.ts';
import { createAgentsRouter } from './runners/agent/http.ts';
import { PROGRAM_PATH } from './runners/agent/program.ts';
import { type OpenedRunner, openRunner } from './runners/open.ts';
import type { ExecSpec, Runner } from './runners/runner.ts';
import { createConnector, readCaCertificates } from './webhooks/delivery/connector.ts';
import { createGuard, type Lookup, resolveHost } from './webhooks/delivery/guard.ts';
import { initializeCursor, startDispatcher } from './webhooks/dispatcher.ts';
import { startSender } from './webhooks/sender.ts';
import type { WebhookDeps } from './webhooks/webhooks.ts';

/** Parts of every process, whatever its role. */
export type ProcessServices = {
  config: Config;
  db: Db;
  /** For operations that Prisma does not support: COPY, and statements that depend on exact locking. */
  pool: pg.Pool;
  bus: Bus;
  /** Knows which server owns a repository. */
  cluster: Cluster;
  log: Logger;
  metrics: Metrics;
  /** Free space of the disks that this process writes to. */
  space: DiskSpace;
  /** Object storage of artifacts and of packs of large files. */
  storage: Storage;
  /** Git LFS objects of repositories. */
  largeFiles: LargeFiles;
  secretBox: SecretBox;
  storedSecretSealer: Sealer;
  /** Tokens with which jobs use the API. */
  jobTokens: JobTokens;
  /** Issues identity tokens of jobs. */
  tokenIssuer: TokenIssuer;
};

/** Parts of a process that answers requests. */
export type Services = ProcessServices & {
  git: Git;
  /** Records pushes. */
  pushes: PushRecorder;
  signer: Signer;
  lfs: Lfs;
  /** Assigns ids to findings of secret scanning. */
  findingIds: FindingIds;
  /** How files of jobs are checked when they are pushed. */
  jobsFile: JobsFile;
  /** Records when credentials were last used. */
  usage: LastUsedRecorder;
  /** OpenID Connect issuers with which users can sign in. */
  issuers: readonly Issuer[];
  /** Rechecks for open streams whether their viewers still have access. */
  rechecks: Rechecks;
  /** Limits the memory of large answers. */
  reads: ResponseLimiter;
  /** Positions of waiting jobs in the queue. */
  queuePositions: QueuePositions;
  /** Base URLs without a trailing slash. They contain the actual port. */
  urls: Urls;
  /** SSH host keys of this server; empty if SSH is off. */
  hostKeys: readonly PublicHostKey[];
  webhooks: WebhookDeps;
};

export type Overrides = {
  log?: Logger;
  runner?: Runner;
  connections?: Partial<ConnectionLimits>;
  /** Resolves host names of webhooks. */
  lookup?: Lookup;
  ssh?: Partial<SshLimits>;
};

export type App<S = Services> = AsyncDisposable & {
  services: S;
  server: Server;
  /** Listening address, without a trailing slash. */
  address: string;
  /** Unset if SSH is off. */
  ssh?: Ssh | null;
  /** Set on the first start if no token was configured; must be shown once. */
  firstToken?: string;
  /** Set with `firstToken`: a link that signs its user in once. */
  firstLink?: string;
  /** Base URL of the metrics endpoint, without a trailing slash; unset if it is off. */
  metricsAddress?: string;
  /** Rejects when the process cannot continue, because another server has taken its data folder. */
  failed: Promise<never>;
};

/** Creates a process that answers requests, and with the role `all` also runs jobs. */
export async function createApp(config: Config, overrides: Overrides = {}): Promise<App> {
  await using cleanup = new AsyncDisposableStack();
  const log = overrides.log ?? createLog(config.logLevel);
  await prepareDataFolder(config.dataDir);
  const metrics = cleanup.use(createMetrics({ ...version, role: config.role }));
  const limits = cleanup.use(await openRateLimits(config, log));
  metrics.addSources({ refusals: () => limits.refusalsByPlan });
  const headersFor = async (address: string) => ({
    ...CORS_HEADERS,
    ...(await limits.headersFor(address)),
  });
  const starting = createStartingApp(limits, log);
  const first = { log, headersFor, handler: starting, limits: overrides.connections };
  const port = cleanup.use(await takePort(config, first));
  await prepareDataFolder(config.repositoriesDir, 'LOAM_REPOSITORIES_DIR');
  const { address: metricsAddress } = cleanup.use(await openMetricsPort(config, metrics, log));
  const process = await openProcess(config, { log, metrics }, cleanup);
  const { db, pool, cluster } = process.services;
  // Equal on all servers, so processes of the role `work` do not report it.
  metrics.addSources({
    waitingJobs: () => countWaitingJobs({ pool }),
    outboxLag: () => measureOutboxLag({ pool }),
    runTriggerLag: () => measureTriggerLag({ pool }),
    machines: () => measureMachines({ pool }),
  });
  const base = config.baseUrl ?? port.address;
  const ssh = await takeSshPort({
    config,
    db: process.services.db,
    keys: process.keys,
    log,
    limits: overrides.ssh,
  });
  if (ssh) cleanup.use(ssh);
  const git = await openGit({
    root: config.repositoriesDir,
    server: cluster.members.id,
    hooks: join(config.dataDir, 'hooks'),
    isAlone: config.database.kind === 'embedded',
    transfers: config.gitTransfers,
    onError: (error) => log.error({ err: error }, 'background work on git failed'),
  });
  metrics.addSources({
    gitReaders: () => git.objects.counts,
    transfers: () => git.transfers.counts,
  });
  const services = await composeServices(config, process, { git, ssh, base });
  const runner =
    config.role === 'all'
      ? await openConfiguredRunner(process.services, { overrides, address: port.address }, cleanup)
      : null;
  const shells = runner && openShells({ ...services, runner });
  const webSockets = new WebSockets();
  const appHosts = new AppHosts({ ...services, shells });
  const agents = serveAgents(services, runner);
  const connector = createConnector({
    guard: services.webhooks.guard,
    lookup: overrides.lookup ?? resolveHost,
    authorities: await readCaCertificates(config.webhooks.authorities),
  });
  // After all parts that can fail because of the configuration: a failed start must not have created a token unseen.
  const firstToken = await seedOperator(db, config.admin);
  const firstLink =
    firstToken && (await issueSignInLink({ db }, config.admin.username, services.urls.base)).url;

  let unfinished: PendingOperation[] = [];
  await startAll(cleanup, [
    () => services.usage,
    () => services.rechecks,
    () => git,
    async () => {
      unfinished = await recoverRepositories(services);
      return null;
    },
    () => initializeCursor(services).then(() => null),
    () => removeShellsOfPreviousProcess(services).then(() => null),
    () => startAnswering({ ...services, shells, webSockets, appHosts }, limits, port, agents),
    () => startShells({ ...services, shells, webSockets, appHosts }, { ssh, port, agents }),
    () => takeOverFromDeadServers(services, process.session, unfinished),
    () => startTriggerLoop(services),
    () => startClock(services),
    () => runner && followJoinedMachines(services, runner),
    () =>
      runner &&
      startWorker({
        ...services,
        db,
        runner,
        checkout: createCheckout(services),
        readInput: createInputReader(services),
      }).then(reportSlots(services)),
    () => startSilenceLoop(services),
    // Only by processes that answer requests, of which there is always one.
    () => startDependencyLoop({ ...services, db, onChanged: updateRuns }),
    () => startMaintenance(services, maintenanceTasks(services)),
    () => startBudgetLoop(services),
    // Disposed before the HTTP server, so that others take over before requests are refused here.
    () => ({ [Symbol.asyncDispose]: () => cluster.members.leave() }),
    // Webhooks stop before that, so that no other server considers this one dead and sends the same deliveries.
    () => connector,
    () => startSender(services, { connector, userAgent: `Loam/${version.build}` }),
    () => startDispatcher(services, process.session),
  ]);

  const { server, address } = port;
  const { failed } = process;
  const owned = cleanup.move();
  return {
    services,
    server,
    address,
    metricsAddress,
    ssh,
    firstToken,
    firstLink,
    failed,
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}

/** `shells`: of the jobs of this process; null: it runs none. */
type ShellServices = Services & {
  shells: Shells | null;
  webSockets: WebSockets;
  appHosts: AppHosts;
};

/** Answers requests, and makes the other servers send requests here. */
async function startAnswering(
  services: ShellServices,
  limits: RateLimits,
  port: Awaited<ReturnType<typeof takePort>>,
  agents: AgentRoutes,
): Promise<AsyncDisposable> {
  const { cluster, bus } = services;
  const handler = createHttpApp(services, limits, agents.handler);
  port.setHandler(handler);
  port.onUpgrade(
    (req) =>
      isHandshake(req) &&
      (isForApp(services.config, req) ? req.method === 'GET' : isShellPath(req.url)),
    (req, socket) => services.webSockets.serve(handler, req, socket),
  );
  await cluster.members.join(internalUrl(services, port));
  return {
    async [Symbol.asyncDispose]() {
      bus.close();
      agents[Symbol.dispose]();
      await drain(port.server);
    },
  };
}

/** Serves SSH, and shells in the jobs of this process for the other servers. */
async function startShells(
  services: ShellServices,
  {
    ssh,
    port,
    agents,
  }: { ssh: Ssh | null; port: Awaited<ReturnType<typeof takePort>>; agents: AgentRoutes },
): Promise<AsyncDisposable> {
  const { shells, webSockets, appHosts, config } = services;
  const served = await serveSsh(services, ssh);
  const ownHosts: UpgradeHandlers = {
    onUpgrade: (isOurs, serve) =>
      port.onUpgrade((req) => !isForApp(config, req) && isOurs(req), serve),
  };
  acceptTunnels(services, ownHosts, {
    repo: served.serveForwarded,
    ...(shells && { att: serveAttempts(shells, agents) }),
  });
  agents.acceptConnections(ownHosts);
  return {
    async [Symbol.asyncDispose]() {
      appHosts[Symbol.dispose]();
      webSockets[Symbol.dispose]();
      await shells?.[Symbol.asyncDispose]();
      await served[Symbol.asyncDispose]();
    },
  };
}

/** Serves tunnels of other servers, which have checked who may open the shell, or relay a connection of an agent. */
function serveAttempts(shells: Shells, agents: AgentRoutes) {
  return async (head: unknown, socket: Duplex) => {
    const opening = head as ShellHead | ExecConnection;
    if (!('by' in opening)) {
      agents.serveTunnel(opening, socket);
      return;
    }
    const first = await readFirstFrame(socket);
    if (first?.kind !== 'exec') socket.destroy();
    else await shells.run(opening, first.value as ExecSpec, socket);
  };
}

/** Adds the parts of a process that answers requests. `base`: base URL for clients. */
async function composeServices(
  config: Config,
  { services, keys }: Process,
  { git, ssh, base }: { git: Git; ssh: Ssh | null; base: string },
): Promise<Services> {
  const { pool, log } = services;
  return {
    ...services,
    git,
    pushes: new PushRecorder({ git, log, pool }),
    signer: createSigner(keys.derive('signed links')),
    lfs: openLfs(keys.derive('tokens for large files'), config.gitTransfers),
    findingIds: createFindingIds(keys.derive('findings of secrets')),
    jobsFile: createJobsFile(services),
    usage: openLastUsedRecorder({ pool, log }),
    issuers: await openIssuers(config, keys, log),
    rechecks: openRechecks({ pool, log }),
    reads: new ResponseLimiter(),
    queuePositions: createQueuePositions({ pool, config }),
    urls: {
      base,
      artifacts: config.artifactUrl ?? `${base}/artifacts`,
      ssh: `ssh://git@${new URL(base).hostname}:${ssh?.port ?? SSH_PORT}`,
    },
    hostKeys: ssh?.hostKeys ?? [],
    webhooks: {
      guard: createGuard(config.webhooks.allow),
      sealer: createSealer(keys, 'secrets of webhooks'),
    },
  };
}

/** Creates a process of the role `work`. It runs jobs and gets their commits from servers that answer requests. */
export async function createWorker(
  config: Config,
  overrides: Overrides = {},
): Promise<App<ProcessServices>> {
  await using cleanup = new AsyncDisposableStack();
  const log = overrides.log ?? createLog(config.logLevel);
  await prepareDataFolder(config.dataDir);
  const metrics = cleanup.use(createMetrics({ ...version, role: config.role }));
  let isReady = async () => false;
  let agents: AgentRoutes | undefined;
  const handler = createWorkerApp({ isReady: () => isReady(), agents: () => agents?.handler, log });
  const headersFor = async () => ({});
  const limits = overrides.connections;
  const port = cleanup.use(await takePort(config, { log, headersFor, handler, limits }));
  const { address: metricsAddress } = cleanup.use(await openMetricsPort(config, metrics, log));
  await checkVersion();
  const { services, failed } = await openProcess(config, { log, metrics }, cleanup);
  const { address } = port;
  const runner = await openConfiguredRunner(services, { overrides, address }, cleanup);
  const routes = serveAgents(services, runner);
  agents = routes;
  const checkout = createRemoteCheckout(services);
  const readInput = createRemoteInputReader(services);
  const rechecks = openRechecks(services);
  const shells = openShells({ ...services, rechecks, runner });

  await startAll(cleanup, [
    () => rechecks,
    () => removeShellsOfPreviousProcess(services).then(() => null),
    async () => {
      isReady = () => isDatabaseReachable(services.db);
      await services.cluster.members.join(internalUrl(services, port));
      return {
        async [Symbol.asyncDispose]() {
          routes[Symbol.dispose]();
          await drain(port.server);
        },
      };
    },
    () => {
      acceptTunnels(services, port, { att: serveAttempts(shells, routes) });
      routes.acceptConnections(port);
      return shells;
    },
    () => followJoinedMachines(services, runner),
    () => startWorker({ ...services, runner, checkout, readInput }).then(reportSlots(services)),
  ]);

  const { server } = port;
  const owned = cleanup.move();
  return {
    services,
    server,
    address,
    metricsAddress,
    failed,
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}

/** Imported on demand: the libraries take 80 ms of the start, and few servers have issuers. */
async function openIssuers({ issuers }: Config, keys: Keys, log: Logger): Promise<Issuer[]> {
  if (issuers.length === 0) return [];
  const { Issuer } = await import('./identity/sign-in/issuers.ts');
  const sealer = createSealer(keys, 'signing in');
  return issuers.map((one) => new Issuer(one, sealer, log));
}

/** Used in `ssh_url` if SSH is off, because the API contract has no value for that. */
const SSH_PORT = 2222;

/** Null if nothing must be stopped. */
type Started = Disposable | AsyncDisposable | null;

/** Starts background parts one after another; they are stopped in reverse. */
async function startAll(
  cleanup: AsyncDisposableStack,
  starts: readonly (() => Started | Promise<Started>)[],
): Promise<void> {
  for (const start of starts) cleanup.use(await start());
}

type Process = {
  services: ProcessServices & { db: PrismaClient };
  session: Session;
  keys: Keys;
  failed: Promise<never>;
};

/** Opens the database, the storage, the key and the list of processes. The data folder must be prepared. */
async function openProcess(
  config: Config,
  { log, metrics }: { log: Logger; metrics: Metrics },
  cleanup: AsyncDisposableStack,
): Promise<Process> {
  const { role, dataDir, repositoriesDir } = config;
  const failure = Promise.withResolvers<never>();
  failure.promise.catch(() => {});
  const id = await readOrCreateId(dataDir);
  const database = await openDatabase(config.database, join(dataDir, 'postgres'));
  cleanup.defer(() => database.close());
  if (config.tracing) {
    const { openTracing } = await import('./platform/tracing/open.ts');
    const who = { version: version.build, serverId: id, log };
    cleanup.use(openTracing(config.tracing, who));
  }
  const { client: db, pool, target } = database;
  const bus = new Bus();
  const session = await openSession({
    target,
    id,
    dataDir,
    log,
    notify: bus.notify,
    onFolderLost: (error) => {
      database.releaseOwnership();
      failure.reject(error);
    },
  });
  cleanup.defer(() => session.close());
  database.takeOwnership(log);
  await advanceClockAfterRestore({ pool, log });
  const storage = cleanup.use(await openStorage(config));
  const keys = await readKeys(config);
  await requireSameKey(db, keys);
  const serves = role !== 'work';
  const shared = {
    repositories: serves ? await readOrCreateId(repositoriesDir, '.folder-id') : null,
    storage: storage.identity,
  };
  const members = cleanup.use(
    await openMembers({ id, role, shared, database: config.database, pool, session, bus, log }),
  );
  const space = cleanup.use(
    await watchDiskSpace({
      folders: listFolders(config),
      floor: config.diskFloor,
      log,
      onFree: () => bus.notify('queue'),
    }),
  );
  metrics.addSources({
    databaseUp: () => isDatabaseReachable(db),
    databasePool: () => ({
      total: pool.totalCount,
      idle: pool.idleCount,
      waiting: pool.waitingCount,
    }),
    eventReaders: () => bus.waiters,
    diskLow: () => space.low,
  });
  const largeFiles = cleanup.use(
    openLargeFiles({ config, pool, storage, space, log }, keys.derive('chunks of large files')),
  );
  const services = {
    config,
    db,
    pool,
    bus,
    cluster: openCluster(members, keys, { serves }),
    log,
    metrics,
    space,
    storage,
    largeFiles,
    secretBox: createSecretBox(keys),
    storedSecretSealer: createSealer(keys, 'stored secrets'),
    jobTokens: createJobTokens(keys),
    tokenIssuer: new TokenIssuer(pool, keys),
  };
  return { services, session, keys, failed: failure.promise };
}

async function openConfiguredRunner(
  { config, cluster, log }: ProcessServices,
  { overrides, address }: { overrides: Overrides; address: string },
  cleanup: AsyncDisposableStack,
): Promise<Runner & Pick<OpenedRunner, 'agents' | 'joined'>> {
  if (overrides.runner) return overrides.runner;
  const agentUrl =
    config.agentUrl ?? config.internalUrl ?? config.baseUrl ?? toReachableUrl(address);
  const hidden = listFolders(config);
  const worker = cluster.members.id;
  return cleanup.use(await openRunner({ config, hidden, agents: { url: agentUrl, worker }, log }));
}

type UpgradeHandlers = Pick<Awaited<ReturnType<typeof takePort>>, 'onUpgrade'>;

type AgentRoutes = Disposable & {
  handler: RequestHandler;
  /** Accepts the connections of agents for commands beside that of a job. */
  acceptConnections(port: UpgradeHandlers): void;
  /** Serves such a connection that another server relays. */
  serveTunnel(opened: ExecConnection, socket: Duplex): void;
};

/**
 * Routes for agents and joined machines. A process that does not have them forwards their requests. Disposed of before the server
 * waits for open requests.
 */
function serveAgents(
  services: Pick<ProcessServices, 'db' | 'pool' | 'bus' | 'space' | 'cluster' | 'log'>,
  runner: (Runner & Pick<OpenedRunner, 'agents' | 'joined'>) | null,
): AgentRoutes {
  const closing = new AbortController();
  const own = runner?.agents ?? { findSession: async () => undefined, program: PROGRAM_PATH };
  const forwarding: Parameters<typeof createMachinesRouter>[0]['forwardTo'] = (
    worker,
    ...request
  ) => forwardTo(services, worker, ...request);
  const handler = Router();
  handler.use(
    createAgentsRouter({
      ...own,
      findWorker: (attempt) => findWorkerOf(services, attempt),
      forwardTo: forwarding,
      isDiskLow: () => services.space.low,
      closing: closing.signal,
    }),
    createMachinesRouter({
      ...services,
      worker: services.cluster.members.id,
      engine: runner?.joined ?? null,
      forwardTo: forwarding,
      closing: closing.signal,
    }),
  );
  const { cluster, log } = services;
  const connections = {
    findSession: own.findSession,
    findWorker: (attempt: string) => findWorkerOf(services, attempt),
    openTunnel(worker: string, head: ExecConnection, signal: AbortSignal) {
      const member = cluster.members.find(worker);
      if (!member || worker === cluster.members.id)
        throw new ServerUnavailable('the process that has the attempt does not answer');
      return openTunnel(services, member, { target: head.attempt, head, signal });
    },
    closing: closing.signal,
    log,
  };
  return {
    handler,
    acceptConnections: (port) =>
      port.onUpgrade(
        isExecUpgrade,
        (req, socket) => void serveExecUpgrade(connections, req, socket),
      ),
    serveTunnel: (opened, socket) => void serveExecTunnel(connections, opened, socket),
    [Symbol.dispose]: () => closing.abort(),
  };
}

/** Passes changes of joined machines on to the runner that drives them. */
function followJoinedMachines(
  services: Pick<ProcessServices, 'db' | 'bus' | 'cluster' | 'log'>,
  { joined }: Pick<OpenedRunner, 'joined'>,
): Promise<AsyncDisposable> | null {
  const worker = services.cluster.members.id;
  return joined ? followMachines({ ...services, worker, engine: joined }) : null;
}

function reportSlots({ config, metrics }: ProcessServices) {
  return (worker: Worker): Worker => {
    metrics.addSources({
      slots: () => ({ total: config.jobSlots, used: worker.slotsUsed }),
      clusters: () => worker.listClusterLoads(),
    });
    return worker;
  };
}

/** Folders whose disks this process writes to. */
function listFolders({ role, dataDir, repositoriesDir, storage }: Config): string[] {
  return [
    dataDir,
    ...(role === 'work' ? [] : [repositoriesDir]),
    ...(storage.kind === 'folder' ? [storage.path] : []),
  ];
}

/** The address at which the other processes reach this one. */
function internalUrl({ config }: ProcessServices, { address }: { address: string }): string {
  return config.internalUrl ?? toReachableUrl(address);
}

/** Other machines cannot connect to an address such as 0.0.0.0, so it is replaced by the host name of this machine. */
function toReachableUrl(address: string): string {
  return address.replace(/^http:\/\/(?:0\.0\.0\.0|\[::\])(?=:)/, `http://${hostname()}`);
}
