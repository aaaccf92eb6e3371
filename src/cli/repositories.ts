/** Repositories as arguments: `namespace/name`, or `name` alone in the namespace of the caller. */
import type { VariablesOf } from 'gql.tada';
import { UsageError } from './exit.ts';
import { demand } from './pages.ts';
import type { Client } from './sdk/client.ts';
import { graphql } from './sdk/graphql.ts';

const FIND = graphql(`
  query FindRepositoryId($namespace: String!, $name: String!) {
    repository(namespace: $namespace, name: $name) { id fullName sshUrl }
  }
`);

export type RepositoryName = VariablesOf<typeof FIND>;

/** @throws UsageError */
export async function resolveName(client: Client, text: string): Promise<RepositoryName> {
  const [first = '', second, ...rest] = text.split('/');
  if (first === '' || second === '' || rest.length > 0)
    throw new UsageError(`${text} is not a repository: write namespace/name`);
  return second === undefined
    ? { namespace: await client.username(), name: first }
    : { namespace: first, name: second };
}

/** @throws UsageError; LoamError `not_found` */
export async function findRepository(client: Client, text: string) {
  const name = await resolveName(client, text);
  const { repository } = await client.transport.graphql(FIND, name);
  return demand(repository, `Repository ${name.namespace}/${name.name}`);
}
