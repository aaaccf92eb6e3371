/** `loam repo …` */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { Argument, Option } from '@commander-js/extra-typings';
import { type Program, toArray } from '../command.ts';
import { confirmDeletion } from '../confirm.ts';
import { type Connection, connect } from '../connection.ts';
import { UsageError } from '../exit.ts';
import { GitError, gitHelper } from '../git.ts';
import { parseCount, parseLimit } from '../options.ts';
import { findRepository, resolveFullName, resolveName } from '../repositories.ts';
import { enumOf } from '../sdk/job-input.ts';
import type { Visibility } from '../sdk/repositories.ts';
import { ago, note, print, printJson, printTable, safeText, size } from '../terminal.ts';

const VISIBILITIES = ['private', 'internal', 'public'] as const;

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
    .addOption(new Option('--public').hideHelp())
    .addOption(new Option('--internal').hideHelp())
    .addOption(new Option('--private').hideHelp())
    .option('--description <text>', 'a short description')
    .option('--default-branch <name>', 'the branch that a clone checks out', 'main')
    .option('--init', 'begin with a commit, so that it can be cloned and changed at once')
    .option('--gitignore <template>', 'add a .gitignore for a language or tool; with --init')
    .option('--json', 'print the repository as JSON')
    .action(async (text, options) => {
      // As `gh repo create` has them.
      const wrong = VISIBILITIES.find((who) => options[who]);
      if (wrong) throw new UsageError(`There is no option --${wrong}: use --visibility ${wrong}`);
      if (options.gitignore !== undefined && !options.init)
        throw new UsageError('--gitignore adds a file to the first commit: give --init, too');
      const { client, server } = await connect(program.opts());
      const { namespace, name } = await resolveName(client, text);
      const repository = await client.repositories.create(name, {
        namespace,
        visibility: enumOf<Visibility>(options.visibility),
        description: options.description,
        defaultBranch: options.defaultBranch,
        autoInit: options.init === true,
        gitignoreTemplate: options.gitignore,
      });
      if (options.json) return printJson(repository);
      print(`${server}/${safeText(repository.fullName)}`);
      if (!options.init) explainPush(`${server}/${repository.fullName}.git`);
    });

  repo
    .command('list')
    .description('List the repositories of a namespace, or of all your namespaces')
    .argument('[namespace]', 'a user or an organization')
    .addOption(
      new Option('--visibility <who>', 'only those that these may read').choices(VISIBILITIES),
    )
    .option('--limit <n>', 'at most so many, the latest changes first', parseLimit, 100)
    .option('--json', 'print JSON')
    .action(async (namespace, { limit, json, visibility }) => {
      const { client } = await connect(program.opts());
      const filter = { namespace, visibility: visibility && enumOf<Visibility>(visibility) };
      const repositories = await toArray(client.repositories.list(filter, { limit }));
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
      const repository = await resolveFullName(client, text);
      print(safeText((await client.repositories.rename(repository, name)).fullName));
    });

  repo
    .command('transfer')
    .description('Give a repository to another user or organization')
    .argument('<repository>', REPOSITORY)
    .argument('<namespace>', 'the new owner')
    .action(async (text, newNamespace) => {
      const { client } = await connect(program.opts());
      const repository = await resolveFullName(client, text);
      print(safeText((await client.repositories.transfer(repository, newNamespace)).fullName));
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
      const repository = await resolveFullName(client, text);
      const { fullName } = await client.repositories.setVisibility(
        repository,
        enumOf<Visibility>(who),
      );
      note(`${fullName} is ${who} now.`);
    });

  repo
    .command('delete')
    .description('Delete a repository with all its files, for good')
    .argument('<repository>', REPOSITORY)
    .option('--yes', 'do not ask for the name')
    .action(async (text, options) => {
      const { client } = await connect(program.opts());
      const { fullName } = await findRepository(client, text);
      await confirmDeletion(
        fullName,
        'The repository and its files are deleted for good.',
        options,
      );
      await client.repositories.delete(fullName);
      note(`Deleted ${fullName}.`);
    });
}

/** `HEAD`, because the branch of an existing repository may have any name. The first push sets the default branch. */
function explainPush(url: string): void {
  note(`The repository is empty. To push an existing one:
  git remote add origin ${url}
  git push -u origin HEAD`);
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
    {
      stdio: 'inherit',
      // The server names the address for SSH: it must not choose a local path or another program of git.
      env: { ...process.env, GIT_PROTOCOL_FROM_USER: '0', LOAM_URL: server, LOAM_TOKEN: token },
    },
  );
  const [code] = await once(child, 'close').catch((error) => {
    throw error.code === 'ENOENT' ? new GitError('git is not installed.') : error;
  });
  return code ?? 1;
}
