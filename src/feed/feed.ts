/**
 * The events of namespaces, for who may see what they are about: pages of those that are kept, and a subscription to
 * those that come. They are the rows that webhooks send, by the same ids, names and data.
 *
 * It shows members what they may see of jobs and of repositories: a credential without the scope for jobs gets those
 * of repositories alone, and one that is narrowed to repositories those of these and of their jobs. What is public of
 * a namespace is no feed for strangers, because its events tell more (who pushed, former names); one repository can be
 * followed by whoever may read it (`repos/following.ts`).
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
  type Viewer,
} from '../identity/permissions.ts';
import type { Rechecks } from '../identity/rechecks.ts';
import { type AccessRule, whileAllowed } from '../identity/rechecks.ts';
import type { JobEventData } from '../jobs/jobs.ts';
import type { Signer } from '../platform/crypto/signed-links.ts';
import type { Db } from '../platform/database/client.ts';
import type { CursorPageRequest } from '../platform/database/paging.ts';
import type { Bus } from '../platform/events/bus.ts';
import type { EventType } from '../platform/events/outbox.ts';
import type { OutboxEvent } from '../platform/events/read.ts';
import { parseFollowedNamespaces, subscribeToEvents } from '../platform/events/read.ts';
import { type FeedOrder, type FeedPage, readFeedPage } from '../platform/events/slice.ts';
import type { RepositoryEventData } from '../repositories/repositories.ts';
import { WEBHOOK_TYPE_OF_EVENT, type WebhookEventType } from '../webhooks/event-types.ts';
import { dataToSend } from '../webhooks/webhooks.ts';

/** As webhooks name them, and those of which webhooks are not told. */
export type FeedType = WebhookEventType | 'job.deleted' | 'repository.updated';

export type FeedEvent = {
  /** What receivers of webhooks get as `webhook-id`. */
  id: string;
  cursor: number;
  type: FeedType;
  timestamp: Date;
  /** The id of the job or repository. */
  subject: string;
  /** As it is stored: `payloadOf` has it as it is sent. */
  data: OutboxEvent['data'];
};

type Deps = { db: Db; pool: pg.Pool; bus: Bus; rechecks: Rechecks };

/** What events begin with → what it takes to see them. */
const ACTION_OF_KIND = { 'job.': 'job.read', 'repository.': 'repository.read' } as const;
type Kind = keyof typeof ACTION_OF_KIND;

export function toFeedType(type: EventType): FeedType {
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
] as const satisfies readonly EventType[];

export const FEED_TYPES = [...new Set(EVENT_TYPES.map(toFeedType))];

export type FeedRequest = CursorPageRequest & {
  order: FeedOrder;
  types?: readonly FeedType[] | null;
};

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
 * What happens in some namespaces.
 * @throws AppError 400, 401, 403, 404 at once; 400 for an `after` that is no event's, with the first read; later when
 *   the viewer may not see them any more
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
      // One query for all types, so that all who follow these namespaces share what is read.
      for await (const event of subscribeToEvents(
        services,
        { namespaceIds, prefix: '', after },
        ended,
      ))
        if (isVisible(event)) yield toFeedEvent(event);
    });
}

/**
 * The types as they are stored: those asked for, all of which the viewer must be allowed to see, or else those that
 * the viewer may see in all of the namespaces.
 * @throws AppError 401, 403
 */
function visibleTypes(
  viewer: Viewer,
  namespaceIds: readonly string[],
  asked: readonly FeedType[] | null | undefined,
): EventType[] {
  const known = Object.keys(ACTION_OF_KIND) as Kind[];
  if (asked?.length) {
    const stored = EVENT_TYPES.filter((type) => asked.includes(toFeedType(type)));
    for (const kind of kindsOf(stored)) demandKind(viewer, namespaceIds, kind);
    return stored;
  }
  const allowed = known.filter((kind) =>
    namespaceIds.every((id) => can(viewer, ACTION_OF_KIND[kind], anyTargetIn(viewer, id))),
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
  for (const id of namespaceIds) demand(viewer, action, anyTargetIn(viewer, id));
}

/**
 * What webhooks send as `data`: the job as GET returns it, its links signed now, or the repository with the push beside
 * its fields, as they were then. Null for events of versions that kept less.
 */
export function getEventPayload(
  services: { signer: Signer; urls: Urls },
  { data }: FeedEvent,
): object | null {
  return data.job || data.repository ? (dataToSend(services, data) as object) : null;
}

/** The name that the namespace had; null in events of versions that kept less. */
export function getEventNamespace({ data }: FeedEvent): string | null {
  const { job, repository } = data as Partial<JobEventData & RepositoryEventData>;
  return (job ?? repository)?.namespace ?? null;
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
