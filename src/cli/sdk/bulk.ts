/** Changes of many jobs by one call. */
import { graphql } from './graphql.ts';
import { JOB_FILTERS, type JobFilter } from './job-info.ts';
import { checkOptions, RETRY_OPTIONS } from './options.ts';
import { demand } from './pages.ts';
import { type RetryOptions, retry } from './retry.ts';
import type { Transport } from './transport.ts';

/** Jobs of a namespace that match all given filters. Without a filter, `all` is required. */
export type JobSelection = JobFilter & {
  namespace: string;
  /** Up to 1000. */
  names?: string[] | undefined;
  /** Selects all jobs that match the filters, also if there is no filter. */
  all?: boolean | undefined;
};

export type BulkOptions = RetryOptions & {
  /** Counts only. */
  dryRun?: boolean | undefined;
};

/** Jobs that were not changed for the same reason. */
export type SkippedJobs = {
  reason: 'NOT_FOUND' | 'NOT_PERMITTED' | 'WRONG_STATUS' | 'QUOTA_EXCEEDED' | 'NOT_REPEATABLE';
  count: number;
  /** Of at most 10 of them. */
  names: readonly string[];
  /** Why the first was skipped. */
  message: string;
};

export type BulkResult = {
  /** How many jobs were selected, without those that were not found by name. */
  matched: number;
  /** How many were changed; in a dry run, would be. */
  done: number;
  skipped: SkippedJobs[];
};

const BULK_OPTIONS = { ...RETRY_OPTIONS, dryRun: true } as const;

const CANCEL_JOBS = graphql(`
  mutation CancelJobs($input: CancelJobsInput!) {
    cancelJobs(input: $input) { matched done skipped { reason count names message } endCursor }
  }
`);
const RERUN_JOBS = graphql(`
  mutation RerunJobs($input: RerunJobsInput!) {
    rerunJobs(input: $input) { matched done skipped { reason count names message } endCursor }
  }
`);
const DELETE_JOBS = graphql(`
  mutation DeleteJobs($input: DeleteJobsInput!) {
    deleteJobs(input: $input) { matched done skipped { reason count names message } endCursor }
  }
`);

export function cancelJobs(
  transport: Transport,
  selection: JobSelection,
  options: BulkOptions,
): Promise<BulkResult> {
  checkOptions(options, BULK_OPTIONS);
  const { dryRun, ...retrying } = options;
  return changeAll(selection, async (range) => {
    const input = { ...range, dryRun };
    const send = () => transport.graphql(CANCEL_JOBS, { input }, retrying);
    return (await retry(send, retrying)).cancelJobs;
  });
}

export function deleteJobs(
  transport: Transport,
  selection: JobSelection,
  options: BulkOptions & { deleteArtifacts?: boolean | undefined },
): Promise<BulkResult> {
  checkOptions(options, { ...BULK_OPTIONS, deleteArtifacts: true });
  const { dryRun, deleteArtifacts, ...retrying } = options;
  return changeAll(selection, async (range) => {
    const input = { ...range, dryRun, deleteArtifacts };
    const send = () => transport.graphql(DELETE_JOBS, { input }, retrying);
    return (await retry(send, retrying)).deleteJobs;
  });
}

/** Not retried, because jobs that were created before a failure would be created again. */
export function rerunJobs(
  transport: Transport,
  selection: JobSelection,
  options: BulkOptions & { newestCommit?: boolean | undefined },
): Promise<BulkResult> {
  checkOptions(options, { ...BULK_OPTIONS, newestCommit: true });
  const { dryRun, newestCommit, signal } = options;
  return changeAll(selection, async (range) => {
    const input = { ...range, dryRun, newestCommit };
    return (await transport.graphql(RERUN_JOBS, { input }, { signal })).rerunJobs;
  });
}

export type SelectionInput = {
  namespace: string;
  filter?: JobFilter | null;
  names?: string[] | null;
};
type Call = SelectionInput & { after: string | null };
type Part = Omit<BulkResult, 'skipped'> & {
  skipped: readonly SkippedJobs[];
  endCursor: string | null;
};

/** Calls until all selected jobs are done: a call ends after 10,000 jobs or 20 seconds. */
async function changeAll(
  selected: JobSelection,
  call: (range: Call) => Promise<Part | null>,
): Promise<BulkResult> {
  const selection = toSelectionInput(selected);
  const total: BulkResult = { matched: 0, done: 0, skipped: [] };
  let after: string | null = null;
  do {
    const part: Part = demand(
      await call({ ...selection, after }),
      `Namespace ${selected.namespace}`,
    );
    total.matched += part.matched;
    total.done += part.done;
    for (const skipped of part.skipped) addSkipped(total.skipped, skipped);
    after = part.endCursor;
  } while (after !== null);
  return total;
}

/** The form that GraphQL has. @throws LoamError `invalid_request` */
export function toSelectionInput(selected: JobSelection): SelectionInput {
  checkOptions(selected, { namespace: true, names: true, all: true, ...JOB_FILTERS });
  const { namespace, names, all, ...filter } = selected;
  const isFiltered = Object.values(filter).some((value) => value !== undefined);
  // Without names and conditions, the server refuses the call: a forgotten variable must not select all jobs.
  return { namespace, filter: isFiltered || all ? filter : null, names: names ?? null };
}

function addSkipped(all: SkippedJobs[], more: SkippedJobs): void {
  const same = all.find(({ reason }) => reason === more.reason);
  if (same) {
    same.count += more.count;
    same.names = [...same.names, ...more.names].slice(0, 10);
  } else all.push({ ...more });
}
