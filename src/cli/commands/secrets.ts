/** `loam secret …` and `loam variable …`: secrets and variables of repositories and namespaces, for jobs. */
import { type Program, toArray } from '../command.ts';
import { connectHere, type LocalConnection } from '../connection.ts';
import { UsageError } from '../exit.ts';
import { collect } from '../options.ts';
import { resolveName } from '../repositories.ts';
import type { Client } from '../sdk/client.ts';
import { graphql } from '../sdk/graphql.ts';
import { demand, readPages } from '../sdk/pages.ts';
import {
  ago,
  askHidden,
  isInteractive,
  note,
  printJson,
  printTable,
  readStdin,
} from '../terminal.ts';

const SET_SECRET = graphql(`
  mutation SetSecret($input: SetSecretInput!) { setSecret(input: $input) {
    secret { name refs updatedBy updatedAt lastUsedAt }
  } }
`);
const DELETE_SECRET = graphql(`
  mutation DeleteSecret($input: DeleteSecretInput!) { deleteSecret(input: $input) { id } }
`);
const SET_VARIABLE = graphql(`
  mutation SetVariable($input: SetVariableInput!) { setVariable(input: $input) {
    variable { name value updatedBy updatedAt lastUsedAt }
  } }
`);
const DELETE_VARIABLE = graphql(`
  mutation DeleteVariable($input: DeleteVariableInput!) { deleteVariable(input: $input) { id } }
`);
const SECRETS = graphql(`
  query Secrets(
    $namespace: String!, $name: String!, $ofRepository: Boolean!, $first: Int!, $after: String
  ) {
    repository(namespace: $namespace, name: $name) @include(if: $ofRepository) {
      secrets(first: $first, after: $after) {
        nodes { name refs updatedBy updatedAt lastUsedAt } pageInfo { hasNextPage endCursor }
      }
    }
    namespace(name: $namespace) @skip(if: $ofRepository) {
      secrets(first: $first, after: $after) {
        nodes { name refs updatedBy updatedAt lastUsedAt } pageInfo { hasNextPage endCursor }
      }
    }
  }
`);
const VARIABLES = graphql(`
  query Variables(
    $namespace: String!, $name: String!, $ofRepository: Boolean!, $first: Int!, $after: String
  ) {
    repository(namespace: $namespace, name: $name) @include(if: $ofRepository) {
      variables(first: $first, after: $after) {
        nodes { name value updatedBy updatedAt lastUsedAt } pageInfo { hasNextPage endCursor }
      }
    }
    namespace(name: $namespace) @skip(if: $ofRepository) {
      variables(first: $first, after: $after) {
        nodes { name value updatedBy updatedAt lastUsedAt } pageInfo { hasNextPage endCursor }
      }
    }
  }
`);

type OwnerOptions = { repo?: string | undefined; namespace?: string | undefined };
type Owner = { namespace: string; repository: string | null };

const NAME = 'the name of the environment variable';
const REPO = ['--repo <repo>', 'of this repository; by default of the clone around you'] as const;
const NAMESPACE = ['--namespace <name>', 'of this namespace, for all its repositories'] as const;

export function addSecretCommands(program: Program): void {
  addSecrets(program);
  addVariables(program);
}

function addSecrets(program: Program): void {
  const secrets = program
    .command('secret')
    .description('Secrets of repositories and namespaces, for jobs that name them');

  secrets
    .command('set')
    .description('Set a secret, whose value is on stdin, or is asked for')
    .argument('<name>', NAME)
    .option(...REPO)
    .option(...NAMESPACE)
    .option(
      '--refs <patterns>',
      'jobs of these branches, or tags as "tags/v*", may have it; "**": every job',
      collect,
    )
    .option('--no-refs', 'jobs of protected branches may have it, as by default')
    .option('--keep-value', 'change the refs alone')
    .option('--json', 'print JSON, without the value')
    .addHelpText(
      'after',
      '\nExample: a secret of the repository around you, for jobs of main and of tags such as v1\n  loam secret set DEPLOY_KEY --refs main,tags/v* <key',
    )
    .action(async (name, { refs, keepValue, json, ...of }) => {
      const connection = await connectHere(program.opts());
      const owner = await findOwner(connection, of);
      const value = keepValue ? undefined : await readSecret(name);
      const input = { ...owner, name, value, refs: refs === false ? [] : refs };
      const { setSecret } = await connection.client.graphql(SET_SECRET, { input });
      const { secret } = demand(setSecret, `Secret ${name}`);
      if (json) return printJson(secret);
      note(`Set the secret ${name} of ${ownerName(owner)}, for ${describeRefs(secret.refs)}.`);
    });

  secrets
    .command('list')
    .description('List secrets, without their values')
    .option(...REPO)
    .option(...NAMESPACE)
    .option('--json', 'print JSON')
    .action(async ({ json, ...of }) => {
      const connection = await connectHere(program.opts());
      const found = await listSecrets(connection.client, await findOwner(connection, of));
      if (json) return printJson(found);
      printTable(
        ['NAME', 'REFS', 'SET', 'BY', 'LAST USED'],
        found.map(({ name, refs, updatedAt, updatedBy, lastUsedAt }) => [
          { text: name, colour: 'bold' },
          describeRefs(refs),
          ago(updatedAt),
          updatedBy,
          lastUsedAt === null ? '' : ago(lastUsedAt),
        ]),
      );
    });

  secrets
    .command('delete')
    .description('Delete a secret; jobs that name it fail')
    .argument('<name>', NAME)
    .option(...REPO)
    .option(...NAMESPACE)
    .action(async (name, of) => {
      const connection = await connectHere(program.opts());
      const owner = await findOwner(connection, of);
      await connection.client.graphql(DELETE_SECRET, { input: { ...owner, name } });
      note(`Deleted the secret ${name} of ${ownerName(owner)}.`);
    });
}

function addVariables(program: Program): void {
  const variables = program
    .command('variable')
    .description('Variables of repositories and namespaces, for jobs that name them');

  variables
    .command('set')
    .description('Set a variable')
    .argument('<name>', NAME)
    .argument('[value]', 'the value; by default what is on stdin')
    .option(...REPO)
    .option(...NAMESPACE)
    .option('--json', 'print JSON')
    .addHelpText('after', '\nExample: loam variable set REGION eu-west-1 --namespace acme')
    .action(async (name, given, { json, ...of }) => {
      const connection = await connectHere(program.opts());
      const owner = await findOwner(connection, of);
      const value = given ?? withoutLineEnd(await readStdin());
      const input = { ...owner, name, value };
      const { setVariable } = await connection.client.graphql(SET_VARIABLE, { input });
      if (json) return printJson(demand(setVariable, `Variable ${name}`).variable);
      note(`Set the variable ${name} of ${ownerName(owner)}.`);
    });

  variables
    .command('list')
    .description('List variables')
    .option(...REPO)
    .option(...NAMESPACE)
    .option('--json', 'print JSON')
    .action(async ({ json, ...of }) => {
      const connection = await connectHere(program.opts());
      const found = await listVariables(connection.client, await findOwner(connection, of));
      if (json) return printJson(found);
      printTable(
        ['NAME', 'SET', 'BY', 'VALUE'],
        found.map(({ name, value, updatedAt, updatedBy }) => [
          { text: name, colour: 'bold' },
          ago(updatedAt),
          updatedBy,
          value,
        ]),
      );
    });

  variables
    .command('delete')
    .description('Delete a variable; jobs that name it fail')
    .argument('<name>', NAME)
    .option(...REPO)
    .option(...NAMESPACE)
    .action(async (name, of) => {
      const connection = await connectHere(program.opts());
      const owner = await findOwner(connection, of);
      await connection.client.graphql(DELETE_VARIABLE, { input: { ...owner, name } });
      note(`Deleted the variable ${name} of ${ownerName(owner)}.`);
    });
}

/** The names of the stored secrets and variables that a job can use: of its repository, or without one of its namespace. */
export async function listValueNames(
  client: Client,
  owner: Owner,
): Promise<{ secretNames: string[]; variableNames: string[] }> {
  const owners = [owner, ...(owner.repository === null ? [] : [{ ...owner, repository: null }])];
  const namesOf = async (list: typeof listSecrets | typeof listVariables) => {
    const found = await Promise.all(owners.map((each) => list(client, each)));
    return [...new Set(found.flat().map(({ name }) => name))].sort();
  };
  return {
    secretNames: await namesOf(listSecrets),
    variableNames: await namesOf(listVariables),
  };
}

/** @throws UsageError when neither an option nor the working directory names an owner */
async function findOwner(
  { client, remote, server }: LocalConnection,
  { repo, namespace }: OwnerOptions,
): Promise<Owner> {
  if (repo !== undefined && namespace !== undefined)
    throw new UsageError('Give either --repo or --namespace');
  if (namespace !== undefined) return { namespace, repository: null };
  const named = repo === undefined ? remote : await resolveName(client, repo);
  if (named === null)
    throw new UsageError(
      `This folder is not in a clone of a repository of ${server}. Name a repository with --repo or a namespace with --namespace.`,
    );
  return { namespace: named.namespace, repository: named.name };
}

function ownerName({ namespace, repository }: Owner): string {
  return repository === null ? namespace : `${namespace}/${repository}`;
}

function listSecrets(client: Client, owner: Owner) {
  return toArray(
    readPages(
      async (range) => {
        const found = await client.graphql(SECRETS, { ...ownerVariables(owner), ...range });
        return (found.repository ?? found.namespace)?.secrets;
      },
      { what: ownerName(owner) },
    ),
  );
}

function listVariables(client: Client, owner: Owner) {
  return toArray(
    readPages(
      async (range) => {
        const found = await client.graphql(VARIABLES, { ...ownerVariables(owner), ...range });
        return (found.repository ?? found.namespace)?.variables;
      },
      { what: ownerName(owner) },
    ),
  );
}

function ownerVariables({ namespace, repository }: Owner) {
  return { namespace, name: repository ?? '', ofRepository: repository !== null };
}

function describeRefs(refs: readonly string[]): string {
  return refs.length === 0 ? 'protected branches' : refs.join(' ');
}

/** A value in an argument would be visible to every user of the machine. */
async function readSecret(name: string): Promise<string> {
  return isInteractive
    ? askHidden(`Value of ${name} (not shown): `)
    : withoutLineEnd(await readStdin());
}

function withoutLineEnd(text: string): string {
  return text.replace(/\r?\n$/, '');
}
