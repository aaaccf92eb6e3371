/** Repositories as arguments: `namespace/name`, or `name` alone in the namespace of the caller. */
import type { LocalConnection } from './connection.ts';
import { UsageError } from './exit.ts';
import type { Client } from './sdk/client.ts';
import { hasNamespace } from './sdk/job-input.ts';
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

/** @returns `namespace/name`, where `name` alone is in the namespace of the user; other text as it is */
export function qualifyName(text: string, username: string): string {
  return hasNamespace(text) ? text : `${username}/${text}`;
}

/** Describes an argument for `resolveRepository`. */
export const REPOSITORY =
  'namespace/name, or name in your own namespace; by default that of the clone';

/** @throws UsageError if no repository is named, and the current folder is not a clone of one */
export async function resolveRepository(
  { client, remote }: LocalConnection,
  text: string | undefined,
): Promise<RepositoryName> {
  if (text !== undefined) return resolveName(client, text);
  if (!remote) throw new UsageError('This is no clone of a repository on the server: name one');
  return { namespace: remote.namespace, name: remote.name };
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
