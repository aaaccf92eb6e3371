/** A file as a branch has it, and putting another text in its place by a commit. */
import { type Client, type CombinedError, useClient } from 'urql';
import { useAct } from '../../../graphql/act.ts';
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

/** What a commit expects of a branch that is not there. */
const NONE = '0'.repeat(40);
/** How often a push of somebody else may come between; it is another file's each time. */
const TRIES = 5;

export type Place = { namespace: string; name: string; branch: string; path: string };

/** `file` null: there is none at that path. Its `content` is null where it is no text, or too long to be shown. */
export type Tip = { head: string | null; file: { content: string | null } | null };

/** A branch of that name alone: a tag may have the same. */
export function revisionOf(branch: string): string {
  return `refs/heads/${branch}`;
}

/** The file at the commit that the branch stands at. @throws CombinedError */
export async function readTip(
  client: Client,
  { namespace, name, branch, path }: Place,
): Promise<Tip> {
  const fresh = { requestPolicy: 'network-only' } as const;
  const revision = revisionOf(branch);
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

type Wanted = {
  /** What the text was made of. */
  base: Tip;
  /** The branch of `base`, or a new one that begins there. */
  to: string;
  /** Null: the file is deleted. */
  content: string | null;
  message: string;
};

/** `moved`: the file is another now, or the new branch was there; nothing was committed. */
type Outcome = { sha: string } | { moved: Tip } | { problem: Problem };

export function useCommitFile(id: string) {
  const client = useClient();
  const act = useAct(CreateCommit, {
    changes: ['Repository', 'Commit', 'File', 'Tree'],
    fields: ['path', 'message', 'branch'],
  });
  async function commit(place: Place, { base, to, content, message }: Wanted): Promise<Outcome> {
    const { path } = place;
    let { head } = base;
    const input = { id, branch: to, message, changes: [{ path, content }] };
    for (let left = TRIES; ; left--) {
      const beginsAt =
        to === place.branch ? { expectedHead: head ?? NONE } : { expectedHead: NONE, from: head };
      const { data, problem } = await act.run({ input: { ...input, ...beginsAt } });
      if (data) return { sha: data.createCommit?.commit.sha ?? '' };
      if (problem.code !== 'CONFLICT' || !problem.message.startsWith('expectedHead'))
        return { problem };
      const now = await readTip(client, { ...place, branch: to });
      const isSame = to === place.branch && now.file?.content === base.file?.content;
      // What others changed meanwhile is elsewhere: the commit goes on top of theirs.
      if (!isSame || left === 0) return { moved: now };
      head = now.head;
    }
  }
  return { ...act, commit };
}
