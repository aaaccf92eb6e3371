/** What webhooks can be told of, by the names that receivers get. */
import type { EventType } from '../platform/events/outbox.ts';

/** Those of the specification (section 6), which REST takes. No area emits the types of services, deployments and dev yet. */
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

/** Those that GraphQL takes besides. */
export const FURTHER_TYPES = [
  'job.queued',
  'job.running',
  'job.cancelled',
  'repository.created',
  'repository.renamed',
  'repository.transferred',
  'repository.pushed',
  'repository.deleted',
] as const;

export const WEBHOOK_EVENT_TYPES = [...SPECIFIED_TYPES, ...FURTHER_TYPES] as const;
export type WebhookEventType = (typeof WEBHOOK_EVENT_TYPES)[number];

/** What a test sends. Every webhook gets it, and none can ask for it. */
export const PING = 'ping';

/** Event as the outbox has it → as webhooks name it. Of those that are not here webhooks are not told. */
export const TOLD_AS: Readonly<Partial<Record<EventType, WebhookEventType>>> = {
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
};

/** What a delivery may be of. */
export type DeliveryType = WebhookEventType | typeof PING;
