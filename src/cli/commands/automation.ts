/** `loam check` and `loam start`: jobs that start by themselves. See also `runs.ts`. */
import { readFile } from 'node:fs/promises';
import type { ResultOf } from 'gql.tada';
import type { Program } from '../command.ts';
import { connectHere } from '../connection.ts';
import { EXIT } from '../exit.ts';
import { collectPairs } from '../options.ts';
import { REPOSITORY, type RepositoryName, resolveRepository } from '../repositories.ts';
import { graphql } from '../sdk/graphql.ts';
import { demand } from '../sdk/pages.ts';
import { note, print, printJson, safeLine, safeText } from '../terminal.ts';

export const CHECK_FILE = graphql(`
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
  mutation StartRun($id: ID!, $job: String, $ref: String, $inputs: [RunInputValueInput!]) {
    startRun(input: { id: $id, job: $job, ref: $ref, inputs: $inputs }) {
      run { number status ref sha inputs { name value } jobs { name status } }
    }
  }
`);

export const JOBS_FILE = '.loam/jobs.yml';

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
      const { checkJobFile } = await client.graphql(CHECK_FILE, { text });
      const { problems, jobs } = checkJobFile;
      if (problems.length > 0) process.exitCode = EXIT.failure;
      if (json) return printJson(checkJobFile);
      for (const problem of problems) print(formatProblem(file, problem));
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
    .option('-f, --input <name=value>', 'an input of the jobs (repeatable)', collectPairs)
    .option('--json', 'print the run as JSON')
    .addHelpText('after', '\nExample:\n  loam start train -f epochs=20')
    .action(async (job, { repo, ref, input: inputs, json }) => {
      const connection = await connectHere(program.opts());
      const at = await resolveRepository(connection, repo);
      const { client, server } = connection;
      const { repository } = await client.graphql(FIND, at);
      const { id } = demand(repository, `Repository ${at.namespace}/${at.name}`);
      const { startRun } = await client.graphql(START, {
        id,
        job: job ?? null,
        ref: ref ?? null,
        inputs: Object.entries(inputs ?? {}).map(([name, value]) => ({ name, value })),
      });
      const { run } = demand(startRun, 'Run');
      if (json) return printJson(run);
      note(`Started ${run.jobs.length} ${run.jobs.length === 1 ? 'job' : 'jobs'}`);
      print(safeText(urlOfRun(server, at, run.number)));
    });
}

type Problem = ResultOf<typeof CHECK_FILE>['checkJobFile']['problems'][number];

export function formatProblem(file: string, { line, column, message }: Problem): string {
  return safeLine(`${file}:${line}:${column}: ${message}`);
}

/** The page of a run in the dashboard. */
export function urlOfRun(server: string, { namespace, name }: RepositoryName, number: number) {
  return `${server}/${namespace}/${name}/runs/${number}`;
}
