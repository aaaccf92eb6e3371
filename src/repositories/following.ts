/** Subscriptions to repository events. */

import type pg from 'pg';
import { resolveNamespace } from '../identity/accounts.ts';
import { anyTargetIn, demand, type Viewer } from '../identity/permissions.ts';
import type { Rechecks } from '../identity/rechecks.ts';
import { type AccessRule, whileAllowed } from '../identity/rechecks.ts';
import type { Db } from '../platform/database/client.ts';
import type { Bus } from '../platform/events/bus.ts';
import type { EventType } from '../platform/events/outbox.ts';
import type { OutboxEvent } from '../platform/events/read.ts';
import { parseFollowedNamespaces, subscribeToEvents } from '../platform/events/read.ts';
import type { RefPayload, RepositoryEventData } from './payload.ts';
import { type AccessRow, accessColumns, accessTarget, getRepository } from './repositories.ts';

type Deps = { db: Db; pool: pg.Pool; bus: Bus; rechecks: Rechecks };

export type RepositoryEventType = Extract<EventType, `repository.${string}`>;

export type PushSummary = {
  pusher: string;
  /** Number of all changed refs; `refs` has at most the first 50. */
  refCount: number;
  refs: RefPayload[];
};

export type RepositoryEvent = {
  id: string;
  cursor: number;
  type: RepositoryEventType;
  timestamp: Date;
  repositoryId: string;
  name: string;
  fullName: string;
  push: PushSummary | null;
};

type FollowInput = {
  namespaces: readonly string[];
  /** Limits the events to one repository; requires exactly one namespace. */
  name?: string | null;
  after?: number | null;
};

/**
 * Follows one repository that the viewer may read, through transfers and until its deletion, or all repositories of
 * namespaces that the viewer is a member of.
 * @throws AppError 400, 401, 403, 404 immediately; 400 with the first read if `after` is not the cursor of an event;
 *   later when the viewer loses the permission
 */
export async function followRepositories(
  services: Deps,
  viewer: Viewer,
  { namespaces, name, after = null }: FollowInput,
): Promise<(signal: AbortSignal) => AsyncGenerator<RepositoryEvent>> {
  const [owner, ...others] = parseFollowedNamespaces(namespaces, name);
  const repository =
    name == null ? null : await getRepository(services, viewer, { namespace: owner, name }, {});
  const namespaceIds = repository
    ? [repository.namespaceId]
    : await demandMembership(services, viewer, [owner, ...others]);
  const query = { namespaceIds, subject: repository?.id, prefix: 'repository.', after };
  const rule = repository ? repositoryRule(services, repository) : namespacesRule(namespaceIds);
  const allowedIds = viewer.kind === 'account' ? viewer.repositories : null;
  return (signal) =>
    whileAllowed(services, viewer, rule, signal, async function* (ended) {
      for await (const event of subscribeToEvents(services, query, ended)) {
        if (!allowedIds || allowedIds.has(event.subject)) yield toRepositoryEvent(event);
        if (repository && event.type === 'repository.deleted') return;
      }
    });
}

async function demandMembership({ db }: Deps, viewer: Viewer, names: string[]): Promise<string[]> {
  const ids: string[] = [];
  for (const name of names) {
    const { id } = await resolveNamespace(db, name);
    demand(viewer, 'repository.read', anyTargetIn(viewer, id));
    ids.push(id);
  }
  return ids;
}

function namespacesRule(namespaceIds: readonly string[]): AccessRule {
  return {
    key: `repositories of ${namespaceIds.join()}`,
    demand(viewer) {
      for (const id of namespaceIds) demand(viewer, 'repository.read', anyTargetIn(viewer, id));
    },
  };
}

/** Reads the current row, because the repository may become private or move to another namespace. */
function repositoryRule({ db }: { db: Db }, { id }: AccessRow): AccessRule {
  return {
    key: `repository ${id}`,
    async demand(viewer) {
      const row = await db.repository.findUnique({ where: { id }, select: accessColumns });
      // After a deletion, the deletion event ends the subscription.
      if (row) demand(viewer, 'repository.read', accessTarget(row));
    },
  };
}

function toRepositoryEvent({
  id,
  seq,
  type,
  timestamp,
  subject,
  data,
}: OutboxEvent): RepositoryEvent {
  const { repository, push } = data as RepositoryEventData;
  return {
    id,
    cursor: seq,
    type: type as RepositoryEventType,
    timestamp,
    repositoryId: subject,
    name: repository.name,
    fullName: repository.full_name,
    push: push ? { pusher: push.pusher, refCount: push.ref_count, refs: push.refs } : null,
  };
}
