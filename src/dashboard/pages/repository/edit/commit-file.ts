/** Reads a file at the head of a branch, and commits a new version of it. */
import { type Client, type CombinedError, useClient } from 'urql';
import { useFormMutation } from '../../../graphql/act.ts';
import type { Problem } from '../../../graphql/client.ts';
import { graphql } from '../../../graphql/graphql.ts';

const TipQuery = graphql(`
  query BranchTip($namespace: String!, $name: String!, $revision: String!) {
    repository(namespace: $namespace, name: $name) { id commit(revision: $revision) { sha } }
  }
`);

const FileAtQuery = graphql(`
  query FileAt($namespace: String!, $name: String!, $path: String!, $ref: String!) {
    repository(namespace: $namespace, name: $name) {
      id
      file(path: $path, ref: $ref) { content }
    }
  }
`);

const CreateCommit = graphql(`
  mutation CreateCommit($input: CreateCommitInput!) {
    createCommit(input: $input) { commit { sha } }
  }
`);

/** The `expectedHead` of a branch that does not exist. */
const NO_COMMIT = '0'.repeat(40);
/** Retries after concurrent pushes that changed other files. */
const MAX_RETRIES = 5;

type BranchFile = { namespace: string; name: string; branch: string; path: string };

/** `file`: null if the path does not exist. `content`: null if the file is not text or is larger than 1 MiB. */
export type BranchTip = { head: string | null; file: { content: string | null } | null };

/** The full ref name, because a tag may have the same name as the branch. */
export function branchRef(branch: string): string {
  return `refs/heads/${branch}`;
}

/** Reads the file at the head of the branch. @throws CombinedError */
export async function readTip(
  client: Client,
  { namespace, name, branch, path }: BranchFile,
): Promise<BranchTip> {
  const fresh = { requestPolicy: 'network-only' } as const;
  const revision = branchRef(branch);
  const tip = await client.query(TipQuery, { namespace, name, revision }, fresh).toPromise();
  if (tip.error && !isMissing(tip.error)) throw tip.error;
  const head = tip.data?.repository?.commit?.sha ?? null;
  if (head === null) return { head, file: null };
  const file = await client
    .query(FileAtQuery, { namespace, name, path, ref: head }, fresh)
    .toPromise();
  if (file.error && !isMissing(file.error)) throw file.error;
  return { head, file: file.data?.repository?.file ?? null };
}

function isMissing({ graphQLErrors }: CombinedError): boolean {
  return graphQLErrors.every(({ extensions }) => extensions.code === 'NOT_FOUND');
}

type FileCommit = {
  /** The version that the user edited. */
  base: BranchTip;
  /** The branch of `base`, or the name of a new branch that starts there. */
  to: string;
  /** Null deletes the file. */
  content: string | null;
  message: string;
};

/** `conflict`: nothing was committed, because the file has changed meanwhile or the new branch already exists. */
type CommitOutcome = { sha: string } | { conflict: BranchTip } | { problem: Problem };

export function useCommitFile(id: string) {
  const client = useClient();
  const act = useFormMutation(CreateCommit, {
    changes: ['Repository', 'Commit', 'File', 'Tree'],
    fields: ['path', 'message', 'branch'],
  });
  async function commit(
    target: BranchFile,
    { base, to, content, message }: FileCommit,
  ): Promise<CommitOutcome> {
    const { path } = target;
    let { head } = base;
    const input = { id, branch: to, message, changes: [{ path, content }] };
    for (let retriesLeft = MAX_RETRIES; ; retriesLeft--) {
      const expectation =
        to === target.branch
          ? { expectedHead: head ?? NO_COMMIT }
          : { expectedHead: NO_COMMIT, from: head };
      const { data, problem } = await act.run({ input: { ...input, ...expectation } });
      if (data) return { sha: data.createCommit?.commit.sha ?? '' };
      if (problem.code !== 'CONFLICT' || !problem.message.startsWith('expectedHead'))
        return { problem };
      const current = await readTip(client, { ...target, branch: to });
      const isSame = to === target.branch && current.file?.content === base.file?.content;
      // Concurrent pushes changed other files only: commit on top of them.
      if (!isSame || retriesLeft === 0) return { conflict: current };
      head = current.head;
    }
  }
  return { ...act, commit };
}
