/**
 * What this process counts, for Prometheus. Others call the narrow functions of `Metrics` when something has happened,
 * or hand over numbers that are read at a scrape (`readings.ts`); names, labels and buckets stand in this folder
 * alone, and docs/operations.md lists them, which a test compares.
 *
 * Every label has values out of a short list of our own: what a client sends never becomes one, or anybody could make
 * series without end. An app has a registry of its own, because tests run several in one process.
 */

import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import { GIT_STARTED, type StartedGit } from '../processes/git-started.ts';
import { readAtScrape, type Sources } from './readings.ts';

/** Of an attempt of a job. `cancelled`: its job was cancelled or deleted while it ran. */
const ATTEMPT_OUTCOMES = [
  'succeeded',
  'failed',
  'timed_out',
  'unstartable',
  'lost',
  'cancelled',
] as const;
export type AttemptOutcome = (typeof ATTEMPT_OUTCOMES)[number];

/** `subscription` of GraphQL, `log` of REST. */
const STREAMS = ['subscription', 'log'] as const;

const DIRECTIONS = ['upload', 'download'] as const;
export type Direction = (typeof DIRECTIONS)[number];
/** `broken_off`: by the client, or because its right ended. `failed`: by us. */
const TRANSFER_OUTCOMES = ['completed', 'broken_off', 'refused', 'failed'] as const;
export type TransferOutcome = (typeof TRANSFER_OUTCOMES)[number];

export type EndedRequest = {
  method: string;
  /** A pattern, never a path: `/auth/v1/repository/{namespace}/{id}`. */
  route: string;
  /** Null when the client left before there was one. */
  status: number | null;
  /** Null for a stream, whose time says how long its client stayed. */
  seconds: number | null;
};

export type Metrics = Disposable & {
  requestBegan(): void;
  requestEnded(request: EndedRequest): void;
  /** `seconds`: null for a subscription. */
  operationEnded(
    kind: 'query' | 'mutation' | 'subscription',
    result: 'ok' | 'error',
    seconds: number | null,
  ): void;
  /** Disposing says that it is over. */
  streamOpened(kind: (typeof STREAMS)[number]): Disposable;
  /** `waited`: seconds since it could have been claimed. */
  jobClaimed(pool: { gpu: string; region: string }, waited: number): void;
  attemptEnded(outcome: AttemptOutcome): void;
  logLinesStored(count: number): void;
  /** Some of a transfer, as it goes on. */
  largeFileBytes(direction: Direction, bytes: number): void;
  largeFileTransferred(direction: Direction, outcome: TransferOutcome): void;
  /** `outcome` as deliveries record it; `sinceEvent`: seconds from the event, given for a first attempt. */
  deliveryTried(tried: { outcome: string; seconds: number; sinceEvent?: number }): void;
  /** There will be no further attempt. */
  deliveryEnded(status: 'succeeded' | 'failed'): void;
  /** Adds to what is read at a scrape. */
  read(sources: Partial<Sources>): void;
  /** From now on: of Node itself. It costs a timer and an observer, so it is for a process that is scraped. */
  watchNode(): void;
  /** All of it in the text format, version 0.0.4. Never rejects for what could not be read. */
  text(): Promise<string>;
};

export const CONTENT_TYPE = Registry.PROMETHEUS_CONTENT_TYPE;

const METHODS = new Set(['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS']);
/** Seconds. A read takes a few ms; a clone or the whole body of a push may take minutes. */
const REQUEST_BUCKETS = [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 300];
const OPERATION_BUCKETS = [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10];
const WAIT_BUCKETS = [0.1, 0.5, 1, 5, 15, 60, 300, 900, 3_600, 14_400, 86_400];
/** An attempt has 15 s. */
const DELIVERY_BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15];

/** Each scrape would make a list of every handle for them, and three are gauges that end like counters. */
const NOT_OF_NODE = ['handles', 'requests', 'resources'].flatMap((what) => [
  `nodejs_active_${what}`,
  `nodejs_active_${what}_total`,
]);

/** `build`: which version runs; `commit`: null where that is not known. */
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
    help: 'Always 1; the labels say what runs',
    labelNames: ['version', 'commit', 'role'],
    registers,
  }).set({ version: build, commit: commit ?? '', role }, 1);
  const requests = new Counter({
    name: 'loam_http_requests_total',
    help: 'Requests that were answered or left, by route and status',
    labelNames: ['method', 'route', 'status'],
    registers,
  });
  const durations = new Histogram({
    name: 'loam_http_request_duration_seconds',
    help: 'From the headers of a request to the last byte of its answer; without event streams',
    labelNames: ['method', 'route'],
    buckets: REQUEST_BUCKETS,
    registers,
  });
  const inProgress = new Gauge({
    name: 'loam_http_requests_in_progress',
    help: 'Requests whose answer is not complete, event streams among them',
    registers,
  });
  const operations = new Counter({
    name: 'loam_graphql_operations_total',
    help: 'GraphQL operations that were run, by kind',
    labelNames: ['kind', 'result'],
    registers,
  });
  const operationDurations = new Histogram({
    name: 'loam_graphql_operation_duration_seconds',
    help: 'What running queries and mutations took',
    labelNames: ['kind'],
    buckets: OPERATION_BUCKETS,
    registers,
  });
  const streams = new Gauge({
    name: 'loam_streams_open',
    help: 'Streams that clients follow',
    labelNames: ['kind'],
    registers,
  });
  const waits = new Histogram({
    name: 'loam_job_queue_wait_seconds',
    help: 'How long the jobs that this process took had waited in their pool',
    labelNames: ['gpu', 'region'],
    buckets: WAIT_BUCKETS,
    registers,
  });
  const attempts = new Counter({
    name: 'loam_job_attempts_total',
    help: 'Attempts of jobs that ended, by outcome',
    labelNames: ['outcome'],
    registers,
  });
  const lines = new Counter({
    name: 'loam_job_log_lines_total',
    help: 'Lines of jobs that were stored',
    registers,
  });
  const largeTransfers = new Counter({
    name: 'loam_large_file_transfers_total',
    help: 'Uploads and downloads of large files that ended, by outcome',
    labelNames: ['direction', 'outcome'],
    registers,
  });
  const largeBytes = new Counter({
    name: 'loam_large_file_bytes_total',
    help: 'Bytes of large files that came and were sent',
    labelNames: ['direction'],
    registers,
  });
  const tries = new Counter({
    name: 'loam_webhook_attempts_total',
    help: 'Requests to receivers of webhooks, by outcome',
    labelNames: ['outcome'],
    registers,
  });
  const tryDurations = new Histogram({
    name: 'loam_webhook_attempt_duration_seconds',
    help: 'What requests to receivers of webhooks took',
    buckets: DELIVERY_BUCKETS,
    registers,
  });
  const firstTries = new Histogram({
    name: 'loam_webhook_first_attempt_delay_seconds',
    help: 'From an event to the end of the first request that tells of it',
    buckets: DELIVERY_BUCKETS,
    registers,
  });
  const deliveries = new Counter({
    name: 'loam_webhook_deliveries_total',
    help: 'Deliveries that succeeded, or that no attempt is left for',
    labelNames: ['status'],
    registers,
  });
  // From the beginning, so that the first of them is a rise from 0.
  for (const outcome of ATTEMPT_OUTCOMES) attempts.inc({ outcome }, 0);
  for (const status of ['succeeded', 'failed']) deliveries.inc({ status }, 0);
  for (const direction of DIRECTIONS) {
    largeBytes.inc({ direction }, 0);
    for (const outcome of TRANSFER_OUTCOMES) largeTransfers.inc({ direction, outcome }, 0);
  }
  for (const kind of STREAMS) streams.set({ kind }, 0);

  const git = countGitProcesses(registry);
  const readings = readAtScrape(registry);
  let watched = false;

  return {
    requestBegan: () => inProgress.inc(),
    requestEnded({ method, route, status, seconds }) {
      inProgress.dec();
      const known = METHODS.has(method) ? method : 'other';
      requests.inc({ method: known, route, status: status ?? 'none' });
      if (seconds !== null) durations.observe({ method: known, route }, seconds);
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
    largeFileBytes: (direction, bytes) => largeBytes.inc({ direction }, bytes),
    largeFileTransferred: (direction, outcome) => largeTransfers.inc({ direction, outcome }),
    deliveryTried({ outcome, seconds, sinceEvent }) {
      tries.inc({ outcome: classOf(outcome) });
      tryDurations.observe(seconds);
      if (sinceEvent !== undefined) firstTries.observe(Math.max(0, sinceEvent));
    },
    deliveryEnded: (status) => deliveries.inc({ status }),
    read: readings.add,
    watchNode() {
      if (watched) return;
      watched = true;
      collectDefaultMetrics({ register: registry });
      for (const name of NOT_OF_NODE) registry.removeSingleMetric(name);
    },
    async text() {
      await readings.readDatabase();
      return registry.metrics();
    },
    [Symbol.dispose]: () => git[Symbol.dispose](),
  };
}

/** `status_404` becomes `status_4xx`: the number is the receiver's choice. */
function classOf(outcome: string): string {
  return outcome.replace(/^status_(\d)\d\d$/, 'status_$1xx');
}

/** Git's processes, of which git tells on a channel (`git/processes/run.ts`): all of this Node process. */
function countGitProcesses(registry: Registry): Disposable {
  const registers = [registry];
  const started = new Counter({
    name: 'loam_git_processes_started_total',
    help: 'Git processes that were started, by command',
    labelNames: ['command'],
    registers,
  });
  const running = new Gauge({
    name: 'loam_git_processes_running',
    help: 'Git processes that run, those kept for reading among them',
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
