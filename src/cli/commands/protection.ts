/** `loam rules …` and `loam statuses …`: what a branch takes, and the checks of commits. */
import { Option } from '@commander-js/extra-typings';
import { type Program, toArray } from '../command.ts';
import { connectHere, type LocalConnection } from '../connection.ts';
import { git } from '../git.ts';
import { collect } from '../options.ts';
import { REPOSITORY, resolveName, resolveRepository } from '../repositories.ts';
import { LoamError } from '../sdk/errors.ts';
import { graphql } from '../sdk/graphql.ts';
import { demand, readPages } from '../sdk/pages.ts';
import type { Repository } from '../sdk/repositories.ts';
import { ago, note, printJson, printTable } from '../terminal.ts';
import { CHECK_FILE, JOBS_FILE } from './automation.ts';

const LIST_RULES = graphql(`
  query ListBranchRules($namespace: String!, $name: String!, $first: Int!, $after: String) {
    repository(namespace: $namespace, name: $name) {
      branchRules(first: $first, after: $after) {
        nodes { pattern pushRole pushers requiredJobs allowsForcePushes allowsDeletions updatedAt }
        pageInfo { hasNextPage endCursor }
      }
    }
  }
`);
const SET_RULE = graphql(`
  mutation SetBranchRule($input: SetBranchRuleInput!) {
    setBranchRule(input: $input) { repository { id } }
  }
`);
const DELETE_RULE = graphql(`
  mutation DeleteBranchRule($input: DeleteBranchRuleInput!) {
    deleteBranchRule(input: $input) { repository { id } }
  }
`);
const READ_JOBS_FILE = graphql(`
  query ReadJobsFile($namespace: String!, $name: String!, $path: String!) {
    repository(namespace: $namespace, name: $name) { file(path: $path) { content } }
  }
`);
const LIST_STATUSES = graphql(`
  query ListStatuses($namespace: String!, $name: String!, $revision: String!) {
    repository(namespace: $namespace, name: $name) {
      commit(revision: $revision) {
        status {
          statuses { context state description targetUrl creator createdAt updatedAt }
        }
      }
    }
  }
`);
const SET_STATUS = graphql(`
  mutation SetCommitStatus($input: SetCommitStatusInput!) {
    setCommitStatus(input: $input) {
      status { context state description targetUrl creator createdAt updatedAt }
    }
  }
`);

const OF_REPOSITORY = ['--repo <repository>', REPOSITORY] as const;
const PATTERN = 'a branch, or a pattern such as "release/*"';
const STATES = ['pending', 'success', 'failure', 'error'] as const;

export function addProtectionCommands(program: Program): void {
  addRules(program);
  addStatuses(program);
}

function addRules(program: Program): void {
  const rules = program
    .command('rules')
    .description('Branch rules of a repository: who may push, and which jobs must succeed before');

  rules
    .command('list')
    .description('List the rules')
    .option(...OF_REPOSITORY)
    .option('--json', 'print JSON')
    .action(async ({ repo, json }) => {
      const connection = await connectHere(program.opts());
      const at = await resolveRepository(connection, repo);
      const read = async (range: { first: number; after: string | null }) =>
        (await connection.client.graphql(LIST_RULES, { ...at, ...range })).repository?.branchRules;
      const found = await toArray(
        readPages(read, { what: `Repository ${at.namespace}/${at.name}` }),
      );
      if (json) return printJson(found);
      printTable(
        ['PATTERN', 'PUSH', 'REQUIRED JOBS', 'ALSO ALLOWED'],
        found.map((rule) => [
          { text: rule.pattern, colour: 'bold' },
          [rule.pushRole.toLowerCase(), ...rule.pushers].join(' '),
          rule.requiredJobs.join(' '),
          [rule.allowsForcePushes && 'force pushes', rule.allowsDeletions && 'deletion']
            .filter(Boolean)
            .join(', '),
        ]),
      );
    });

  rules
    .command('set')
    .description('Create or replace the rule of a pattern')
    .argument('<pattern>', PATTERN)
    .option(...OF_REPOSITORY)
    .option(
      '--require <jobs>',
      'jobs of .loam/jobs.yml that must have succeeded for the commit',
      collect,
    )
    .addOption(
      new Option('--push <role>', 'the role that may push')
        .choices(['write', 'admin'])
        .default('write'),
    )
    .option('--pusher <users>', 'users who may push, too; with --push admin', collect)
    .option('--force-pushes', 'allow pushes that remove commits')
    .option('--deletions', 'allow deletion of the branch')
    .option('--json', 'print JSON')
    .addHelpText(
      'after',
      `
Example: take only commits whose jobs "test" and "lint" have succeeded
  loam rules set main --require test,lint`,
    )
    .action(async (pattern, options) => {
      const connection = await connectHere(program.opts());
      const { id, fullName } = await readRepository(connection, options.repo);
      const input = {
        id,
        pattern,
        pushRole: options.push === 'admin' ? ('ADMIN' as const) : ('WRITE' as const),
        pushers: options.pusher ?? [],
        requiredJobs: options.require ?? [],
        allowsForcePushes: options.forcePushes === true,
        allowsDeletions: options.deletions === true,
      };
      await connection.client.graphql(SET_RULE, { input });
      if (options.json) {
        const { id: _, ...rule } = input;
        printJson(rule);
      } else note(`Set the rule for ${pattern} of ${fullName}.`);
      await warnOfUnknownJobs(connection, fullName, input.requiredJobs);
    });

  rules
    .command('delete')
    .description('Delete the rule of a pattern')
    .argument('<pattern>', PATTERN)
    .option(...OF_REPOSITORY)
    .action(async (pattern, { repo }) => {
      const connection = await connectHere(program.opts());
      const { id, fullName } = await readRepository(connection, repo);
      await connection.client.graphql(DELETE_RULE, { input: { id, pattern } });
      note(`Deleted the rule for ${pattern} of ${fullName}.`);
    });
}

function addStatuses(program: Program): void {
  const statuses = program
    .command('statuses')
    .description('Statuses of commits: results of checks');

  statuses
    .command('list')
    .description('List the statuses of a commit')
    .argument('[revision]', 'a commit, branch or tag; by default the current commit of the clone')
    .option(...OF_REPOSITORY)
    .option('--json', 'print JSON')
    .action(async (given, { repo, json }) => {
      const connection = await connectHere(program.opts());
      const at = await resolveRepository(connection, repo);
      const revision = given ?? (await git(['rev-parse', 'HEAD']));
      const variables = { ...at, revision };
      const { repository } = await connection.client.graphql(LIST_STATUSES, variables);
      const found = demand(repository?.commit, `Revision ${revision}`).status?.statuses ?? [];
      if (json) return printJson(found);
      printTable(
        ['CONTEXT', 'STATE', 'UPDATED', 'BY', 'DESCRIPTION'],
        found.map(({ context, state, updatedAt, creator, description }) => [
          { text: context, colour: 'bold' },
          state.toLowerCase(),
          ago(updatedAt),
          creator,
          description ?? '',
        ]),
      );
    });

  statuses
    .command('set')
    .description('Report the state of a check, as CI servers do')
    .argument('<context>', 'the name of the check, such as ci/build')
    .addOption(new Option('--state <state>', 'the state').choices(STATES).makeOptionMandatory(true))
    .option('--commit <sha>', 'the commit; by default the current one of the clone')
    .option('--description <text>', 'a short explanation')
    .option('--url <url>', 'the page with the details')
    .option(...OF_REPOSITORY)
    .option('--json', 'print JSON')
    .addHelpText('after', '\nExample: loam statuses set ci/build --state success')
    .action(async (context, { state, commit, description, url, repo, json }) => {
      const connection = await connectHere(program.opts());
      const at = await resolveRepository(connection, repo);
      const sha = await git(['rev-parse', '--verify', `${commit ?? 'HEAD'}^{commit}`], {
        mayFail: true,
      });
      const input = {
        ...at,
        sha: sha ?? commit ?? '',
        context,
        state: state.toUpperCase() as Uppercase<typeof state>,
        description: description ?? null,
        targetUrl: url ?? null,
      };
      const { setCommitStatus } = await connection.client.graphql(SET_STATUS, { input });
      if (json) return printJson(demand(setCommitStatus, 'Status').status);
      note(`Set ${context} of ${input.sha.slice(0, 10)} to ${state}.`);
    });
}

/** A job that the file lacks is no error, because the next push can add it. */
async function warnOfUnknownJobs(
  { client }: LocalConnection,
  fullName: string,
  required: readonly string[],
): Promise<void> {
  if (required.length === 0) return;
  const at = await resolveName(client, fullName);
  const text = await client.graphql(READ_JOBS_FILE, { ...at, path: JOBS_FILE }).then(
    ({ repository }) => repository?.file?.content,
    (error) => {
      if (error instanceof LoamError && error.code === 'not_found') return undefined;
      throw error;
    },
  );
  const where = `${JOBS_FILE} of the default branch`;
  if (text == null)
    return note(
      `loam: Warning: The default branch has no ${JOBS_FILE}, so no commit has the required jobs yet.`,
    );
  const { problems, jobs } = (await client.graphql(CHECK_FILE, { text })).checkJobFile;
  if (problems.length > 0)
    return note(`loam: Warning: ${where} has problems. "loam check" shows them.`);
  const known = new Set(jobs.map(({ name }) => name));
  const unknown = required.filter((name) => !known.has(name));
  if (unknown.length > 0)
    note(
      `loam: Warning: ${where} has no job ${unknown.join(', ')}. It has: ${[...known].join(', ')}.`,
    );
}

async function readRepository(
  connection: LocalConnection,
  text: string | undefined,
): Promise<Repository> {
  const { namespace, name } = await resolveRepository(connection, text);
  return connection.client.repositories.get(`${namespace}/${name}`);
}
