/** `loam check`, `loam start` and `loam runs`: jobs that start by themselves */
import { readFile } from 'node:fs/promises';
import type { Program } from '../command.ts';
import { connectHere, type LocalConnection } from '../connection.ts';
import { EXIT, UsageError } from '../exit.ts';
import { parseCount } from '../options.ts';
import { type RepositoryName, resolveName } from '../repositories.ts';
import { graphql } from '../sdk/graphql.ts';
import { demand } from '../sdk/pages.ts';
import { ago, note, print, printJson, printTable, safeLine, safeText } from '../terminal.ts';

const CHECK = graphql(`
  query CheckJobFile($text: String!) {
    checkJobFile(text: $text) {
      problems { line column message }
      jobs { name number command variables }
    }
  }
`);

const FIND = graphql(`
  query FindRepositoryId($namespace: String!, $name: String!) {
    repository(namespace: $namespace, name: $name) { id }
  }
`);
const START = graphql(`
  mutation StartRun($id: ID!, $job: String, $ref: String) {
    startRun(input: { id: $id, job: $job, ref: $ref }) {
      run { number status ref sha jobs { name status } }
    }
  }
`);
const RUNS = graphql(`
  query ListRuns($namespace: String!, $name: String!, $first: Int!) {
    repository(namespace: $namespace, name: $name) {
      runs(first: $first) {
        nodes { number status trigger ref sha title actor createdAt startedAt completedAt }
      }
    }
  }
`);

const JOBS_FILE = '.loam/jobs.yml';
const REPOSITORY = 'namespace/name, or name in your own namespace; by default that of the clone';

export function addAutomationCommands(program: Program): void {
  program
    .command('check')
    .description('Check a file of jobs that start by themselves. Exits with 1 if it has problems')
    .argument('[file]', 'the file', JOBS_FILE)
    .option('--json', 'print the problems, or the jobs of the file, as JSON')
    .action(async (file, { json }) => {
      const text = await readFile(file, 'utf8').catch((error: NodeJS.ErrnoException) => {
        throw error.code === 'ENOENT' ? new Error(`There is no file ${file} here.`) : error;
      });
      const { client } = await connectHere(program.opts());
      const { checkJobFile } = await client.graphql(CHECK, { text });
      const { problems, jobs } = checkJobFile;
      if (problems.length > 0) process.exitCode = EXIT.failure;
      if (json) return printJson(checkJobFile);
      for (const { line, column, message } of problems)
        print(safeLine(`${file}:${line}:${column}: ${message}`));
      if (problems.length > 0) return;
      for (const { name, number } of jobs)
        print(safeLine(number === null ? name : `${name}-${number}`));
      note(`${file} is valid`);
    });

  program
    .command('start')
    .description('Start jobs of .loam/jobs.yml that have "manual: true"')
    .argument('[job]', 'a job of the file, with those that it needs; by default all such jobs')
    .option('--repo <repository>', REPOSITORY)
    .option('--ref <name>', 'the branch or tag; by default the default branch')
    .option('--json', 'print the run as JSON')
    .action(async (job, { repo, ref, json }) => {
      const connection = await connectHere(program.opts());
      const at = await resolveRepository(connection, repo);
      const { client, server } = connection;
      const { repository } = await client.graphql(FIND, at);
      const { id } = demand(repository, `Repository ${at.namespace}/${at.name}`);
      const { startRun } = await client.graphql(START, { id, job: job ?? null, ref: ref ?? null });
      const { run } = demand(startRun, 'Run');
      if (json) return printJson(run);
      note(`Started ${run.jobs.length} ${run.jobs.length === 1 ? 'job' : 'jobs'}`);
      print(safeText(`${server}/${at.namespace}/${at.name}/runs/${run.number}`));
    });

  program
    .command('runs')
    .description('List the runs of a repository, newest first')
    .argument('[repository]', REPOSITORY)
    .option('--limit <n>', 'at most so many, up to 100', parseCount, 20)
    .option('--json', 'print JSON')
    .action(async (text, { limit, json }) => {
      const connection = await connectHere(program.opts());
      const at = await resolveRepository(connection, text);
      const first = Math.min(limit, 100);
      const { repository } = await connection.client.graphql(RUNS, { ...at, first });
      const { nodes } = demand(
        demand(repository, `Repository ${at.namespace}/${at.name}`).runs,
        'List of runs',
      );
      if (json) return printJson(nodes);
      printTable(
        ['RUN', 'STATUS', 'TRIGGER', 'REF', 'COMMIT', 'STARTED BY', 'CREATED', 'TITLE'],
        nodes.map((run) => [
          { text: `${run.number}`, colour: 'bold' },
          run.status.toLowerCase(),
          run.trigger.toLowerCase(),
          run.ref.replace(/^refs\/(?:heads|tags)\//, ''),
          run.sha.slice(0, 10),
          run.actor,
          ago(run.createdAt),
          run.title,
        ]),
      );
    });
}

/** @throws UsageError outside of a clone without a name */
async function resolveRepository(
  { client, remote }: LocalConnection,
  text: string | undefined,
): Promise<RepositoryName> {
  if (text !== undefined) return resolveName(client, text);
  if (!remote) throw new UsageError('This is no clone of a repository on the server: name one');
  return { namespace: remote.namespace, name: remote.name };
}
