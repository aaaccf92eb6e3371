/** `loam repo …` */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { Argument, Option } from '@commander-js/extra-typings';
import type { ResultOf, VariablesOf } from 'gql.tada';
import type { Program } from '../command.ts';
import { confirmDeletion } from '../confirm.ts';
import { type Connection, connect } from '../connection.ts';
import { UsageError } from '../exit.ts';
import { GitError, gitHelper } from '../git.ts';
import { parseCount } from '../options.ts';
import { demand, readPages } from '../pages.ts';
import { findRepository, resolveName } from '../repositories.ts';
import type { Client } from '../sdk/client.ts';
import { graphql } from '../sdk/graphql.ts';
import { ago, note, print, printJson, printTable, safeText, size } from '../terminal.ts';

const REPOSITORY_FIELDS = graphql(`
  fragment RepositoryFields on Repository {
    id fullName description visibility defaultBranch language sizeBytes cloneUrl sshUrl createdAt updatedAt pushedAt
  }
`);
const CREATE = graphql(
  `mutation CreateRepository($input: CreateRepositoryInput!) {
    createRepository(input: $input) { repository { ...RepositoryFields } }
  }`,
  [REPOSITORY_FIELDS],
);
const LIST_MINE = graphql(
  `query ListMyRepositories($first: Int!, $after: String, $visibility: Visibility) {
    viewer {
      repositories(first: $first, after: $after, visibility: $visibility) {
        nodes { ...RepositoryFields } pageInfo { hasNextPage endCursor }
      }
    }
  }`,
  [REPOSITORY_FIELDS],
);
const LIST_OF_NAMESPACE = graphql(
  `query ListRepositories($namespace: String!, $first: Int!, $after: String, $visibility: Visibility) {
    namespace(name: $namespace) {
      repositories(first: $first, after: $after, visibility: $visibility) {
        nodes { ...RepositoryFields } pageInfo { hasNextPage endCursor }
      }
    }
  }`,
  [REPOSITORY_FIELDS],
);
const RENAME = graphql(`
  mutation RenameRepository($input: RenameRepositoryInput!) {
    renameRepository(input: $input) { repository { fullName } }
  }
`);
const TRANSFER = graphql(`
  mutation TransferRepository($input: TransferRepositoryInput!) {
    transferRepository(input: $input) { repository { fullName } }
  }
`);
const CHANGE_VISIBILITY = graphql(`
  mutation ChangeRepositoryVisibility($input: ChangeRepositoryVisibilityInput!) {
    changeRepositoryVisibility(input: $input) { repository { fullName } }
  }
`);
const DELETE = graphql(`
  mutation DeleteRepository($input: DeleteRepositoryInput!) {
    deleteRepository(input: $input) { id }
  }
`);

type Repository = ResultOf<typeof REPOSITORY_FIELDS>;
type Visibility = VariablesOf<typeof CHANGE_VISIBILITY>['input']['visibility'];

const VISIBILITIES = ['private', 'internal', 'public'] as const;
const toVisibility = (name: (typeof VISIBILITIES)[number]) => name.toUpperCase() as Visibility;

const REPOSITORY = 'the repository, as namespace/name, or name in your own namespace';

export function addRepositoryCommands(program: Program): void {
  const repo = program.command('repo').description('Create, list and change repositories');

  repo
    .command('create')
    .description('Create a repository and print its address. It is empty unless --init is given')
    .argument('<name>', 'its name, as namespace/name, or name in your own namespace')
    .addOption(
      new Option('--visibility <who>', 'who may read it').choices(VISIBILITIES).default('private'),
    )
    .option('--description <text>', 'a short description')
    .option('--default-branch <name>', 'the branch that a clone checks out', 'main')
    .option('--init', 'begin with a commit, so that it can be cloned and changed at once')
    .option('--gitignore <template>', 'add a .gitignore for a language or tool; with --init')
    .option('--json', 'print the repository as JSON')
    .action(async (text, options) => {
      if (options.gitignore !== undefined && !options.init)
        throw new UsageError('--gitignore adds a file to the first commit: give --init, too');
      const { client, server } = await connect(program.opts());
      const input = {
        ...(await resolveName(client, text)),
        visibility: toVisibility(options.visibility as (typeof VISIBILITIES)[number]),
        description: options.description ?? '',
        defaultBranch: options.defaultBranch,
        autoInit: options.init === true,
        contentAddressed: true,
        ...(options.gitignore !== undefined && { gitignoreTemplate: options.gitignore }),
      };
      const { createRepository } = await client.transport.graphql(CREATE, { input });
      const { repository } = demand(createRepository, 'Repository');
      if (options.json) return printJson(repository);
      print(`${server}/${safeText(repository.fullName)}`);
      if (!options.init) explainPush(`${server}/${repository.fullName}.git`, options.defaultBranch);
    });

  repo
    .command('list')
    .description('List the repositories of a namespace, or of all your namespaces')
    .argument('[namespace]', 'a user or an organization')
    .addOption(
      new Option('--visibility <who>', 'only those that these may read').choices(VISIBILITIES),
    )
    .option('--limit <n>', 'at most so many, the latest changes first', parseCount, 100)
    .option('--json', 'print JSON')
    .action(async (namespace, { limit, json, visibility }) => {
      const { client } = await connect(program.opts());
      const filter = visibility ? { visibility: toVisibility(visibility) } : {};
      const repositories = await listRepositories(client, namespace, filter, limit);
      if (json) return printJson(repositories);
      printTable(
        ['NAME', 'VISIBILITY', 'SIZE', 'PUSHED', 'DESCRIPTION'],
        repositories.map((one) => [
          { text: one.fullName, colour: 'bold' },
          one.visibility.toLowerCase(),
          size(one.sizeBytes),
          ago(one.pushedAt),
          one.description,
        ]),
      );
    });

  repo
    .command('clone')
    .description('Clone a repository with your credential')
    .argument('<repository>', REPOSITORY)
    .argument('[folder]', 'the new folder; by default the name of the repository')
    .option('--ssh', 'over SSH, with your SSH key')
    .option('--depth <n>', 'only the last commits', parseCount)
    .option('--branch <name>', 'check out this branch or tag')
    .action(async (text, folder, options) => {
      const connection = await connect(program.opts());
      const { fullName, sshUrl } = await findRepository(connection.client, text);
      const url = options.ssh ? sshUrl : `${connection.server}/${fullName}.git`;
      process.exitCode = await cloneWithGit(connection, [
        ...(options.depth === undefined ? [] : [`--depth=${options.depth}`]),
        ...(options.branch === undefined ? [] : [`--branch=${options.branch}`]),
        '--',
        url,
        ...(folder === undefined ? [] : [folder]),
      ]);
    });

  repo
    .command('rename')
    .description('Rename a repository; the former name stops working')
    .argument('<repository>', REPOSITORY)
    .argument('<new-name>', 'the new name, without a namespace')
    .action(async (text, name) => {
      const { client } = await connect(program.opts());
      const { id } = await findRepository(client, text);
      const { renameRepository } = await client.transport.graphql(RENAME, { input: { id, name } });
      print(safeText(demand(renameRepository, 'Repository').repository.fullName));
    });

  repo
    .command('transfer')
    .description('Give a repository to another user or organization')
    .argument('<repository>', REPOSITORY)
    .argument('<namespace>', 'the new owner')
    .action(async (text, newNamespace) => {
      const { client } = await connect(program.opts());
      const { id } = await findRepository(client, text);
      const { transferRepository } = await client.transport.graphql(TRANSFER, {
        input: { id, newNamespace },
      });
      print(safeText(demand(transferRepository, 'Repository').repository.fullName));
    });

  repo
    .command('visibility')
    .description('Change who may read a repository')
    .argument('<repository>', REPOSITORY)
    .addArgument(
      new Argument('<who>', 'its members, all users of the server, or anyone').choices(
        VISIBILITIES,
      ),
    )
    .action(async (text, who) => {
      const { client } = await connect(program.opts());
      const { id, fullName } = await findRepository(client, text);
      await client.transport.graphql(CHANGE_VISIBILITY, {
        input: { id, visibility: toVisibility(who) },
      });
      note(`${fullName} is ${who} now.`);
    });

  repo
    .command('delete')
    .description('Delete a repository with all its files, for good')
    .argument('<repository>', REPOSITORY)
    .option('--yes', 'do not ask for the name')
    .action(async (text, options) => {
      const { client } = await connect(program.opts());
      const { id, fullName } = await findRepository(client, text);
      await confirmDeletion(
        fullName,
        'The repository and its files are deleted for good.',
        options,
      );
      await client.transport.graphql(DELETE, { input: { id } });
      note(`Deleted ${fullName}.`);
    });
}

function explainPush(url: string, branch: string): void {
  note(`The repository is empty. To push an existing one:
  git remote add origin ${url}
  git push -u origin ${branch}`);
}

function listRepositories(
  client: Client,
  namespace: string | undefined,
  filter: { visibility?: Visibility },
  limit: number,
): Promise<Repository[]> {
  const { transport } = client;
  if (namespace === undefined)
    return readPages(
      async (range) =>
        (await transport.graphql(LIST_MINE, { ...range, ...filter })).viewer?.repositories,
      { limit, what: 'Repositories' },
    );
  return readPages(
    async (range) =>
      (await transport.graphql(LIST_OF_NAMESPACE, { namespace, ...range, ...filter })).namespace
        ?.repositories,
    { limit, what: `Namespace ${namespace}` },
  );
}

/** Runs `git clone` on the terminal of the user. @returns its exit code */
async function cloneWithGit(
  { server, token }: Connection,
  args: readonly string[],
): Promise<number> {
  // This command is the only helper, and reads the credential from the environment: no other user can see it there.
  const key = `credential.${server}.helper`;
  const settings = [`${key}=`, `${key}=${gitHelper()}`];
  if (process.env.LOAM_CA) settings.push(`http.sslCAInfo=${process.env.LOAM_CA}`);
  const child = spawn(
    'git',
    [...settings.flatMap((setting) => ['-c', setting]), 'clone', ...args],
    { stdio: 'inherit', env: { ...process.env, LOAM_URL: server, LOAM_TOKEN: token } },
  );
  const [code] = await once(child, 'close').catch((error) => {
    throw error.code === 'ENOENT' ? new GitError('git is not installed.') : error;
  });
  return code ?? 1;
}
