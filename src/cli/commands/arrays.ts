/** Arrays of jobs, and matrices of runs, by the names that people type. */
import { toArray } from '../command.ts';
import type { LocalConnection } from '../connection.ts';
import type { BulkResult } from '../sdk/bulk.ts';
import type { Client } from '../sdk/client.ts';
import { LoamError } from '../sdk/errors.ts';
import { graphql } from '../sdk/graphql.ts';
import { isFinal, type JobFilter, type JobInfo, type JobStatus } from '../sdk/job-info.ts';
import { fromEnum } from '../sdk/job-input.ts';
import type { Job } from '../sdk/jobs.ts';
import { demand } from '../sdk/pages.ts';
import { type RetryOptions, retry, sleep } from '../sdk/retry.ts';
import { jobOf } from './job-name.ts';

const READ_ARRAY = graphql(`
  query ReadArray($namespace: String!, $name: String!) {
    jobArray(namespace: $namespace, name: $name) { id size maxParallel counts { status count } }
  }
`);

const FIRST_INTERVAL_MS = 500;
const MAX_INTERVAL_MS = 2_000;
const FINAL: JobStatus[] = ['SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELLED'];

/** The number of jobs in each status. */
type Counts = readonly { status: JobStatus; count: number }[];

/** An array of jobs. Except for the counts, nothing of it changes. */
export class JobArray {
  readonly namespace: string;
  readonly name: string;
  readonly id: string;
  /** The number of jobs that were created. */
  readonly size: number;
  readonly maxParallel: number | null;
  readonly #client: Client;

  private constructor(
    client: Client,
    key: { namespace: string; name: string },
    { id, size, maxParallel }: { id: string; size: number; maxParallel: number | null },
  ) {
    this.#client = client;
    this.namespace = key.namespace;
    this.name = key.name;
    this.id = id;
    this.size = size;
    this.maxParallel = maxParallel;
  }

  /** @throws LoamError `not_found` */
  static async read(
    client: Client,
    key: { namespace: string; name: string },
    retrying?: RetryOptions,
  ): Promise<JobArray> {
    return new JobArray(client, key, await readArray(client, key, retrying));
  }

  /** The list of its jobs in the dashboard. */
  get url(): string {
    return `${this.#client.url}/${encodeURIComponent(this.namespace)}/-/jobs?array=${this.id}`;
  }

  /** @throws LoamError `not_found` when all its jobs were deleted */
  async counts(retrying?: RetryOptions): Promise<Counts> {
    const { id, counts } = await readArray(this.#client, this, retrying);
    // A newer array can have the name.
    return demand(id === this.id ? counts : null, `Array ${this.namespace}/${this.name}`);
  }

  /** Its jobs that match, in their order. */
  async jobs(filter: JobFilter = {}, retrying?: RetryOptions): Promise<JobInfo[]> {
    const selection = { namespace: this.namespace, array: this.id, ...filter };
    const found = await retry(() => toArray(this.#client.jobs.list(selection)), retrying);
    return found.sort((a, b) => this.indexOf(a) - this.indexOf(b));
  }

  /** The first jobs that match, of the newest ones. */
  someJobs(filter: JobFilter, limit: number): Promise<JobInfo[]> {
    const selection = { namespace: this.namespace, array: this.id, ...filter };
    return toArray(this.#client.jobs.list(selection, { limit }));
  }

  job({ name }: Pick<JobInfo, 'name'>): Job {
    return this.#client.jobs.get(this.namespace, name);
  }

  /** The number at the end of the name of a job: its index, in a run the number of its combination. */
  indexOf({ name }: Pick<JobInfo, 'name'>): number {
    return Number(name.slice(name.lastIndexOf('-') + 1));
  }

  /** Cancels its queued and running jobs. */
  cancel(): Promise<BulkResult> {
    return this.#client.jobs.cancelMany({ namespace: this.namespace, array: this.id });
  }

  /** Creates a job with the settings of each of its jobs. */
  rerun(options: { newestCommit?: boolean | undefined }): Promise<BulkResult> {
    return this.#client.jobs.rerunMany({ namespace: this.namespace, array: this.id }, options);
  }

  /** Deletes those of its jobs that have ended. */
  delete(options: { deleteArtifacts: boolean }): Promise<BulkResult> {
    return this.#client.jobs.deleteMany({ namespace: this.namespace, array: this.id }, options);
  }
}

async function readArray(
  client: Client,
  { namespace, name }: { namespace: string; name: string },
  retrying?: RetryOptions,
) {
  const read = () => client.graphql(READ_ARRAY, { namespace, name }, retrying);
  return demand((await retry(read, retrying)).jobArray, `Array ${namespace}/${name}`);
}

/** Finds a job, or else an array, by its name. @throws LoamError `not_found` */
export async function findTarget(
  connection: LocalConnection,
  typed: string,
  retrying?: RetryOptions,
): Promise<Job | JobArray> {
  const job = jobOf(connection, typed);
  try {
    await retry(() => job.info(retrying), retrying);
    return job;
  } catch (error) {
    if (!isNotFound(error)) throw error;
    return JobArray.read(connection.client, job, retrying).catch((second) => {
      throw isNotFound(second) ? error : second;
    });
  }
}

export function isNotFound(error: unknown): boolean {
  return error instanceof LoamError && error.code === 'not_found';
}

/** How the jobs of an array stand, and those that have ended since the previous step, in the order of their ends. */
export type ArrayStep = { counts: Counts; ended: JobInfo[] };

/** Follows an array until all its jobs have ended. @throws LoamError */
export async function* followArray(
  array: JobArray,
  retrying: RetryOptions,
): AsyncGenerator<ArrayStep> {
  const seen = new Set<string>();
  let newest: string | undefined;
  const readUnseen = async (filter: JobFilter) => {
    const found = await array.jobs({ ...filter, statuses: FINAL }, retrying);
    const unseen = found.filter(({ id }) => !seen.has(id));
    for (const { id } of unseen) seen.add(id);
    return unseen;
  };
  for (let pause = FIRST_INTERVAL_MS; ; pause = Math.min(1.5 * pause, MAX_INTERVAL_MS)) {
    const counts = await array.counts(retrying);
    const endedCount = countOf(counts, isFinal);
    let ended: JobInfo[] = [];
    if (endedCount > seen.size && newest !== undefined)
      ended = await readUnseen({ completedFrom: newest });
    // The server can show a job after others that ended later.
    if (endedCount > seen.size) ended.push(...(await readUnseen({})));
    ended.sort((a, b) => (a.completedAt ?? '').localeCompare(b.completedAt ?? ''));
    newest = ended.at(-1)?.completedAt ?? newest;
    yield { counts, ended };
    if (countOf(counts, (status) => !isFinal(status)) === 0) return;
    await sleep(pause, retrying.signal);
  }
}

export function countOf(counts: Counts, matches: (status: JobStatus) => boolean): number {
  return counts.reduce((sum, { status, count }) => sum + (matches(status) ? count : 0), 0);
}

/** Such as "3 queued, 2 running, 1 failed". */
export function describeCounts(counts: Counts): string {
  return counts.map(({ status, count }) => `${count} ${fromEnum(status)}`).join(', ');
}
