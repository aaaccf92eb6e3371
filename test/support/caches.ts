/** Repositories for tests of caches. */
import type { Client } from './harness.ts';

let count = 0;

/** @returns the full name and the id of a new repository that has the files */
export async function createRepository(
  client: Client,
  namespace: string,
  files: Record<string, string> = {},
): Promise<{ repo: string; id: string }> {
  const name = `cached${++count}`;
  const { body } = await client.post(`/auth/v1/repository/${namespace}`, { name });
  if (Object.keys(files).length > 0) await commitFiles(client, body.id, files);
  return { repo: `${namespace}/${name}`, id: body.id };
}

export async function commitFiles(
  client: Client,
  id: string,
  files: Record<string, string>,
  branch = 'main',
): Promise<void> {
  const changes = Object.entries(files).map(([path, content]) => ({ path, content }));
  await client.gql(
    'mutation ($input: CreateCommitInput!) { createCommit(input: $input) { commit { sha } } }',
    { input: { id, branch, message: 'Change files', changes } },
  );
}
