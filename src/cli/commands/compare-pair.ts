/** What differs between two jobs, for `loam compare`. */
import type { Client } from '../sdk/client.ts';
import type { ComparedJob } from '../sdk/compare.ts';
import { graphql } from '../sdk/graphql.ts';
import { demand } from '../sdk/pages.ts';
import { duration, isTerminal, note, printTable } from '../terminal.ts';
import { isNotFound } from './arrays.ts';

const COMPARE_PAIR = graphql(`
  query ComparePair($jobs: [JobSelectionInput!]!) {
    compareJobs(jobs: $jobs) { jobs { id } differences { name values } }
  }
`);
const COMPARE_COMMITS = graphql(`
  query CompareCommits($namespace: String!, $name: String!, $first: String!, $second: String!) {
    repository(namespace: $namespace, name: $name) {
      added: comparison(base: $first, head: $second) {
        aheadBy behindBy
        commits(first: 100) { nodes { sha message } }
        changes { files(first: 100) { totalCount nodes { path oldPath status additions deletions } } }
      }
      removed: comparison(base: $second, head: $first) { commits(first: 100) { nodes { sha message } } }
    }
  }
`);

type Pair = readonly [ComparedJob, ComparedJob];
type Commit = { sha: string; title: string };

export type PairDifferences = {
  /** A setting of both jobs, as texts; null: the job does not have it. */
  differences: { name: string; values: (string | null)[] }[];
  /** What the commit of the second job has and lacks; null: the same commit, or none of the same repository. */
  commits: {
    aheadBy: number;
    behindBy: number;
    /** At most 100, newest first. */
    added: Commit[];
    removed: Commit[];
    /** What the added commits change, at most 100 files. */
    files: readonly {
      path: string;
      status: string;
      additions: number | null;
      deletions: number | null;
    }[];
    fileCount: number;
  } | null;
};

export async function readPair(client: Client, jobs: Pair): Promise<PairDifferences> {
  const selections = jobs.map(({ namespace, name }) => ({ namespace, names: [name] }));
  const { compareJobs } = await client.graphql(COMPARE_PAIR, { jobs: selections });
  const found = demand(compareJobs, 'Comparison');
  // The server has them in the order of their creation.
  const isSwapped = found.jobs[0]?.id !== jobs[0].id;
  const differences = (found.differences ?? []).map(({ name, values }) => ({
    name,
    values: isSwapped ? (values ?? []).toReversed() : [...(values ?? [])],
  }));
  return { differences, commits: await readCommits(client, jobs) };
}

async function readCommits(client: Client, [a, b]: Pair): Promise<PairDifferences['commits']> {
  if (!a.repo || a.repo !== b.repo || !a.commitSha || !b.commitSha || a.commitSha === b.commitSha)
    return null;
  const [namespace = '', name = ''] = a.repo.split('/');
  const variables = { namespace, name, first: a.commitSha, second: b.commitSha };
  const answer = await client.graphql(COMPARE_COMMITS, variables).catch((error) => {
    // A job outlives its repository, and its commit can be gone.
    if (isNotFound(error)) return null;
    throw error;
  });
  const { added, removed } = answer?.repository ?? {};
  if (!added) return null;
  const toCommits = (list: { nodes: readonly { sha: string; message: string }[] } | null) =>
    (list?.nodes ?? []).map(({ sha, message }) => ({ sha, title: message.split('\n')[0] ?? '' }));
  const { aheadBy, behindBy, commits, changes } = added;
  return {
    aheadBy,
    behindBy,
    added: toCommits(commits),
    removed: toCommits(removed?.commits ?? null),
    files: changes?.files?.nodes ?? [],
    fileCount: changes?.files?.totalCount ?? 0,
  };
}

/** Longer texts, such as commands, would leave no room for those of the second job. */
const MAX_SHOWN = 40;

/** @param metrics texts of both jobs */
export function printPair(
  jobs: Pair,
  metrics: readonly { name: string; values: readonly string[] }[],
  { differences, commits }: PairDifferences,
): void {
  const shorten = (text: string) =>
    isTerminal && text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN - 1)}…` : text;
  const row = (name: string, values: readonly (string | null)[]) => [
    { text: name, colour: 'bold' as const },
    ...values.map((value) => shorten(value ?? '')),
  ];
  printTable(
    ['', ...jobs.map(({ namespace, name }) => `${namespace}/${name}`)],
    [
      ...metrics.map(({ name, values }) => row(name, values)),
      row(
        'Duration',
        jobs.map((job) => (job.startedAt ? duration(job.runtimeSeconds) : null)),
      ),
      row(
        'Cost',
        jobs.map(({ totalCost }) => totalCost),
      ),
      ...differences.map(({ name, values }) => row(name, values)),
    ],
  );
  if (differences.length === 0) note('The jobs have the same settings.');
  if (commits) printCommits(commits);
}

function printCommits({
  aheadBy,
  behindBy,
  added,
  removed,
  files,
  fileCount,
}: NonNullable<PairDifferences['commits']>): void {
  note(`The commit of the second job is ${aheadBy} ahead and ${behindBy} behind.`);
  const row = (sign: string, { sha, title }: Commit) => [sign, sha.slice(0, 10), title];
  printTable(
    ['', 'COMMIT', 'TITLE'],
    [...added.map((one) => row('+', one)), ...removed.map((one) => row('-', one))],
  );
  if (files.length === 0) return;
  printTable(
    ['FILE', 'STATUS', 'LINES'],
    files.map(({ path, status, additions, deletions }) => [
      path,
      status.toLowerCase(),
      additions === null ? '' : `+${additions} -${deletions}`,
    ]),
  );
  if (fileCount > files.length) note(`${fileCount - files.length} more files.`);
}
