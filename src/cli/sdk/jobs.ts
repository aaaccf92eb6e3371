/** Jobs: create, read, follow, wait, cancel, run again, delete; also many at once. */
import { Artifacts } from './artifacts.ts';
import {
  type BulkOptions,
  type BulkResult,
  cancelJobs,
  deleteJobs,
  type JobSelection,
  rerunJobs,
} from './bulk.ts';
import { type Comparison, compareJobs } from './compare.ts';
import { HTTP_STATUS, LoamError } from './errors.ts';
import { readEvents, type ServerEvent } from './event-stream.ts';
import { graphql } from './graphql.ts';
import {
  isFinal,
  JOB_FILTERS,
  type JobFilter,
  type JobInfo,
  type JobMetric,
  type JobStatus,
  type LogEvent,
} from './job-info.ts';
import { createInput, type JobOptions } from './job-input.ts';
import { checkOptions, RETRY_OPTIONS } from './options.ts';
import { demand, demandViewer, LIST_OPTIONS, type ListOptions, readPages } from './pages.ts';
import { Backoff, type RetryOptions, retry } from './retry.ts';
import { MAX_SILENCE_MS, type Transport } from './transport.ts';

const JOB_FIELDS = graphql(`
  fragment JobFields on Job {
    id namespace name status progress command repo branch commitSha snapshot image gpu gpuCount cpu memoryGb diskGb
    region timeoutMinutes maxCost idleTimeoutMinutes holdOnFailureMinutes shellAccess hold { isActive exitCode since until seconds }
    retries retryCount outputPath exitCode costPerHour totalCost runtimeSeconds
    createdAt startedAt completedAt createdBy { username } labels { key value } matrixValues { key value } environmentNames secretNames
    storedSecretNames storedVariableNames permissions { repo jobs } idTokens { variable audience }
    inputs { jobName path to } repositoryInputs { repo ref commitSha path to readOnly } volumes { name to readOnly } caches { path key restoreKeys resolvedKey restoredKey restoredBytes isSaved problem }
    checks { metric min max regressPercent better baselineJob passed message } outputs { name value }
    checkpointPath checkpointMinutes checkpoint { createdAt sizeBytes files attempt } testReports hasSummary testReport { total passed failed skipped } rerunOf { name } artifacts { fileCount sizeBytes path }
  }
`);

const READ_JOB = graphql(
  `query ReadJob($namespace: String!, $name: String!) {
    job(namespace: $namespace, name: $name) { ...JobFields }
  }`,
  [JOB_FIELDS],
);
const READ_LOG_END = graphql(`
  query ReadLogEnd($namespace: String!, $name: String!) {
    job(namespace: $namespace, name: $name) { log(last: 1) { lastSeq } }
  }
`);
const READ_LOG_AT = graphql(`
  query ReadLogAt($namespace: String!, $name: String!, $at: DateTime!) {
    job(namespace: $namespace, name: $name) { log(at: $at, first: 1) { lastSeq entries { seq } } }
  }
`);
const READ_LAST_LINES = graphql(`
  query ReadLastLines($namespace: String!, $name: String!, $tail: Int!, $since: DateTime) {
    job(namespace: $namespace, name: $name) {
      logs(tail: $tail, since: $since) { lines { seq timestamp message } }
      log(last: 1) { lastSeq }
    }
  }
`);
const LIST_MINE = graphql(
  `query ListJobs($first: Int!, $after: String, $filter: JobFilter) {
    viewer {
      jobs(first: $first, after: $after, filter: $filter) {
        nodes { ...JobFields } pageInfo { hasNextPage endCursor }
      }
    }
  }`,
  [JOB_FIELDS],
);
const LIST_OF_NAMESPACE = graphql(
  `query ListJobsOfNamespace($namespace: String!, $first: Int!, $after: String, $filter: JobFilter) {
    namespace(name: $namespace) {
      jobs(first: $first, after: $after, filter: $filter) {
        nodes { ...JobFields } pageInfo { hasNextPage endCursor }
      }
    }
  }`,
  [JOB_FIELDS],
);
const CREATE_JOB = graphql(`
  mutation CreateJob($input: CreateJobInput!) {
    createJob(input: $input) { job { namespace name } }
  }
`);
const CANCEL_JOB = graphql(
  `mutation CancelJob($input: CancelJobInput!) {
    cancelJob(input: $input) { job { ...JobFields } }
  }`,
  [JOB_FIELDS],
);
const RELEASE_JOB = graphql(
  `mutation ReleaseJob($input: ReleaseJobInput!) {
    releaseJob(input: $input) { job { ...JobFields } }
  }`,
  [JOB_FIELDS],
);
const READ_METRICS = graphql(`
  query ReadJobMetrics($namespace: String!, $name: String!, $names: [String!]) {
    job(namespace: $namespace, name: $name) {
      metrics(names: $names) { name points min max last lastStep lastAt }
    }
  }
`);
const READ_SUMMARY = graphql(`
  query ReadJobSummary($namespace: String!, $name: String!) {
    job(namespace: $namespace, name: $name) { summary }
  }
`);
const READ_TESTS = graphql(`
  query ReadJobTests($namespace: String!, $name: String!, $status: TestStatus, $offset: Int!) {
    job(namespace: $namespace, name: $name) {
      testReport {
        tests(status: $status, first: 250, offset: $offset) {
          status name className suite file durationMs message details output
        }
      }
    }
  }
`);
const RERUN_JOB = graphql(`
  mutation RerunJob($input: RerunJobInput!) {
    rerunJob(input: $input) { job { namespace name } }
  }
`);
const DELETE_JOB = graphql(`
  mutation DeleteJob($input: DeleteJobInput!) {
    deleteJob(input: $input) { id }
  }
`);

export type LogOptions = RetryOptions & {
  /** Only the last lines: 1 to 10000. */
  tail?: number | undefined;
  /** Only lines written after this time. */
  since?: Date | undefined;
  /** Whether to go on until the job ends, instead of to the present end of the log. */
  follow?: boolean | undefined;
};

/** A test of a job. */
export type TestCase = {
  status: 'FAILED' | 'SKIPPED' | 'PASSED';
  name: string;
  /** The class or file that has it; may be empty. */
  className: string;
  suite: string;
  file: string | null;
  durationMs: number | null;
  /** Why it failed or was skipped. */
  message: string | null;
  /** The text of the failure, such as a stack trace. */
  details: string | null;
  /** The end of what a failed test printed. */
  output: string | null;
};

/** A job that did not succeed. */
export class JobFailed extends Error {
  override name = 'JobFailed';
  readonly job: JobInfo;
  constructor(job: JobInfo) {
    const code = job.exitCode === null ? '' : ` with exit code ${job.exitCode}`;
    super(`${job.namespace}/${job.name} ${job.status.toLowerCase().replace('_', ' ')}${code}`);
    this.job = job;
  }
}

/** A job. Each method asks the server: nothing is stored. */
export class Job {
  readonly namespace: string;
  readonly name: string;
  /** The files that the job left at `outputPath`. */
  readonly artifacts: Artifacts;
  readonly #transport: Transport;

  constructor(transport: Transport, key: { namespace: string; name: string }) {
    this.#transport = transport;
    this.namespace = key.namespace;
    this.name = key.name;
    this.artifacts = new Artifacts(transport, key);
  }

  get #key(): { namespace: string; name: string } {
    return { namespace: this.namespace, name: this.name };
  }

  /** The page of the job in the dashboard. */
  get url(): string {
    return `${this.#transport.url}/${encodeURIComponent(this.namespace)}/-/jobs/${encodeURIComponent(this.name)}`;
  }

  /** Reads the job. @throws LoamError `not_found`, `permission_denied` */
  async info(options: { signal?: AbortSignal | undefined } = {}): Promise<JobInfo> {
    const { job } = await this.#transport.graphql(READ_JOB, this.#key, options);
    return demand(job, 'Job');
  }

  /**
   * The lines of the log, and the changes of status between them. With `follow` it ends when the job has ended, and
   * survives restarts of the server and cuts of the network; each line comes once.
   * @throws LoamError
   */
  async *logs(options: LogOptions = {}): AsyncGenerator<LogEvent> {
    checkOptions(options, { ...RETRY_OPTIONS, tail: true, since: true, follow: true });
    const { tail, since, follow = true, ...retrying } = options;
    let after = 0;
    const until = follow ? Number.POSITIVE_INFINITY : await this.#lastSeq(retrying);
    if (tail !== undefined) {
      const variables = { ...this.#key, tail, since: since?.toISOString() ?? null };
      const read = () => this.#transport.graphql(READ_LAST_LINES, variables, retrying);
      const { logs, log } = demand((await retry(read, retrying)).job, 'Job');
      const lines = logs?.lines ?? [];
      for (const line of lines) yield { kind: 'line', ...line };
      after = lines.at(-1)?.seq ?? log?.lastSeq ?? 0;
    } else if (since !== undefined) {
      const variables = { ...this.#key, at: since.toISOString() };
      const read = () => this.#transport.graphql(READ_LOG_AT, variables, retrying);
      const { log } = demand((await retry(read, retrying)).job, 'Job');
      const first = log?.entries[0]?.seq;
      after = first === undefined ? (log?.lastSeq ?? 0) : first - 1;
    }
    if (after < until) yield* this.#follow(after, until, retrying);
  }

  async #lastSeq(retrying: RetryOptions): Promise<number> {
    const read = () => this.#transport.graphql(READ_LOG_END, this.#key, retrying);
    return demand((await retry(read, retrying)).job, 'Job').log?.lastSeq ?? 0;
  }

  async *#follow(after: number, until: number, options: RetryOptions): AsyncGenerator<LogEvent> {
    const path = `/${encodeURIComponent(this.namespace)}/job/${encodeURIComponent(this.name)}/logs?stream=true`;
    const backoff = new Backoff(options);
    let last = after;
    for (;;) {
      try {
        const response = await this.#transport.send(path, {
          headers: { accept: 'text/event-stream', 'last-event-id': `${last}` },
          signal: options.signal,
          timeoutMs: MAX_SILENCE_MS,
        });
        backoff.succeeded();
        if (response.status === 204) return;
        for await (const event of readEvents(response, this.#transport.url)) {
          const entry = parseEntry(event);
          // An entry that came before the connection was cut.
          if (entry.kind !== 'end' && entry.seq <= last) continue;
          last = Math.max(last, entry.seq);
          yield entry;
          if (entry.kind === 'end' || last >= until) return;
        }
        // A server that stops ends its streams.
        throw new LoamError('unreachable', `${this.#transport.url} closed the connection`);
      } catch (error) {
        await backoff.afterFailure(error);
      }
    }
  }

  /**
   * The metrics that the job prints (`::metric::loss=0.5`), by name.
   * @param options.names only these
   * @throws LoamError `not_found`, `permission_denied`
   */
  async metrics(options: { names?: string[] } = {}): Promise<JobMetric[]> {
    checkOptions(options, { names: true });
    const variables = { ...this.#key, names: options.names ?? null };
    const { job } = await this.#transport.graphql(READ_METRICS, variables);
    return demand(demand(job, 'Job').metrics, 'Job').map((metric) => ({
      ...metric,
      min: metric.min === null ? null : Number(metric.min),
      max: metric.max === null ? null : Number(metric.max),
      last: Number(metric.last),
    }));
  }

  /** The Markdown text that the job has written to `JOB_SUMMARY`; null if it has written none. @throws LoamError */
  async summary(): Promise<string | null> {
    const { job } = await this.#transport.graphql(READ_SUMMARY, this.#key);
    return demand(job, 'Job').summary;
  }

  /**
   * The tests of the last attempt with reports, failed ones first. Null if there are no reports.
   * @param options.status only tests that ended like this
   * @throws LoamError
   */
  async tests(options: { status?: TestCase['status'] } = {}): Promise<TestCase[] | null> {
    checkOptions(options, { status: true });
    const tests: TestCase[] = [];
    for (;;) {
      const variables = { ...this.#key, status: options.status ?? null, offset: tests.length };
      const { job } = await this.#transport.graphql(READ_TESTS, variables);
      const report = demand(job, 'Job').testReport;
      if (!report) return null;
      tests.push(...report.tests);
      if (report.tests.length < 250) return tests;
    }
  }

  /** Waits until the job has ended. @throws LoamError */
  async wait(options: RetryOptions = {}): Promise<JobInfo> {
    checkOptions(options, RETRY_OPTIONS);
    const read = () => this.info(options);
    const info = await retry(read, options);
    if (isFinal(info.status)) return info;
    for await (const _ of this.#follow(
      await this.#lastSeq(options),
      Number.POSITIVE_INFINITY,
      options,
    ));
    return retry(read, options);
  }

  /** Waits until the job has succeeded. @throws JobFailed when it has ended otherwise; LoamError */
  async result(options: RetryOptions = {}): Promise<JobInfo> {
    const info = await this.wait(options);
    if (info.status !== 'SUCCEEDED') throw new JobFailed(info);
    return info;
  }

  /** Cancels the job at once. Its processes may still be ending. @throws LoamError `conflict` when it has ended */
  async cancel(): Promise<JobInfo> {
    const { cancelJob } = await this.#transport.graphql(CANCEL_JOB, { input: this.#key });
    return demand(cancelJob, 'Job').job;
  }

  /**
   * Ends the hold of a failed job (`holdOnFailureMinutes`), which then ends with its artifacts and the exit code of its command.
   * @throws LoamError `conflict` when it is not held
   */
  async release(): Promise<JobInfo> {
    const { releaseJob } = await this.#transport.graphql(RELEASE_JOB, { input: this.#key });
    return demand(releaseJob, 'Job').job;
  }

  /**
   * Creates a job with the same settings.
   * @param options.newestCommit runs the current commit of the branch instead of the same commit
   */
  async rerun(options: { newName?: string; newestCommit?: boolean } = {}): Promise<Job> {
    checkOptions(options, { newName: true, newestCommit: true });
    const { rerunJob } = await this.#transport.graphql(RERUN_JOB, {
      input: { ...this.#key, ...options },
    });
    return new Job(this.#transport, demand(rerunJob, 'Job').job);
  }

  /** Deletes the job and its log. @throws LoamError `conflict` while it runs */
  async delete(options: { deleteArtifacts?: boolean } = {}): Promise<void> {
    checkOptions(options, { deleteArtifacts: true });
    await this.#transport.graphql(DELETE_JOB, { input: { ...this.#key, ...options } });
  }
}

/** The jobs that the caller may see. */
export class Jobs {
  readonly #transport: Transport;
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** A job by its name. `job.info()` asks the server whether it exists. */
  get(namespace: string, name: string): Job {
    return new Job(this.#transport, { namespace, name });
  }

  /**
   * Creates a job, once, even when the server restarts meanwhile.
   * @throws LoamError `invalid_request` with the field, `permission_denied`, `already_exists`, `quota_exceeded`
   */
  async create(
    command: string,
    options: JobOptions & { namespace: string },
    retrying?: RetryOptions,
  ): Promise<Job> {
    const input = createInput(command, options);
    // Not `randomUUID`, which browsers lack on pages without TLS.
    const key = crypto.getRandomValues(new Uint32Array(4)).join('-');
    const headers = { 'idempotency-key': key };
    let attempts = 0;
    const create = async () => {
      attempts++;
      return this.#transport.graphql(CREATE_JOB, { input }, { headers, signal: retrying?.signal });
    };
    try {
      const { createJob } = await retry(create, retrying);
      return new Job(this.#transport, demand(createJob, 'Job').job);
    } catch (error) {
      // A server that was killed has created the job, but not stored its answer for the repeated request.
      const mayBeOurs =
        error instanceof LoamError && error.code === 'already_exists' && attempts > 1;
      if (!mayBeOurs) throw error;
      const name = input.array ? `${input.name}-0` : input.name;
      const job = new Job(this.#transport, { ...input, name });
      if ((await job.info()).command !== command) throw error;
      return job;
    }
  }

  /**
   * Cancels the queued and running jobs that match.
   * @throws LoamError `invalid_request`, `not_found` for the namespace, `permission_denied`
   */
  cancelMany(selection: JobSelection, options: BulkOptions = {}): Promise<BulkResult> {
    return cancelJobs(this.#transport, selection, options);
  }

  /**
   * Creates a job with the settings of each job that matches.
   * @param options.newestCommit runs the current commits of the branches instead of the same commits
   * @throws LoamError as `cancelMany`
   */
  rerunMany(
    selection: JobSelection,
    options: BulkOptions & { newestCommit?: boolean | undefined } = {},
  ): Promise<BulkResult> {
    return rerunJobs(this.#transport, selection, options);
  }

  /** Deletes the jobs that match and have ended, with their logs. @throws LoamError as `cancelMany` */
  deleteMany(
    selection: JobSelection,
    options: BulkOptions & { deleteArtifacts?: boolean | undefined } = {},
  ): Promise<BulkResult> {
    return deleteJobs(this.#transport, selection, options);
  }

  /**
   * Compares up to 1000 jobs: their settings, the values of their matrix, and the last, lowest and highest values of their metrics.
   *
   *     const { jobs } = await client.jobs.compare({ namespace: 'ada', array: 'sweep' });
   *     const best = jobs.toSorted((a, b) => (a.metrics.loss?.last ?? Infinity) - (b.metrics.loss?.last ?? Infinity))[0];
   *
   * @param selection `array` is the name of an array, or of a matrix of a run, or its id
   * @param options.metrics only these; by default all
   * @throws LoamError as `cancelMany`
   */
  compare(
    selection: JobSelection,
    options: { metrics?: string[] | undefined } = {},
  ): Promise<Comparison> {
    return compareJobs(this.#transport, selection, options);
  }

  /**
   * Lists jobs, newest first: of one namespace, or of all namespaces of the caller.
   * @throws LoamError `not_found` for the namespace, `permission_denied`
   */
  list(
    filter: JobFilter & { namespace?: string | undefined } = {},
    options: ListOptions = {},
  ): AsyncGenerator<JobInfo> {
    checkOptions(filter, { ...JOB_FILTERS, namespace: true });
    checkOptions(options, LIST_OPTIONS);
    const { namespace, ...others } = filter;
    const variables = { filter: others };
    if (namespace === undefined)
      return readPages(
        async (range) =>
          demandViewer(await this.#transport.graphql(LIST_MINE, { ...variables, ...range })).jobs,
        { ...options, what: 'Jobs' },
      );
    return readPages(
      async (range) =>
        (await this.#transport.graphql(LIST_OF_NAMESPACE, { ...variables, ...range, namespace }))
          .namespace?.jobs,
      { ...options, what: `Namespace ${namespace}` },
    );
  }
}

/** @throws LoamError for an `error` event, and for an event that is not one of a log */
function parseEntry({ id, event, data }: ServerEvent): LogEvent {
  const seq = Number(id);
  const parsed = parseData(data);
  if (event === 'error') {
    const error = parsed.error as { code?: unknown; message?: unknown } | undefined;
    const code = String(error?.code);
    throw new LoamError(code, String(error?.message), { status: HTTP_STATUS[code] ?? 400 });
  }
  if (!Number.isSafeInteger(seq)) throw new LoamError('bad_answer', 'The log has a wrong id.');
  const timestamp = String(parsed.timestamp);
  const status = String(parsed.status).toUpperCase() as JobStatus;
  if (event === 'log') return { kind: 'line', seq, timestamp, message: String(parsed.message) };
  if (event === 'status') return { kind: 'status', seq, timestamp, status };
  const exitCode = typeof parsed.exit_code === 'number' ? parsed.exit_code : null;
  return { kind: 'end', seq, status, exitCode };
}

function parseData(data: string): Record<string, unknown> {
  try {
    const parsed = JSON.parse(data);
    if (typeof parsed === 'object' && parsed !== null) return parsed;
  } catch {}
  throw new LoamError('bad_answer', 'The log has an event that is not JSON.');
}
