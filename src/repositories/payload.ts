/**
 * The event payload of a repository: the representation that GET returns, at the time of the event. Only
 * `collaborators` is missing, because it is not a column and would need a count. Together with the refs of a
 * push it fits into 20 kB.
 */
import type { Prisma } from '../../prisma/generated/client.ts';
import { type ReceivedRefUpdate, ZERO_ID } from '../git/transport/hooks.ts';

/** The columns that `payloadOf` needs. */
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

type RepositoryPayload = ReturnType<typeof payloadOf>;

/**
 * `ref` is the full ref name. `before` and `after` are object ids; null if the ref did not exist before, or no
 * longer exists.
 */
export type RefPayload = { ref: string; before: string | null; after: string | null };

export type PushPayload = { pusher: string; ref_count: number; refs: RefPayload[] };

/** The `data` of a repository event. */
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

/** An event lists the first refs of a push, up to these limits. `ref_count` always has the full number. */
const MAX_LISTED_REFS = 50;
const MAX_LISTED_BYTES = 15_000;

export function pushPayloadOf(pusher: string, commands: readonly ReceivedRefUpdate[]): PushPayload {
  const refs: RefPayload[] = [];
  let bytes = 0;
  for (const { ref, before, after } of commands.slice(0, MAX_LISTED_REFS)) {
    const payload = { ref, before: idOrNull(before), after: idOrNull(after) };
    bytes += Buffer.byteLength(JSON.stringify(payload)) + 1;
    if (bytes > MAX_LISTED_BYTES) break;
    refs.push(payload);
  }
  return { pusher, ref_count: commands.length, refs };
}

function idOrNull(sha: string): string | null {
  return sha === ZERO_ID ? null : sha;
}
