/** Deliveries in GraphQL. */
import { builder } from '../../platform/schema/builder.ts';
import { defineConnectionType, definePageType } from '../../platform/schema/paging.ts';
import * as deliveries from '../deliveries.ts';
import type { AttemptRecord } from '../delivery/outcomes.ts';
import type { DeliveryType } from '../event-types.ts';
import type { OffReason } from '../webhooks.ts';

/** What it costs, in fields, to read what may take 10 or 20 kB for each. */
const LARGE = 25;

const DeliveryTry = builder.objectRef<AttemptRecord>('DeliveryTry').implement({
  description: 'An attempt of a delivery.',
  fields: (t) => ({
    startedAt: t.field({
      type: 'DateTime',
      description: 'When it began.',
      resolve: ({ at }) => new Date(at),
    }),
    milliseconds: t.int({ description: 'How long it took.', resolve: ({ took }) => took }),
    outcome: t.exposeString('outcome', { description: 'What came of it, as `Delivery.outcome`.' }),
    responseStatus: t.exposeInt('status', {
      nullable: true,
      description: 'The status that the endpoint answered with; null without an answer.',
    }),
    response: t.exposeString('answer', {
      nullable: true,
      description: 'The beginning of the body of the answer, at most 1 kB.',
    }),
    reason: t.string({
      nullable: true,
      description: 'What was wrong with TLS or the certificate, for `tls_failed`; else null.',
      resolve: ({ reason }) => reason ?? null,
    }),
  }),
});

const DeliveryRef = builder.objectRef<deliveries.Delivery>('Delivery');
export const Delivery = builder.node(DeliveryRef, {
  description: 'A message for one webhook, with all its attempts. It is kept for 30 days.',
  id: { resolve: ({ id }) => id },
  loadMany: async (ids, { services, viewer }) => {
    const found = await deliveries.findDeliveries(services, viewer, ids);
    const byId = new Map(found.map((delivery) => [delivery.id, delivery]));
    return ids.map((id) => byId.get(id) ?? null);
  },
  fields: (t) => ({
    webhookId: t.exposeID('webhookId', { description: 'The id of the webhook.' }),
    eventId: t.exposeID('messageId', {
      description: 'The id of the event, which the endpoint gets as `webhook-id` each time.',
    }),
    eventType: t.expose('type', { type: WebhookEventType, description: 'What happened.' }),
    status: t.expose('status', { type: DeliveryStatus, description: 'What became of it.' }),
    outcome: t.exposeString('outcome', {
      nullable: true,
      description:
        'What came of the last attempt: `status_200`, `timeout`, `dns_failed` and so on; null before the first.',
    }),
    responseStatus: t.exposeInt('responseStatus', {
      nullable: true,
      description: 'The status of the last answer; null without one.',
    }),
    attempts: t.exposeInt('attempts', { description: 'How often it was sent.' }),
    nextAttemptAt: t.expose('nextAttemptAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When it is to be sent next; null when it is not.',
    }),
    createdAt: t.expose('createdAt', { type: 'DateTime', description: 'When it was made.' }),
    completedAt: t.expose('completedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When it succeeded or was given up; null before.',
    }),
    tries: t.field({
      type: [DeliveryTry],
      nullable: true,
      description: 'Its attempts, the first one first.',
      complexity: { field: LARGE, multiplier: 1 },
      resolve: (delivery, _args, { services }) => deliveries.listAttempts(services, delivery),
    }),
    payload: t.field({
      type: 'JSON',
      nullable: true,
      description:
        'The body that is sent. Links to artifacts are signed anew each time. Null once it is removed.',
      complexity: LARGE,
      resolve: (delivery, _args, { services, allowance }, info) =>
        deliveries.getDeliveryPayload(services, delivery, allowance(info)),
    }),
  }),
});

export const DeliveryConnection = defineConnectionType('Delivery', Delivery);
export const DeliveryPage = definePageType<deliveries.Delivery>('DeliveryPage', Delivery);

/** The enums of webhooks in GraphQL. */
const TYPES: Record<DeliveryType, string> = {
  'service.created': 'A service was created. Nothing emits it yet.',
  'service.deleted': 'A service was deleted. Nothing emits it yet.',
  'service.scaled': 'A service was scaled. Nothing emits it yet.',
  'job.completed': 'A job succeeded.',
  'job.failed': 'A job failed or timed out, in its last attempt.',
  'deployment.succeeded': 'A deployment succeeded. Nothing emits it yet.',
  'deployment.failed': 'A deployment failed. Nothing emits it yet.',
  'dev.started': 'A development environment was started. Nothing emits it yet.',
  'dev.stopped': 'A development environment was stopped. Nothing emits it yet.',
  'job.queued': 'A job was created, or queued for a retry.',
  'job.running': 'The process of a job started.',
  'job.cancelled': 'Somebody stopped a job.',
  'repository.created': 'A repository was created.',
  'repository.renamed': 'A repository has another name.',
  'repository.transferred': 'A repository was given to another namespace.',
  'repository.pushed': 'Commits, branches or tags were pushed.',
  'repository.deleted': 'A repository was deleted.',
  ping: 'A test. Every webhook gets it, and none can choose it.',
};

/** `job.completed` is JOB_COMPLETED. */
export const WebhookEventType = builder.enumType('WebhookEventType', {
  description: 'What a webhook is told of.',
  values: Object.fromEntries(
    Object.entries<string>(TYPES).map(([value, description]) => [
      value.toUpperCase().replace('.', '_'),
      { value: value as DeliveryType, description },
    ]),
  ) as { [name: string]: { value: DeliveryType } },
});

export const WebhookOffReason = builder.enumType('WebhookOffReason', {
  description: 'Why a webhook is off that nobody switched off.',
  values: {
    GONE: { value: 'gone', description: 'Its endpoint answered 410.' },
    FAILING: { value: 'failing', description: 'Every attempt has failed for five days.' },
  } satisfies Record<string, { value: OffReason; description: string }>,
});

export const DeliveryStatus = builder.enumType('DeliveryStatus', {
  description: 'What became of a delivery.',
  values: {
    PENDING: { value: 'pending', description: 'It is to be sent, or to be sent again.' },
    SUCCEEDED: { value: 'succeeded', description: 'The endpoint answered with a status of 2xx.' },
    FAILED: { value: 'failed', description: 'It is not tried any more.' },
  } as const,
});
