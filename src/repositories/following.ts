/** Following the events of repositories: pushes above all. */

import type pg from 'pg';
import type { Command } from '../git/transport/hooks.ts';
import { namespaceNamed } from '../identity/accounts.ts';
import { anyIn, demand, type Viewer } from '../identity/permissions.ts';
import type { Rechecks } from '../identity/rechecks.ts';
import { type Rule, whileAllowed } from '../identity/rechecks.ts';
import type { Db } from '../platform/database/client.ts';
import type { Bus } from '../platform/events/bus.ts';
import type { EventType } from '../platform/events/outbox.ts';
import type { OutboxEvent } from '../platform/events/read.ts';
import { follow, followed } from '../platform/events/read.ts';
import { idOrNull, type PushPayload, type RefPayload, type RepositoryPayload } from './payload.ts';
import { type AccessRow, accessColumns, getRepository, target } from './repositories.ts';

type Deps = { db: Db; pool: pg.Pool; bus: Bus; rechecks: Rechecks };

export type RepositoryEventType = Extract<EventType, `repository.${string}`>;

export type Push = {
  pusher: string;
  /** Of all refs that moved; no more than the first fifty are in `refs`. */
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
  push: Push | null;
};

export type FollowInput = {
  namespaces: readonly string[];
  /** One repository of the only namespace. */
  name?: string | null;
  after?: number | null;
};

/**
 * What happens to one repository that the viewer may read, until it is deleted and wherever it is transferred;
 * or to all of namespaces that the viewer is a member of.
 * @throws AppError 400, 401, 403, 404 at once; 400 for an `after` that is no event's, with the first read; later
 *   when the viewer may not see them any more
 */
export async function followRepositories(
  services: Deps,
  viewer: Viewer,
  { namespaces, name, after = null }: FollowInput,
): Promise<(signal: AbortSignal) => AsyncGenerator<RepositoryEvent>> {
  const [owner, ...others] = followed(namespaces, name);
  const one =
    name == null ? null : await getRepository(services, viewer, { namespace: owner, name }, {});
  const namespaceIds = one
    ? [one.namespaceId]
    : await membersOnly(services, viewer, [owner, ...others]);
  const query = { namespaceIds, subject: one?.id, prefix: 'repository.', after };
  const rule = one ? mayRead(services, one) : mayReadAll(namespaceIds);
  const narrowed = viewer.kind === 'account' ? viewer.repositories : null;
  return (signal) =>
    whileAllowed(services, viewer, rule, signal, async function* (ended) {
      for await (const event of follow(services, query, ended)) {
        if (!narrowed || narrowed.has(event.subject)) yield eventOf(event);
        if (one && event.type === 'repository.deleted') return;
      }
    });
}

async function membersOnly({ db }: Deps, viewer: Viewer, names: string[]): Promise<string[]> {
  const ids: string[] = [];
  for (const name of names) {
    const { id } = await namespaceNamed(db, name);
    demand(viewer, 'repository.read', anyIn(viewer, id));
    ids.push(id);
  }
  return ids;
}

function mayReadAll(namespaceIds: readonly string[]): Rule {
  return {
    key: `repositories of ${namespaceIds.join()}`,
    demand(viewer) {
      for (const id of namespaceIds) demand(viewer, 'repository.read', anyIn(viewer, id));
    },
  };
}

/** As it is at each moment: it may be closed, or given to another namespace. */
function mayRead({ db }: { db: Db }, { id }: AccessRow): Rule {
  return {
    key: `repository ${id}`,
    async demand(viewer) {
      const row = await db.repository.findUnique({ where: { id }, select: accessColumns });
      // One that is deleted ends what follows it by itself.
      if (row) demand(viewer, 'repository.read', target(row));
    },
  };
}

function eventOf({ id, seq, type, timestamp, subject, data }: OutboxEvent): RepositoryEvent {
  const repository = data.repository as RepositoryPayload | undefined;
  return {
    id,
    cursor: seq,
    type: type as RepositoryEventType,
    timestamp,
    repositoryId: subject,
    name: repository?.name ?? String(data.name),
    fullName: repository?.full_name ?? String(data.fullName),
    push: type === 'repository.pushed' ? pushOf(data) : null,
  };
}

/** Events of earlier versions have the fields of the push beside those of the repository. */
function pushOf(data: OutboxEvent['data']): Push {
  const push = data.push as PushPayload | undefined;
  if (push) return { pusher: push.pusher, refCount: push.ref_count, refs: push.refs };
  const commands = data.refs as unknown as Command[];
  return {
    pusher: String(data.pusher),
    refCount: Number(data.refCount),
    refs: commands.map(({ ref, before, after }) => ({
      ref,
      before: idOrNull(before),
      after: idOrNull(after),
    })),
  };
}
