/** `loam tokens …`, `loam keys …` and `loam ssh-keys …`: credentials of the caller */
import { readFile } from 'node:fs/promises';
import type { VariablesOf } from 'gql.tada';
import { type Program, toArray } from '../command.ts';
import { connect } from '../connection.ts';
import { UsageError } from '../exit.ts';
import { collect, parseCount, parseName, scopeName } from '../options.ts';
import { findRepository } from '../repositories.ts';
import { graphql } from '../sdk/graphql.ts';
import { demand, readPages } from '../sdk/pages.ts';
import {
  ago,
  duration,
  isTerminal,
  note,
  print,
  printJson,
  printTable,
  readStdin,
  safeText,
} from '../terminal.ts';

const LIST_TOKENS = graphql(`
  query ListAccessTokens($first: Int!, $after: String) {
    viewer {
      accessTokens(first: $first, after: $after) {
        nodes { id name scopes namespaces repositories createdAt lastUsedAt expiresAt }
        pageInfo { hasNextPage endCursor }
      }
    }
  }
`);
const CREATE_TOKEN = graphql(`
  mutation CreateAccessToken($input: CreateAccessTokenInput!) {
    createAccessToken(input: $input) { token accessToken { id name expiresAt } }
  }
`);
const DELETE_TOKEN = graphql(`
  mutation DeleteAccessToken($name: String!) { deleteAccessToken(input: { name: $name }) { id } }
`);
const LIST_KEYS = graphql(`
  query ListApiKeys($first: Int!, $after: String) {
    viewer {
      apiKeys(first: $first, after: $after) {
        nodes { id name scopes namespace createdAt lastUsedAt expiresAt }
        pageInfo { hasNextPage endCursor }
      }
    }
  }
`);
const CREATE_KEY = graphql(`
  mutation CreateApiKey($input: CreateApiKeyInput!) {
    createApiKey(input: $input) { key apiKey { id name expiresAt } }
  }
`);
const DELETE_KEY = graphql(`
  mutation DeleteApiKey($name: String!) { deleteApiKey(input: { name: $name }) { id } }
`);
const LIST_SSH_KEYS = graphql(`
  query ListSshKeys($first: Int!, $after: String) {
    viewer {
      sshKeys(first: $first, after: $after) {
        nodes { id title fingerprint publicKey createdAt lastUsedAt }
        pageInfo { hasNextPage endCursor }
      }
    }
  }
`);
const ADD_SSH_KEY = graphql(`
  mutation AddSshKey($title: String!, $key: String!) {
    addSshKey(input: { title: $title, key: $key }) { sshKey { id title fingerprint } }
  }
`);
const DELETE_SSH_KEY = graphql(`
  mutation DeleteSshKey($id: ID!) { deleteSshKey(input: { id: $id }) { id } }
`);

type Scope = NonNullable<VariablesOf<typeof CREATE_KEY>['input']['scopes']>[number];

/** What each scope allows: the keys are all scopes of the schema. */
const SCOPES: Record<Scope, string> = {
  REPO_READ: 'read and clone repositories',
  REPO_WRITE: 'also push to repositories',
  REPO_ADMIN: 'also create, change and delete repositories',
  JOB_READ: 'read jobs, their logs and artifacts',
  JOB_WRITE: 'also create, cancel and delete jobs',
  WEBHOOK_ADMIN: 'manage webhooks, and read what they send',
};
const SCOPE_NAMES = Object.keys(SCOPES) as Scope[];
const SCOPE_HELP = `
Scopes:
${SCOPE_NAMES.map((scope) => `  ${scopeName(scope).padEnd(15)}${SCOPES[scope]}`).join('\n')}`;

const SCOPE_OPTION = 'limit it to these scopes; by default all your rights';
const DEFAULT_DAYS = 30;

export function addCredentialCommands(program: Program): void {
  addTokenCommands(program);
  addKeyCommands(program);
  addSshKeyCommands(program);
}

function addTokenCommands(program: Program): void {
  const tokens = program
    .command('tokens')
    .description('Personal access tokens, for git, command lines and programs that act as you');

  tokens
    .command('list')
    .description('List your tokens, without their secrets')
    .option('--json', 'print JSON')
    .action(async (options) => {
      const { client } = await connect(program.opts());
      const found = await toArray(
        readPages(
          async (range) => (await client.graphql(LIST_TOKENS, range)).viewer?.accessTokens,
          { what: 'Tokens' },
        ),
      );
      if (options.json) return printJson(found);
      printTable(
        ['NAME', 'SCOPES', 'LIMITED TO', 'LAST USED', 'EXPIRES'],
        found.map(({ name, scopes, namespaces, repositories, lastUsedAt, expiresAt }) => [
          { text: name, colour: 'bold' },
          rightsOf(scopes),
          [...namespaces, ...repositories].join(' '),
          ago(lastUsedAt),
          expiry(expiresAt),
        ]),
      );
    });

  tokens
    .command('create')
    .description('Create a token and print it. It is shown only now')
    .argument('<name>', 'what it is for, such as laptop')
    .option('--days <n>', 'its lifetime: 1 to 365 days', parseCount, DEFAULT_DAYS)
    .option('--scope <scopes>', SCOPE_OPTION, collectScopes)
    .option('--namespace <names>', 'limit it to these namespaces', collect)
    .option('--repo <repositories>', 'limit it to these repositories', collect)
    .option('--json', 'print JSON')
    .addHelpText('after', SCOPE_HELP)
    .action(async (name, { days, scope, namespace, repo, json }) => {
      const { client } = await connect(program.opts());
      const repositories: string[] = [];
      for (const text of repo ?? []) repositories.push((await findRepository(client, text)).id);
      const input = {
        name,
        expiresInDays: days,
        ...(scope && { scopes: [...scope] }),
        ...(namespace && { namespaces: [...namespace] }),
        ...(repo && { repositories }),
      };
      const { createAccessToken } = await client.graphql(CREATE_TOKEN, { input });
      const { token, accessToken } = demand(createAccessToken, 'Token');
      if (json) return printJson({ ...accessToken, token });
      note(`The token ${accessToken.name} is shown only now. For git, it is the password.`);
      print(safeText(token));
    });

  tokens
    .command('delete')
    .description('Delete a token: requests with it are refused from now on')
    .argument('<name>', 'the name of the token')
    .action(async (name) => {
      const { client } = await connect(program.opts());
      await client.graphql(DELETE_TOKEN, { name });
      note(`Deleted the token ${name}.`);
    });
}

function addKeyCommands(program: Program): void {
  const keys = program
    .command('keys')
    .description('API keys, for services; a key can be limited to one namespace');

  keys
    .command('list')
    .description(
      'List your keys and those of namespaces that you administer, without their secrets',
    )
    .option('--json', 'print JSON')
    .action(async (options) => {
      const { client } = await connect(program.opts());
      const found = await toArray(
        readPages(async (range) => (await client.graphql(LIST_KEYS, range)).viewer?.apiKeys, {
          what: 'Keys',
        }),
      );
      if (options.json) return printJson(found);
      printTable(
        ['NAME', 'SCOPES', 'LIMITED TO', 'LAST USED', 'EXPIRES'],
        found.map(({ name, scopes, namespace, lastUsedAt, expiresAt }) => [
          { text: name, colour: 'bold' },
          rightsOf(scopes),
          namespace ?? '',
          ago(lastUsedAt),
          expiry(expiresAt),
        ]),
      );
    });

  keys
    .command('create')
    .description('Create a key and print it. It is shown only now')
    .argument('<name>', 'letters, digits and . _ -; unique on the server')
    .option('--days <n>', 'its lifetime: 1 to 365 days', parseCount, DEFAULT_DAYS)
    .option('--scope <scopes>', SCOPE_OPTION, collectScopes)
    .option('--namespace <name>', 'limit it to this namespace, which you administer')
    .option('--json', 'print JSON')
    .addHelpText('after', SCOPE_HELP)
    .action(async (name, { days, scope, namespace, json }) => {
      const { client } = await connect(program.opts());
      const input = {
        name,
        expiresInDays: days,
        ...(scope && { scopes: [...scope] }),
        ...(namespace !== undefined && { namespace }),
      };
      const { createApiKey } = await client.graphql(CREATE_KEY, { input });
      const { key, apiKey } = demand(createApiKey, 'Key');
      if (json) return printJson({ ...apiKey, key });
      note(`The key ${apiKey.name} is shown only now. Programs send "Authorization: API-Key …".`);
      print(safeText(key));
    });

  keys
    .command('delete')
    .description('Delete a key: requests with it are refused from now on')
    .argument('<name>', 'the name of the key: the part before the "$"')
    .action(async (name) => {
      const { client } = await connect(program.opts());
      await client.graphql(DELETE_KEY, { name });
      note(`Deleted the key ${name}.`);
    });
}

function addSshKeyCommands(program: Program): void {
  const sshKeys = program
    .command('ssh-keys')
    .description('SSH keys, for git and shells in jobs over SSH');

  sshKeys
    .command('list')
    .description('List your SSH keys')
    .option('--json', 'print JSON')
    .action(async (options) => {
      const { client } = await connect(program.opts());
      const found = await toArray(
        readPages(async (range) => (await client.graphql(LIST_SSH_KEYS, range)).viewer?.sshKeys, {
          what: 'Keys',
        }),
      );
      if (options.json) return printJson(found);
      printTable(
        ['ID', 'TITLE', 'LAST USED', 'FINGERPRINT'],
        found.map(({ id, title, lastUsedAt, fingerprint }) => [
          id,
          { text: title, colour: 'bold' },
          ago(lastUsedAt),
          fingerprint,
        ]),
      );
    });

  sshKeys
    .command('add')
    .description('Add a public key, and print its id')
    .argument('<file>', 'a file that ends in .pub, such as ~/.ssh/id_ed25519.pub; "-" reads stdin')
    .option('--title <title>', 'by default the comment of the key')
    .option('--json', 'print JSON')
    .action(async (file, options) => {
      const key = await readPublicKey(file);
      const { client } = await connect(program.opts());
      const variables = { key, title: options.title ?? '' };
      const { addSshKey } = await client.graphql(ADD_SSH_KEY, variables);
      const { sshKey } = demand(addSshKey, 'Key');
      if (options.json) return printJson(sshKey);
      note(`Added the key ${sshKey.title} (${sshKey.fingerprint}).`);
      print(safeText(sshKey.id));
    });

  sshKeys
    .command('delete')
    .description('Delete an SSH key')
    .argument('<id>', 'the id of the key, as "loam ssh-keys list" shows it')
    .action(async (id) => {
      const { client } = await connect(program.opts());
      await client.graphql(DELETE_SSH_KEY, { id });
      note(`Deleted the SSH key ${id}.`);
    });
}

function rightsOf(scopes: readonly Scope[]): string {
  return scopes.length === 0 ? 'all rights' : scopes.map(scopeName).join(' ');
}

/** When a credential stops working, for people: "in 29d 3h" on a terminal, the time itself otherwise. */
function expiry(time: string | null): string {
  if (time === null) return 'never';
  if (!isTerminal) return time;
  const seconds = (Date.parse(time) - Date.now()) / 1_000;
  return seconds > 0 ? `in ${duration(seconds)}` : 'expired';
}

/** @throws InvalidArgumentError */
function collectScopes(text: string, before: readonly Scope[] | undefined): Scope[] {
  const names = collect(text);
  return [...(before ?? []), ...names.map((name) => parseName(name, SCOPE_NAMES, scopeName))];
}

/** @throws UsageError for a private key, which must not leave the machine */
async function readPublicKey(file: string): Promise<string> {
  const text = file === '-' ? await readStdin() : await readFile(file, 'utf8');
  if (/PRIVATE KEY/.test(text))
    throw new UsageError(`${file} is a private key. Give the file that ends in .pub`);
  return text.trim();
}
