/**
 * A repository as GET returns it, at the moment of an event: what events carry. Only `collaborators` is not in it,
 * which is no column and would have to be counted. Fits into 20 kB with the refs of a push.
 */
import type { Prisma } from '../../prisma/generated/client.ts';
import { type Command, NONE } from '../git/transport/hooks.ts';

/** The columns of which it is made. */
export const payloadColumns = {
  id: true,
  name: true,
  description: true,
  visibility: true,
  defaultBranch: true,
  sizeBytes: true,
  language: true,
  contentAddressed: true,
  branchProtection: true,
  secretScanning: true,
  branchCount: true,
  tagCount: true,
  createdAt: true,
  updatedAt: true,
  pushedAt: true,
} as const satisfies Prisma.RepositorySelect;
export type PayloadRow = Prisma.RepositoryGetPayload<{ select: typeof payloadColumns }>;

export type RepositoryPayload = ReturnType<typeof payloadOf>;

/** `ref` as git names it; commits or tags by id, null where the ref was not there before, or is not after. */
export type RefPayload = { ref: string; before: string | null; after: string | null };

export type PushPayload = { pusher: string; ref_count: number; refs: RefPayload[] };

/** What an event of a repository holds. Those of earlier versions had `name`, `fullName` and the push's fields here. */
export type RepositoryEventData = { repository: RepositoryPayload; push?: PushPayload };

/** @param namespace the owner's name */
export function payloadOf(row: PayloadRow, namespace: string) {
  return {
    id: row.id,
    name: row.name,
    namespace,
    full_name: `${namespace}/${row.name}`,
    description: row.description,
    visibility: row.visibility,
    default_branch: row.defaultBranch,
    size_bytes: Number(row.sizeBytes),
    language: row.language,
    content_addressed: row.contentAddressed,
    branch_protection: row.branchProtection,
    secret_scanning: row.secretScanning,
    branches: row.branchCount,
    tags: row.tagCount,
    created_at: row.createdAt.toISOString(),
    updated_at: row.updatedAt.toISOString(),
    pushed_at: row.pushedAt?.toISOString() ?? null,
  };
}

/** Refs named in the event, as many as fit into so many bytes of JSON; of those beyond, only the number is in it. */
const MAX_NAMED = 50;
const MAX_NAMED_BYTES = 15_000;

export function pushPayloadOf(pusher: string, commands: readonly Command[]): PushPayload {
  const refs: RefPayload[] = [];
  let bytes = 0;
  for (const { ref, before, after } of commands.slice(0, MAX_NAMED)) {
    const named = { ref, before: idOrNull(before), after: idOrNull(after) };
    bytes += Buffer.byteLength(JSON.stringify(named)) + 1;
    if (bytes > MAX_NAMED_BYTES) break;
    refs.push(named);
  }
  return { pusher, ref_count: commands.length, refs };
}

export function idOrNull(sha: string): string | null {
  return sha === NONE ? null : sha;
}
