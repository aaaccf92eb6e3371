/** Repositories as arguments: `namespace/name`, or `name` alone in the namespace of the caller. */
import { UsageError } from './exit.ts';
import type { Client } from './sdk/client.ts';
import type { Repository } from './sdk/repositories.ts';

export type RepositoryName = { namespace: string; name: string };

/** @throws UsageError */
export async function resolveName(client: Client, text: string): Promise<RepositoryName> {
  const [first = '', second, ...rest] = text.split('/');
  if (first === '' || second === '' || rest.length > 0)
    throw new UsageError(`${text} is not a repository: write namespace/name`);
  return second === undefined
    ? { namespace: await client.username(), name: first }
    : { namespace: first, name: second };
}

/** @returns `namespace/name` @throws UsageError */
export async function resolveFullName(client: Client, text: string): Promise<string> {
  const { namespace, name } = await resolveName(client, text);
  return `${namespace}/${name}`;
}

/** @throws UsageError; LoamError `not_found` */
export async function findRepository(client: Client, text: string): Promise<Repository> {
  return client.repositories.get(await resolveFullName(client, text));
}
