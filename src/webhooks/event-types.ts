/** The event types of webhooks, under the names that receivers get. */
import type { EventType } from '../platform/events/outbox.ts';

/** The types that the REST specification lists. Nothing emits the types of services, deployments and dev yet. */
export const SPECIFIED_TYPES = [
  'service.created',
  'service.deleted',
  'service.scaled',
  'job.completed',
  'job.failed',
  'deployment.succeeded',
  'deployment.failed',
  'dev.started',
  'dev.stopped',
] as const;

/** Types that GraphQL accepts in addition. */
const FURTHER_TYPES = [
  'job.queued',
  'job.running',
  'job.cancelled',
  'repository.created',
  'repository.renamed',
  'repository.transferred',
  'repository.pushed',
  'repository.deleted',
  'budget.reached',
  'machine.joined',
  'machine.silent',
  'machine.online',
  'machine.draining',
  'machine.resumed',
  'machine.removed',
] as const;

export const WEBHOOK_EVENT_TYPES = [...SPECIFIED_TYPES, ...FURTHER_TYPES] as const;
export type WebhookEventType = (typeof WEBHOOK_EVENT_TYPES)[number];

/** Type of a test message. Every webhook receives it, and no webhook can subscribe to it. */
export const PING = 'ping';

/** Type of an outbox event → type of its webhook message. Webhooks do not receive events that are missing here. */
export const WEBHOOK_TYPE_OF_EVENT: Readonly<Partial<Record<EventType, WebhookEventType>>> = {
  'job.queued': 'job.queued',
  'job.running': 'job.running',
  'job.succeeded': 'job.completed',
  'job.failed': 'job.failed',
  'job.timed_out': 'job.failed',
  'job.cancelled': 'job.cancelled',
  'repository.created': 'repository.created',
  'repository.renamed': 'repository.renamed',
  'repository.transferred': 'repository.transferred',
  'repository.pushed': 'repository.pushed',
  'repository.deleted': 'repository.deleted',
  'budget.reached': 'budget.reached',
  'machine.joined': 'machine.joined',
  'machine.silent': 'machine.silent',
  'machine.online': 'machine.online',
  'machine.draining': 'machine.draining',
  'machine.resumed': 'machine.resumed',
  'machine.removed': 'machine.removed',
};

export type DeliveryType = WebhookEventType | typeof PING;
