/** `loam users …`, `loam audit` and `loam search`. */
import { type Program, toArray } from '../command.ts';
import { connect } from '../connection.ts';
import { UsageError } from '../exit.ts';
import { parseLimit } from '../options.ts';
import { graphql } from '../sdk/graphql.ts';
import { demand, readPages } from '../sdk/pages.ts';
import { ago, note, print, printJson, printTable, safeText } from '../terminal.ts';

const LIST_USERS = graphql(`
  query ListUsers($text: String, $first: Int!, $after: String) {
    users(text: $text, first: $first, after: $after) {
      nodes { username email createdAt disabledAt } pageInfo { hasNextPage endCursor }
    }
  }
`);
const CREATE_USER = graphql(`
  mutation CreateUser($input: CreateUserInput!) { createUser(input: $input) { user { username } } }
`);
const SIGN_IN_LINK = graphql(`
  mutation CreateSignInLink($username: String) {
    createSignInLink(input: { username: $username }) { url expiresAt }
  }
`);
const AUDIT = graphql(`
  query AuditLog($actor: String, $first: Int!, $after: String) {
    auditLog(actor: $actor, first: $first, after: $after) {
      nodes { id timestamp action actor namespace subject name address details }
      pageInfo { hasNextPage endCursor }
    }
  }
`);
const AUDIT_OF_NAMESPACE = graphql(`
  query AuditLogOfNamespace($namespace: String!, $actor: String, $first: Int!, $after: String) {
    namespace(name: $namespace) {
      auditLog(actor: $actor, first: $first, after: $after) {
        nodes { id timestamp action actor namespace subject name address details }
        pageInfo { hasNextPage endCursor }
      }
    }
  }
`);
const SEARCH = graphql(`
  query SearchNames($text: String!, $first: Int!) {
    search(text: $text, first: $first) {
      __typename
      ... on Namespace { namespaceName: name }
      ... on Repository { fullName description }
      ... on Job { namespace jobName: name status }
    }
  }
`);

type Range = { first: number; after: string | null };

export function addAdministrationCommands(program: Program): void {
  addUsers(program);
  addAudit(program);
  addSearch(program);
}

function addUsers(program: Program): void {
  const users = program.command('users').description('Users of the server, for operators');

  users
    .command('list')
    .description('List users')
    .argument('[text]', 'only those whose name or email has this text')
    .option('--limit <n>', 'at most so many', parseLimit, 100)
    .option('--json', 'print JSON')
    .action(async (text, { limit, json }) => {
      const { client } = await connect(program.opts());
      const read = async (range: Range) =>
        (await client.graphql(LIST_USERS, { text, ...range })).users;
      const found = await toArray(readPages(read, { limit, what: 'Users' }));
      if (json) return printJson(found);
      printTable(
        ['NAME', 'EMAIL', 'CREATED', 'DISABLED'],
        found.map(({ username, email, createdAt, disabledAt }) => [
          { text: username, colour: 'bold' },
          email ?? '',
          ago(createdAt),
          ago(disabledAt),
        ]),
      );
    });

  users
    .command('create')
    .description('Create a user, and print a link that signs the user in once')
    .argument('<name>', '1 to 39 of a-z, 0-9 and -')
    .requiredOption('--email <address>', 'the email address of the user')
    .option('--json', 'print the name and the link as JSON')
    .addHelpText('after', '\nExample: loam users create ada --email ada@example.com')
    .action(async (username, { email, json }) => {
      const { client } = await connect(program.opts());
      await client.graphql(CREATE_USER, { input: { username, email } });
      note(`Created the user ${username}.`);
      await printLink(program, username, { json });
    });

  users
    .command('link')
    .description('Print a link that signs a user in once, within 24 hours')
    .argument('[name]', 'the user; by default yourself')
    .option('--json', 'print the link as JSON')
    .action((username, options) => printLink(program, username, options));
}

async function printLink(
  program: Program,
  username: string | undefined,
  { json }: { json?: true | undefined },
): Promise<void> {
  const { client } = await connect(program.opts());
  const { createSignInLink } = await client.graphql(SIGN_IN_LINK, { username: username ?? null });
  const { url } = demand(createSignInLink, `User ${username}`);
  if (json) printJson({ username, url });
  else print(safeText(url));
}

function addAudit(program: Program): void {
  program
    .command('audit')
    .description('Show the audit log, newest first: of a namespace, or for operators of the server')
    .argument('[namespace]', 'a user or an organization that you administer')
    .option('--actor <user>', 'only changes of this user')
    .option('--limit <n>', 'at most so many', parseLimit, 50)
    .option('--json', 'print JSON')
    .addHelpText('after', '\nExample: loam audit acme --actor ada --limit 10')
    .action(async (namespace, { actor, limit, json }) => {
      const { client } = await connect(program.opts());
      const read = async (range: Range) =>
        namespace === undefined
          ? (await client.graphql(AUDIT, { actor, ...range })).auditLog
          : (await client.graphql(AUDIT_OF_NAMESPACE, { namespace, actor, ...range })).namespace
              ?.auditLog;
      const what = namespace === undefined ? 'Audit log' : `Namespace ${namespace}`;
      const found = await toArray(readPages(read, { limit, what }));
      if (json) return printJson(found);
      printTable(
        ['TIME', 'ACTOR', 'ACTION', 'NAMESPACE', 'NAME'],
        found.map((entry) => [
          ago(entry.timestamp),
          entry.actor,
          { text: entry.action.toLowerCase(), colour: 'bold' },
          entry.namespace ?? '',
          entry.name,
        ]),
      );
    });
}

function addSearch(program: Program): void {
  program
    .command('search')
    .description('Find namespaces, repositories and jobs by their names')
    .argument('<text>', 'the beginning of a name, or words in it; "acme/tr" searches in acme')
    .option('--limit <n>', 'at most so many, up to 100', parseLimit, 20)
    .option('--json', 'print JSON')
    .addHelpText('after', '\nExample: loam search acme/train')
    .action(async (text, { limit, json }) => {
      if (text.trim() === '')
        throw new UsageError(
          'The text is empty. To list everything, run "loam repo list" or "loam jobs".',
        );
      const { client } = await connect(program.opts());
      const { search } = await client.graphql(SEARCH, { text, first: Math.min(limit, 100) });
      const found = (search ?? []).map((one) =>
        one.__typename === 'Namespace'
          ? { kind: 'namespace', name: one.namespaceName, about: '' }
          : one.__typename === 'Repository'
            ? { kind: 'repository', name: one.fullName, about: one.description }
            : {
                kind: 'job',
                name: `${one.namespace}/${one.jobName}`,
                about: one.status.toLowerCase(),
              },
      );
      if (json) return printJson(found);
      printTable(
        ['KIND', 'NAME', 'ABOUT'],
        found.map(({ kind, name, about }) => [kind, { text: name, colour: 'bold' }, about]),
      );
    });
}
