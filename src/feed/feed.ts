/**
 * The events of namespaces, with the ids, types and data that webhooks send: pages of kept events, and a subscription.
 *
 * Members see events of the jobs, repositories and machines that their credential may read. Non-members cannot read the feed, even of
 * public repositories, because events reveal more than the repositories (who pushed, former names). Everybody who may read a
 * repository can follow that repository (`repositories/following.ts`).
 */
import type pg from 'pg';
import type { Urls } from '../base/urls.ts';
import { resolveNamespace } from '../identity/accounts.ts';
import {
  type Action,
  anyTargetIn,
  can,
  demand,
  demandAccount,
  type Target,
  type Viewer,
} from '../identity/permissions.ts';
import type { Rechecks } from '../identity/rechecks.ts';
import { type AccessRule, whileAllowed } from '../identity/rechecks.ts';
import type { MachineEventData } from '../jobs/machines/machines.ts';
import type { BudgetEventData, JobEventData } from '../jobs/requests/jobs.ts';
import type { Signer } from '../platform/crypto/signed-links.ts';
import type { Db } from '../platform/database/client.ts';
import type { CursorPageRequest } from '../platform/database/paging.ts';
import type { Bus } from '../platform/events/bus.ts';
import { type FeedOrder, type FeedPage, readFeedPage } from '../platform/events/feed-page.ts';
import type { EventType } from '../platform/events/outbox.ts';
import type { OutboxEvent } from '../platform/events/read.ts';
import { parseFollowedNamespaces, subscribeToEvents } from '../platform/events/read.ts';
import type { RepositoryEventData } from '../repositories/repositories.ts';
import { WEBHOOK_TYPE_OF_EVENT, type WebhookEventType } from '../webhooks/event-types.ts';
import { dataToSend } from '../webhooks/webhooks.ts';

/** The types of webhooks, and two types that webhooks do not receive. */
export type FeedType = WebhookEventType | 'job.deleted' | 'repository.updated';

export type FeedEvent = {
  /** Webhooks send it as `webhook-id`. */
  id: string;
  cursor: number;
  type: FeedType;
  timestamp: Date;
  /** The id of the job, repository or machine, or of the namespace of the budget. */
  subject: string;
  /** As stored; `getEventPayload` renders it for clients. */
  data: OutboxEvent['data'];
};

type Deps = { db: Db; pool: pg.Pool; bus: Bus; rechecks: Rechecks };

/** Prefix of event types → the permission to see these events. */
const ACTION_OF_KIND = {
  'job.': 'job.read',
  'repository.': 'repository.read',
  'budget.': 'usage.read',
  'machine.': 'machine.read',
} as const;
type Kind = keyof typeof ACTION_OF_KIND;

function toFeedType(type: EventType): FeedType {
  return WEBHOOK_TYPE_OF_EVENT[type] ?? (type as FeedType);
}

const EVENT_TYPES = [
  'job.queued',
  'job.running',
  'job.succeeded',
  'job.failed',
  'job.cancelled',
  'job.timed_out',
  'job.deleted',
  'repository.created',
  'repository.renamed',
  'repository.transferred',
  'repository.updated',
  'repository.pushed',
  'repository.deleted',
  'budget.reached',
  'machine.joined',
  'machine.silent',
  'machine.online',
  'machine.draining',
  'machine.resumed',
  'machine.removed',
] as const satisfies readonly EventType[];

export const FEED_TYPES = [...new Set(EVENT_TYPES.map(toFeedType))];

type FeedRequest = CursorPageRequest & { order: FeedOrder; types?: readonly FeedType[] | null };

/**
 * A page of a namespace's events.
 * @throws AppError 400, 401, 403
 */
export async function sliceFeed(
  { db }: { db: Db },
  viewer: Viewer,
  namespaceId: string,
  { types, ...range }: FeedRequest,
): Promise<FeedPage<FeedEvent>> {
  const stored = visibleTypes(viewer, [namespaceId], types);
  const repositories = viewer.kind === 'account' ? viewer.repositories : null;
  const { items, ...page } = await readFeedPage(
    { db },
    {
      namespaceId,
      types: stored,
      repositories: repositories && [...repositories],
    },
    range,
  );
  return { ...page, items: items.map(({ cursor, node }) => ({ cursor, node: toFeedEvent(node) })) };
}

/**
 * Follows the events of some namespaces.
 * @throws AppError 400, 401, 403, 404 at once; 400 at the first read if `after` is not the cursor of an event; an error of
 *   the check if the viewer loses access later
 */
export async function followFeed(
  services: Deps,
  viewer: Viewer,
  {
    namespaces,
    types,
    after = null,
  }: {
    namespaces: readonly string[];
    types?: readonly FeedType[] | null;
    after?: number | null;
  },
): Promise<(signal: AbortSignal) => AsyncGenerator<FeedEvent>> {
  const account = demandAccount(viewer);
  const namespaceIds: string[] = [];
  for (const name of parseFollowedNamespaces(namespaces, null))
    namespaceIds.push((await resolveNamespace(services.db, name)).id);
  const stored = new Set(visibleTypes(viewer, namespaceIds, types));
  const kinds = kindsOf([...stored]);
  const { repositories } = account;
  const isVisible = ({ type, subject, data }: OutboxEvent) =>
    stored.has(type as EventType) &&
    (!repositories ||
      repositories.has(type.startsWith('job.') ? String(data.repositoryId) : subject));
  const rule: AccessRule = {
    key: `${kinds.join()} of ${namespaceIds.join()}`,
    demand(now) {
      for (const kind of kinds) demandKind(now, namespaceIds, kind);
    },
  };
  return (signal) =>
    whileAllowed(services, viewer, rule, signal, async function* (ended) {
      // The query selects all types, so that all followers of these namespaces share the reads (`events/tail.ts`).
      for await (const event of subscribeToEvents(
        services,
        { namespaceIds, prefix: '', after },
        ended,
      ))
        if (isVisible(event)) yield toFeedEvent(event);
    });
}

/**
 * The stored types of the requested feed types, all of which the viewer must be allowed to see. Without requested types, the
 * types that the viewer may see in all of the namespaces.
 * @throws AppError 401, 403
 */
function visibleTypes(
  viewer: Viewer,
  namespaceIds: readonly string[],
  requested: readonly FeedType[] | null | undefined,
): EventType[] {
  const known = Object.keys(ACTION_OF_KIND) as Kind[];
  if (requested?.length) {
    const stored = EVENT_TYPES.filter((type) => requested.includes(toFeedType(type)));
    for (const kind of kindsOf(stored)) demandKind(viewer, namespaceIds, kind);
    return stored;
  }
  const allowed = known.filter((kind) =>
    namespaceIds.every((id) => can(viewer, ACTION_OF_KIND[kind], targetOf(viewer, kind, id))),
  );
  if (allowed.length === 0) for (const kind of known) demandKind(viewer, namespaceIds, kind);
  return EVENT_TYPES.filter((type) => allowed.some((kind) => type.startsWith(kind)));
}

function kindsOf(types: readonly EventType[]): Kind[] {
  const known = Object.keys(ACTION_OF_KIND) as Kind[];
  return known.filter((kind) => types.some((type) => type.startsWith(kind)));
}

function demandKind(viewer: Viewer, namespaceIds: readonly string[], kind: Kind): void {
  const action: Action = ACTION_OF_KIND[kind];
  for (const id of namespaceIds) demand(viewer, action, targetOf(viewer, kind, id));
}

/** A credential that is limited to repositories sees no machines (`jobs/machines/access.ts`). */
function targetOf(viewer: Viewer, kind: Kind, namespaceId: string): Target {
  return kind === 'machine.' ? { namespaceId } : anyTargetIn(viewer, namespaceId);
}

/**
 * The `data` that webhooks send: the job or repository as GET returned it at the time of the event, with newly signed links.
 */
export function getEventPayload(
  services: { signer: Signer; urls: Urls },
  { data }: FeedEvent,
): object {
  return dataToSend(services, data) as object;
}

/** The name of the namespace at the time of the event. */
export function getEventNamespace({ data }: FeedEvent): string {
  const { job, repository, budget, machine } = data as Partial<
    JobEventData & RepositoryEventData & BudgetEventData & MachineEventData
  >;
  return (job ?? repository ?? budget ?? machine)?.namespace ?? '';
}

function toFeedEvent({ id, seq, type, timestamp, subject, data }: OutboxEvent): FeedEvent {
  return {
    id,
    cursor: seq,
    type: toFeedType(type as EventType),
    timestamp,
    subject,
    data,
  };
}
