/**
 * Prometheus metrics of this process. Other modules report events through the functions of `Metrics`, or provide values that
 * are collected at a scrape (`scrape-metrics.ts`). All names, labels and buckets are in this folder; a test compares them
 * with docs/monitoring.md.
 *
 * The values of each label are from a short fixed list. Client input never becomes a label, because clients could create an
 * unlimited number of series. Each app has its own registry, because tests run several apps in one process.
 */

import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import { GIT_STARTED, type StartedGit } from '../processes/git-started.ts';
import { createScrapeMetrics, type Sources } from './scrape-metrics.ts';

/** Outcomes of a job attempt. `cancelled`: the job was cancelled or deleted while the attempt ran. */
const ATTEMPT_OUTCOMES = [
  'succeeded',
  'failed',
  'timed_out',
  'unstartable',
  'lost',
  'cancelled',
] as const;
export type AttemptOutcome = (typeof ATTEMPT_OUTCOMES)[number];

/** `partial`: by the beginning of its key. */
const CACHE_LOOKUPS = ['hit', 'partial', 'miss', 'failed'] as const;
type CacheLookup = (typeof CACHE_LOOKUPS)[number];
const CACHE_DIRECTIONS = ['restored', 'saved'] as const;
type CacheDirection = (typeof CACHE_DIRECTIONS)[number];

/** `subscription`: GraphQL; `log`: log stream of REST. */
const STREAMS = ['subscription', 'log'] as const;

const JOB_RESULTS = ['summary', 'tests'] as const;

const DIRECTIONS = ['upload', 'download'] as const;
export type Direction = (typeof DIRECTIONS)[number];
/** `broken_off`: ended by the client, or because the client lost its permission. `failed`: ended by the server. */
const TRANSFER_OUTCOMES = ['completed', 'broken_off', 'refused', 'failed'] as const;
export type TransferOutcome = (typeof TRANSFER_OUTCOMES)[number];

type EndedRequest = {
  method: string;
  /** A pattern, never a path: `/auth/v1/repository/{namespace}/{id}`. */
  route: string;
  /** Null if the client disconnected before the response. */
  status: number | null;
  /** Null for a stream, whose duration only says how long the client stayed. */
  seconds: number | null;
};

export type Metrics = Disposable & {
  requestBegan(): void;
  requestEnded(request: EndedRequest): void;
  /** `seconds` is null for a subscription. */
  operationEnded(
    kind: 'query' | 'mutation' | 'subscription',
    result: 'ok' | 'error',
    seconds: number | null,
  ): void;
  /** Dispose the result when the stream ends. */
  streamOpened(kind: (typeof STREAMS)[number]): Disposable;
  /** `waited`: seconds since the job could have been claimed. */
  jobClaimed(pool: { gpu: string; region: string }, waited: number): void;
  attemptEnded(outcome: AttemptOutcome): void;
  logLinesStored(count: number): void;
  metricPointsStored(count: number): void;
  checkpointStored(bytes: number): void;
  checkpointFailed(): void;
  /** Counts a summary or test report that an attempt has left. */
  jobResult(kind: (typeof JOB_RESULTS)[number], result: 'stored' | 'failed'): void;
  /** How many namespaces have a budget that is reached. */
  budgetsReached(count: number): void;
  jobsCancelledOverBudget(count: number): void;
  /** Counts what retention removed: `jobs`, `logs` or `artifacts`. */
  retentionRemoved(kind: string, count: number): void;
  /** `failed`: a cache was found and could not be restored. */
  cacheLookedUp(result: CacheLookup): void;
  /** Compressed bytes of a cache. */
  cacheBytes(direction: CacheDirection, bytes: number): void;
  /** Counts identity tokens that were signed for jobs. */
  identityTokensIssued(count: number): void;
  /** Called while the transfer is running. */
  largeFileBytes(direction: Direction, bytes: number): void;
  largeFileTransferred(direction: Direction, outcome: TransferOutcome): void;
  /** `outcome` as in the delivery record; `sinceEvent`: seconds since the event, only for a first attempt. */
  deliveryTried(tried: { outcome: string; seconds: number; sinceEvent?: number }): void;
  /** Called when there will be no further attempt. */
  deliveryEnded(status: 'succeeded' | 'failed'): void;
  /** Adds sources of values that are collected at a scrape. */
  addSources(sources: Partial<Sources>): void;
  /** Starts to collect metrics of Node. Called at the first scrape, because they cost a timer and an observer. */
  watchNode(): void;
  /** All metrics in the text format of Prometheus, version 0.0.4. Never rejects; values that cannot be read are missing. */
  text(): Promise<string>;
};

export const CONTENT_TYPE = Registry.PROMETHEUS_CONTENT_TYPE;

const METHODS = new Set(['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS']);
/** In seconds. A read takes a few ms; a clone or a large push may take minutes. */
const REQUEST_BUCKETS = [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 300];
const OPERATION_BUCKETS = [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10];
const WAIT_BUCKETS = [0.1, 0.5, 1, 5, 15, 60, 300, 900, 3_600, 14_400, 86_400];
/** In seconds. An attempt is limited to 15 s. */
const DELIVERY_BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15];

/** Metrics of Node that are removed: some list every handle at each scrape, and others are gauges with names of counters. */
const REMOVED_NODE_METRICS = ['handles', 'requests', 'resources'].flatMap((what) => [
  `nodejs_active_${what}`,
  `nodejs_active_${what}_total`,
]);

/** `build`: version of Loam; `commit`: null if unknown. */
export function createMetrics({
  build,
  commit,
  role,
}: {
  build: string;
  commit: string | null;
  role: string;
}): Metrics {
  const registry = new Registry();
  const registers = [registry];

  new Gauge({
    name: 'loam_build_info',
    help: 'Always 1; the labels identify the running version',
    labelNames: ['version', 'commit', 'role'],
    registers,
  }).set({ version: build, commit: commit ?? '', role }, 1);
  const { requests, durations, inProgress, operations, operationDurations, streams } =
    defineRequestMetrics(registers);
  const { checkpoints, checkpointBytes } = defineCheckpointMetrics(registers);
  const jobResults = defineJobResults(registers);
  const { waits, attempts, lines, points, identityTokens, budgetsReached, overBudget, retained } =
    defineJobMetrics(registers);
  const { cacheLookups, cacheBytes } = defineCacheMetrics(registers);
  const { largeTransfers, largeBytes } = defineLargeFileMetrics(registers);
  const { tries, tryDurations, firstTries, deliveries } = defineWebhookMetrics(registers);
  // Initialized to 0, so that the first event of each series is visible as an increase.
  for (const outcome of ATTEMPT_OUTCOMES) attempts.inc({ outcome }, 0);
  for (const status of ['succeeded', 'failed']) deliveries.inc({ status }, 0);
  for (const direction of DIRECTIONS) {
    largeBytes.inc({ direction }, 0);
    for (const outcome of TRANSFER_OUTCOMES) largeTransfers.inc({ direction, outcome }, 0);
  }
  for (const kind of STREAMS) streams.set({ kind }, 0);
  for (const result of CACHE_LOOKUPS) cacheLookups.inc({ result }, 0);
  for (const direction of CACHE_DIRECTIONS) cacheBytes.inc({ direction }, 0);

  const git = countGitProcesses(registry);
  const scrapeMetrics = createScrapeMetrics(registry);
  let isWatchingNode = false;

  return {
    requestBegan: () => inProgress.inc(),
    requestEnded({ method, route, status, seconds }) {
      inProgress.dec();
      const knownMethod = METHODS.has(method) ? method : 'other';
      requests.inc({ method: knownMethod, route, status: status ?? 'none' });
      if (seconds !== null) durations.observe({ method: knownMethod, route }, seconds);
    },
    operationEnded(kind, result, seconds) {
      operations.inc({ kind, result });
      if (seconds !== null) operationDurations.observe({ kind }, seconds);
    },
    streamOpened(kind) {
      streams.inc({ kind });
      let open = true;
      return {
        [Symbol.dispose]() {
          if (open) streams.dec({ kind });
          open = false;
        },
      };
    },
    jobClaimed: ({ gpu, region }, waited) => waits.observe({ gpu, region }, Math.max(0, waited)),
    attemptEnded: (outcome) => attempts.inc({ outcome }),
    logLinesStored: (count) => lines.inc(count),
    metricPointsStored: (count) => points.inc(count),
    budgetsReached: (count) => budgetsReached.set(count),
    jobsCancelledOverBudget: (count) => overBudget.inc(count),
    checkpointStored(bytes) {
      checkpoints.inc({ result: 'stored' });
      checkpointBytes.inc(bytes);
    },
    checkpointFailed: () => checkpoints.inc({ result: 'failed' }),
    jobResult: (kind, result) => jobResults.inc({ kind, result }),
    retentionRemoved: (kind, count) => retained.inc({ kind }, count),
    cacheLookedUp: (result) => cacheLookups.inc({ result }),
    cacheBytes: (direction, bytes) => cacheBytes.inc({ direction }, bytes),
    identityTokensIssued: (count) => identityTokens.inc(count),
    largeFileBytes: (direction, bytes) => largeBytes.inc({ direction }, bytes),
    largeFileTransferred: (direction, outcome) => largeTransfers.inc({ direction, outcome }),
    deliveryTried({ outcome, seconds, sinceEvent }) {
      tries.inc({ outcome: toOutcomeClass(outcome) });
      tryDurations.observe(seconds);
      if (sinceEvent !== undefined) firstTries.observe(Math.max(0, sinceEvent));
    },
    deliveryEnded: (status) => deliveries.inc({ status }),
    addSources: scrapeMetrics.add,
    watchNode() {
      if (isWatchingNode) return;
      isWatchingNode = true;
      collectDefaultMetrics({ register: registry });
      for (const name of REMOVED_NODE_METRICS) registry.removeSingleMetric(name);
    },
    async text() {
      await scrapeMetrics.refreshDatabaseMetrics();
      return registry.metrics();
    },
    [Symbol.dispose]: () => git[Symbol.dispose](),
  };
}

function defineRequestMetrics(registers: Registry[]) {
  const requests = new Counter({
    name: 'loam_http_requests_total',
    help: 'Requests that were answered or abandoned by the client, by route and status',
    labelNames: ['method', 'route', 'status'],
    registers,
  });
  const durations = new Histogram({
    name: 'loam_http_request_duration_seconds',
    help: 'Time from the headers of a request to the last byte of its response; without event streams',
    labelNames: ['method', 'route'],
    buckets: REQUEST_BUCKETS,
    registers,
  });
  const inProgress = new Gauge({
    name: 'loam_http_requests_in_progress',
    help: 'Requests whose response is not complete, including event streams',
    registers,
  });
  const operations = new Counter({
    name: 'loam_graphql_operations_total',
    help: 'Executed GraphQL operations, by kind',
    labelNames: ['kind', 'result'],
    registers,
  });
  const operationDurations = new Histogram({
    name: 'loam_graphql_operation_duration_seconds',
    help: 'Execution time of queries and mutations',
    labelNames: ['kind'],
    buckets: OPERATION_BUCKETS,
    registers,
  });
  const streams = new Gauge({
    name: 'loam_streams_open',
    help: 'Open streams of clients',
    labelNames: ['kind'],
    registers,
  });
  return { requests, durations, inProgress, operations, operationDurations, streams };
}

function defineCheckpointMetrics(registers: Registry[]) {
  const checkpoints = new Counter({
    name: 'loam_job_checkpoints_total',
    help: 'Checkpoints of jobs that this process has stored or could not store',
    labelNames: ['result'],
    registers,
  });
  const checkpointBytes = new Counter({
    name: 'loam_job_checkpoint_bytes_total',
    help: 'Size of the checkpoints that this process has stored, compressed',
    registers,
  });
  for (const result of ['stored', 'failed']) checkpoints.inc({ result }, 0);
  return { checkpoints, checkpointBytes };
}

function defineJobResults(registers: Registry[]) {
  const results = new Counter({
    name: 'loam_job_results_total',
    help: 'Summaries and test reports of jobs that this process has stored or could not store',
    labelNames: ['kind', 'result'],
    registers,
  });
  for (const kind of JOB_RESULTS)
    for (const result of ['stored', 'failed']) results.inc({ kind, result }, 0);
  return results;
}

function defineJobMetrics(registers: Registry[]) {
  const waits = new Histogram({
    name: 'loam_job_queue_wait_seconds',
    help: 'Time that jobs claimed by this process had waited in their pool',
    labelNames: ['gpu', 'region'],
    buckets: WAIT_BUCKETS,
    registers,
  });
  const attempts = new Counter({
    name: 'loam_job_attempts_total',
    help: 'Finished job attempts, by outcome',
    labelNames: ['outcome'],
    registers,
  });
  const lines = new Counter({
    name: 'loam_job_log_lines_total',
    help: 'Stored log lines of jobs',
    registers,
  });
  const points = new Counter({
    name: 'loam_job_metric_points_total',
    help: 'Stored points of metrics of jobs',
    registers,
  });
  const retained = new Counter({
    name: 'loam_retention_removed_total',
    help: 'Old jobs, logs and artifacts that were removed by the rules of their namespaces, by kind',
    labelNames: ['kind'],
    registers,
  });
  const identityTokens = new Counter({
    name: 'loam_job_identity_tokens_total',
    help: 'Identity tokens signed for jobs',
    registers,
  });
  const budgetsReached = new Gauge({
    name: 'loam_budgets_reached',
    help: 'Namespaces whose budget for this month is used up',
    registers,
  });
  const overBudget = new Counter({
    name: 'loam_jobs_cancelled_over_budget_total',
    help: 'Jobs that this server cancelled because the budget of their namespace was used up',
    registers,
  });
  return { waits, attempts, lines, points, identityTokens, budgetsReached, overBudget, retained };
}

function defineCacheMetrics(registers: Registry[]) {
  const cacheLookups = new Counter({
    name: 'loam_cache_lookups_total',
    help: 'Caches that attempts looked for, by result',
    labelNames: ['result'],
    registers,
  });
  const cacheBytes = new Counter({
    name: 'loam_cache_bytes_total',
    help: 'Compressed bytes of caches that attempts restored and saved',
    labelNames: ['direction'],
    registers,
  });
  return { cacheLookups, cacheBytes };
}

function defineLargeFileMetrics(registers: Registry[]) {
  const largeTransfers = new Counter({
    name: 'loam_large_file_transfers_total',
    help: 'Finished uploads and downloads of large files, by outcome',
    labelNames: ['direction', 'outcome'],
    registers,
  });
  const largeBytes = new Counter({
    name: 'loam_large_file_bytes_total',
    help: 'Bytes of large files that were received and sent',
    labelNames: ['direction'],
    registers,
  });
  return { largeTransfers, largeBytes };
}

function defineWebhookMetrics(registers: Registry[]) {
  const tries = new Counter({
    name: 'loam_webhook_attempts_total',
    help: 'Requests to receivers of webhooks, by outcome',
    labelNames: ['outcome'],
    registers,
  });
  const tryDurations = new Histogram({
    name: 'loam_webhook_attempt_duration_seconds',
    help: 'Duration of requests to receivers of webhooks',
    buckets: DELIVERY_BUCKETS,
    registers,
  });
  const firstTries = new Histogram({
    name: 'loam_webhook_first_attempt_delay_seconds',
    help: 'Time from an event to the end of the first delivery attempt',
    buckets: DELIVERY_BUCKETS,
    registers,
  });
  const deliveries = new Counter({
    name: 'loam_webhook_deliveries_total',
    help: 'Deliveries that succeeded or have no attempt left',
    labelNames: ['status'],
    registers,
  });
  return { tries, tryDurations, firstTries, deliveries };
}

/** `status_404` becomes `status_4xx`, because the receiver chooses the number. */
function toOutcomeClass(outcome: string): string {
  return outcome.replace(/^status_(\d)\d\d$/, 'status_$1xx');
}

/** Counts the git processes that this process starts. `git/processes/run.ts` publishes them on a diagnostics channel. */
function countGitProcesses(registry: Registry): Disposable {
  const registers = [registry];
  const started = new Counter({
    name: 'loam_git_processes_started_total',
    help: 'Started git processes, by command',
    labelNames: ['command'],
    registers,
  });
  const running = new Gauge({
    name: 'loam_git_processes_running',
    help: 'Running git processes, including idle ones that are kept for reading',
    registers,
  });
  const count = (message: unknown) => {
    const { args, ended } = message as StartedGit;
    started.inc({ command: args[0] ?? '' });
    running.inc();
    void ended.then(() => running.dec());
  };
  subscribe(GIT_STARTED, count);
  return { [Symbol.dispose]: () => void unsubscribe(GIT_STARTED, count) };
}
