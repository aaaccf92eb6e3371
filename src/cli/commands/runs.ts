/** `loam runs`: runs of a repository. A run is the jobs that one push, one time of a schedule, or one user has started. */
import { InvalidArgumentError } from '@commander-js/extra-typings';
import type { ResultOf } from 'gql.tada';
import type { Program } from '../command.ts';
import { connectHere, type LocalConnection } from '../connection.ts';
import { EXIT, UsageError } from '../exit.ts';
import { parseCount, parseLimit } from '../options.ts';
import { REPOSITORY, type RepositoryName, resolveRepository } from '../repositories.ts';
import { graphql } from '../sdk/graphql.ts';
import { fromEnum } from '../sdk/job-input.ts';
import { demand } from '../sdk/pages.ts';
import { retry, sleep } from '../sdk/retry.ts';
import {
  ago,
  type Colour,
  duration,
  isTerminal,
  note,
  print,
  printFields,
  printJson,
  printTable,
  safeLine,
  safeText,
} from '../terminal.ts';
import { formatProblem, JOBS_FILE, urlOfRun } from './automation.ts';
import { announced, reasonOfEnd } from './follow.ts';
import { JOB_COLOURS, nameWithValues } from './jobs.ts';

const LIST = graphql(`
  query ListRuns($namespace: String!, $name: String!, $first: Int!, $ref: String) {
    repository(namespace: $namespace, name: $name) {
      runs(first: $first, ref: $ref) {
        nodes { number status trigger ref sha title actor createdAt startedAt completedAt }
      }
    }
  }
`);
const READ = graphql(`
  query ReadRun($namespace: String!, $name: String!, $number: Int!) {
    repository(namespace: $namespace, name: $name) {
      run(number: $number) {
        id number status trigger ref sha title actor approvedBy createdAt startedAt completedAt
        inputs { name value }
        problems { line column message }
        jobs { namespace name runJob matrixValues { key value } status progress exitCode runtimeSeconds }
      }
    }
  }
`);
const APPROVE = graphql(`
  mutation ApproveRun($id: ID!) {
    approveRun(input: { id: $id }) { run { number status } }
  }
`);
const CANCEL = graphql(`
  mutation CancelRun($id: ID!) {
    cancelRun(input: { id: $id }) { run { number status } }
  }
`);
const RERUN = graphql(`
  mutation RerunRun($id: ID!, $failedOnly: Boolean!) {
    rerunRun(input: { id: $id, failedOnly: $failedOnly }) { run { number status } }
  }
`);

type Run = NonNullable<NonNullable<ResultOf<typeof READ>['repository']>['run']>;

const NUMBER = 'the number of the run; by default the newest one';
const OF_REPOSITORY = ['--repo <repository>', REPOSITORY] as const;
const WAIT_INTERVAL_MS = 2_000;
/** A push is answered before its run is created. */
const CREATION_MS = 30_000;

export function addRunsCommands(program: Program): void {
  const runs = program
    .command('runs')
    .description('List, follow and change the runs of a repository');

  runs
    .command('list', { isDefault: true })
    .description('List the runs, newest first')
    .argument('[repository]', REPOSITORY)
    .option('--ref <name>', 'only those of this full ref name, such as refs/heads/main')
    .option('--limit <n>', 'at most so many, up to 100', parseLimit, 20)
    .option('--json', 'print JSON')
    .action(async (text, { ref = null, limit, json }) => {
      const connection = await connectHere(program.opts());
      const at = await resolveRepository(connection, text);
      const nodes = await listRuns(connection, at, { first: Math.min(limit, 100), ref });
      if (json) return printJson(nodes);
      printTable(
        ['RUN', 'STATUS', 'TRIGGER', 'REF', 'COMMIT', 'STARTED BY', 'CREATED', 'TITLE'],
        nodes.map((run) => [
          { text: `${run.number}`, colour: 'bold' },
          { text: fromEnum(run.status), colour: COLOURS[run.status] },
          fromEnum(run.trigger),
          shortRef(run.ref),
          run.sha.slice(0, 10),
          run.actor,
          ago(run.createdAt),
          run.title,
        ]),
      );
    });

  runs
    .command('show')
    .description('Show a run with its jobs')
    .argument('[number]', NUMBER, parseCount)
    .option(...OF_REPOSITORY)
    .option('--json', 'print JSON')
    .action(async (number, { repo, json }) => {
      const { run, url } = await openRun(program, number, repo);
      if (json) return printRunJson(run, url);
      printFields(describe(run, url));
      printProblems(run);
      if (run.jobs.length === 0) return;
      if (isTerminal) print('');
      printTable(
        ['JOB', 'STATUS', 'RUNTIME', 'EXIT CODE', 'PROGRESS'],
        run.jobs.map((job) => [
          nameWithValues(job),
          { text: fromEnum(job.status), colour: JOB_COLOURS[job.status] },
          isTerminal ? duration(job.runtimeSeconds) : `${job.runtimeSeconds}`,
          `${job.exitCode ?? ''}`,
          job.progress ?? '',
        ]),
      );
    });

  runs
    .command('wait')
    .description('Wait until a run is over; exits with 1 unless it succeeded')
    .argument('[number]', NUMBER, parseCount)
    .option(
      '--commit <sha>',
      'the newest run of this commit, also if it is created only now',
      parseCommit,
    )
    .option(...OF_REPOSITORY)
    .option('--json', 'print the run as JSON')
    .action(async (number, { commit, repo, json }) => {
      if (number !== undefined && commit !== undefined)
        throw new UsageError('Name either a run or a commit');
      const { run: first, url, read } = await openRun(program, number, repo, commit);
      let run = first;
      while (run.completedAt === null) {
        if (run.status === 'WAITING_FOR_APPROVAL')
          throw new Error(`The run waits for approval: ${url}`);
        await sleep(WAIT_INTERVAL_MS);
        run = await retry(read, announced());
      }
      if (json) printRunJson(run, url);
      printProblems(run);
      for (const job of run.jobs)
        note(`${job.namespace}/${job.name} ${fromEnum(job.status)}${reasonOfEnd(job)}`);
      note(`Run ${run.number} ${fromEnum(run.status)}`);
      if (run.status !== 'SUCCEEDED') process.exitCode = EXIT.failure;
    });

  runs
    .command('cancel')
    .description('Cancel all jobs of a run that have not ended')
    .argument('[number]', NUMBER, parseCount)
    .option(...OF_REPOSITORY)
    .action(async (number, { repo }) => {
      const { run, client } = await openRun(program, number, repo);
      await client.graphql(CANCEL, { id: run.id });
      note(`Cancelled run ${run.number}`);
    });

  runs
    .command('rerun')
    .description('Create a new run with the jobs of a run, for the same commit')
    .argument('[number]', NUMBER, parseCount)
    .option(...OF_REPOSITORY)
    .option('--failed', 'without the jobs that succeeded')
    .option('--json', 'print the number and the status of the new run as JSON')
    .action(async (number, { repo, failed = false, json }) => {
      const { run, client, urlOf } = await openRun(program, number, repo);
      const { rerunRun } = await client.graphql(RERUN, { id: run.id, failedOnly: failed });
      const created = demand(rerunRun, 'Run').run;
      if (json) return printJson(created);
      print(safeText(urlOf(created.number)));
    });

  runs
    .command('approve')
    .description('Create the jobs of a run that waits for approval, in your name')
    .argument('<number>', 'the number of the run', parseCount)
    .option(...OF_REPOSITORY)
    .action(async (number, { repo }) => {
      const { run, client } = await openRun(program, number, repo);
      await client.graphql(APPROVE, { id: run.id });
      note(`Approved run ${run.number}`);
    });
}

const COLOURS: Record<Run['status'], Colour> = {
  WAITING_FOR_APPROVAL: 'yellow',
  QUEUED: 'yellow',
  RUNNING: 'blue',
  SUCCEEDED: 'green',
  FAILED: 'red',
  INVALID: 'red',
  CANCELLED: 'dim',
};

async function listRuns(
  { client }: LocalConnection,
  at: RepositoryName,
  filter: { first: number; ref: string | null },
) {
  const { repository } = await client.graphql(LIST, { ...at, ...filter });
  const { runs } = demand(repository, `Repository ${at.namespace}/${at.name}`);
  return demand(runs, 'List of runs').nodes;
}

/**
 * Finds the newest run, of all commits or of one commit. For a run of one commit, it waits up to 30 seconds.
 * @param commit the first digits of the commit's id; empty: all commits
 * @throws LoamError `not_found`
 */
async function findNewestRun(
  connection: LocalConnection,
  at: RepositoryName,
  commit: string,
): Promise<number> {
  const until = Date.now() + CREATION_MS;
  const what = `Run of ${commit && `commit ${commit} of `}${at.namespace}/${at.name}`;
  for (;;) {
    const runs = await listRuns(connection, at, { first: 100, ref: null });
    const run = runs.find(({ sha }) => sha.startsWith(commit));
    if (run || commit === '' || Date.now() > until) return demand(run, what).number;
    await sleep(WAIT_INTERVAL_MS);
  }
}

/**
 * Connects and reads a run. Without a number, it reads the newest run.
 * @param commit see `findNewestRun`
 * @throws LoamError `not_found`
 */
async function openRun(
  program: Program,
  number: number | undefined,
  repo: string | undefined,
  commit = '',
) {
  const connection = await connectHere(program.opts());
  const { client, server } = connection;
  const at = await resolveRepository(connection, repo);
  const fullName = `${at.namespace}/${at.name}`;
  const found = number ?? (await findNewestRun(connection, at, commit));
  const read = async (): Promise<Run> => {
    const { repository } = await client.graphql(READ, { ...at, number: found });
    return demand(demand(repository, `Repository ${fullName}`).run, `Run ${found} of ${fullName}`);
  };
  const urlOf = (of: number) => urlOfRun(server, at, of);
  return { client, run: await read(), read, url: urlOf(found), urlOf };
}

function describe(run: Run, url: string): [string, string | null | undefined][] {
  return [
    ['run', `${run.number}`],
    ['status', fromEnum(run.status)],
    ['title', run.title],
    ['trigger', fromEnum(run.trigger)],
    ['ref', shortRef(run.ref)],
    ['commit', run.sha],
    ['started by', run.actor],
    ['approved by', run.approvedBy],
    ['created', ago(run.createdAt)],
    ['started', ago(run.startedAt)],
    ['completed', ago(run.completedAt)],
    ['inputs', run.inputs.map(({ name, value }) => `${name}=${value}`).join(', ')],
    ['page', url],
  ];
}

/** Without the id, which no command takes. */
function printRunJson({ id: _, ...run }: Run, url: string): void {
  printJson({ ...run, url });
}

function printProblems({ problems, status }: Run): void {
  // Only problems of the file itself have a place in it.
  for (const problem of problems)
    note(status === 'INVALID' ? formatProblem(JOBS_FILE, problem) : safeLine(problem.message));
}

/** @throws InvalidArgumentError */
function parseCommit(text: string): string {
  if (!/^[0-9a-f]{7,40}$/.test(text))
    throw new InvalidArgumentError('It must be 7 to 40 hexadecimal digits: $(git rev-parse HEAD).');
  return text;
}

function shortRef(ref: string): string {
  return ref.replace(/^refs\/(?:heads|tags)\//, '');
}
