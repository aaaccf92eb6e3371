/** Deliveries in GraphQL. */
import { builder } from '../../platform/schema/builder.ts';
import { defineConnectionType, definePageType } from '../../platform/schema/paging.ts';
import * as deliveries from '../deliveries.ts';
import type { AttemptRecord } from '../delivery/outcomes.ts';
import type { DeliveryType } from '../event-types.ts';
import type { OffReason } from '../webhooks.ts';

/** Complexity, in fields, of a value that may have 10 to 20 kB. */
const LARGE = 25;

const DeliveryTry = builder.objectRef<AttemptRecord>('DeliveryTry').implement({
  description: 'An attempt of a delivery.',
  fields: (t) => ({
    startedAt: t.field({
      type: 'DateTime',
      description: 'When the attempt started.',
      resolve: ({ at }) => new Date(at),
    }),
    milliseconds: t.int({
      description: 'Duration of the attempt in milliseconds.',
      resolve: ({ took }) => took,
    }),
    outcome: t.exposeString('outcome', {
      description: 'The outcome of the attempt, as in `Delivery.outcome`.',
    }),
    responseStatus: t.exposeInt('status', {
      nullable: true,
      description: 'The HTTP status of the response; null without a response.',
    }),
    response: t.exposeString('answer', {
      nullable: true,
      description: 'The beginning of the response body, at most 1 kB.',
    }),
    reason: t.string({
      nullable: true,
      description: 'The TLS or certificate error for the outcome `tls_failed`; otherwise null.',
      resolve: ({ reason }) => reason ?? null,
    }),
  }),
});

const DeliveryRef = builder.objectRef<deliveries.Delivery>('Delivery');
export const Delivery = builder.node(DeliveryRef, {
  description:
    'A message for one webhook, with all attempts to send it. Deliveries are kept for 30 days.',
  id: { resolve: ({ id }) => id },
  loadMany: async (ids, { services, viewer }) => {
    const found = await deliveries.findDeliveries(services, viewer, ids);
    const byId = new Map(found.map((delivery) => [delivery.id, delivery]));
    return ids.map((id) => byId.get(id) ?? null);
  },
  fields: (t) => ({
    webhookId: t.exposeID('webhookId', { description: 'The id of the webhook.' }),
    eventId: t.exposeID('messageId', {
      description: 'The id of the event. Every attempt sends it as `webhook-id`.',
    }),
    eventType: t.expose('type', { type: WebhookEventType, description: 'The type of the event.' }),
    status: t.expose('status', { type: DeliveryStatus, description: 'The state of the delivery.' }),
    outcome: t.exposeString('outcome', {
      nullable: true,
      description:
        'The outcome of the last attempt, such as `status_200`, `timeout` or `dns_failed`; null before the first attempt.',
    }),
    responseStatus: t.exposeInt('responseStatus', {
      nullable: true,
      description: 'The HTTP status of the last response; null without a response.',
    }),
    attempts: t.exposeInt('attempts', { description: 'The number of attempts.' }),
    nextAttemptAt: t.expose('nextAttemptAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When the next attempt is made; null when there is none.',
    }),
    createdAt: t.expose('createdAt', {
      type: 'DateTime',
      description: 'When the delivery was created.',
    }),
    completedAt: t.expose('completedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When the delivery succeeded or failed for good; null while it is pending.',
    }),
    tries: t.field({
      type: [DeliveryTry],
      nullable: true,
      description: 'The attempts, oldest first.',
      complexity: { field: LARGE, multiplier: 1 },
      resolve: (delivery, _args, { services }) => deliveries.listAttempts(services, delivery),
    }),
    payload: t.field({
      type: 'JSON',
      nullable: true,
      description:
        'The request body. Links to artifacts are signed again for each read. Null once the message is removed.',
      complexity: LARGE,
      resolve: (delivery, _args, { services, allowance }, info) =>
        deliveries.getDeliveryPayload(services, delivery, allowance(info)),
    }),
  }),
});

export const DeliveryConnection = defineConnectionType('Delivery', Delivery);
export const DeliveryPage = definePageType<deliveries.Delivery>('DeliveryPage', Delivery);

const TYPES: Record<DeliveryType, string> = {
  'service.created': 'A service was created. Nothing emits it yet.',
  'service.deleted': 'A service was deleted. Nothing emits it yet.',
  'service.scaled': 'A service was scaled. Nothing emits it yet.',
  'job.completed': 'A job succeeded.',
  'job.failed': 'The last attempt of a job failed or timed out.',
  'deployment.succeeded': 'A deployment succeeded. Nothing emits it yet.',
  'deployment.failed': 'A deployment failed. Nothing emits it yet.',
  'dev.started': 'A development environment was started. Nothing emits it yet.',
  'dev.stopped': 'A development environment was stopped. Nothing emits it yet.',
  'job.queued': 'A job was created, or queued for a retry.',
  'job.running': 'The process of a job started.',
  'job.cancelled': 'A user cancelled a job.',
  'repository.created': 'A repository was created.',
  'repository.renamed': 'A repository was renamed.',
  'repository.transferred': 'A repository was transferred to another namespace.',
  'repository.pushed': 'Commits, branches or tags were pushed.',
  'repository.deleted': 'A repository was deleted.',
  'budget.reached': 'The jobs of a namespace have cost a threshold of its budget.',
  'machine.joined': 'A machine of the namespace joined.',
  'machine.silent': 'A machine of the namespace has not reported for a minute.',
  'machine.online': 'A silent machine of the namespace reports again.',
  'machine.draining':
    'A machine of the namespace was asked to take no more jobs, or its deadline was changed.',
  'machine.resumed': 'A drained machine of the namespace takes jobs again.',
  'machine.removed': 'A machine of the namespace was removed, or its worker token revoked.',
  ping: 'A test message. Every webhook receives it, and none can subscribe to it.',
};

/** Value names are like JOB_COMPLETED for `job.completed`. */
export const WebhookEventType = builder.enumType('WebhookEventType', {
  description: 'The type of an event that webhooks receive.',
  values: Object.fromEntries(
    Object.entries<string>(TYPES).map(([value, description]) => [
      value.toUpperCase().replace('.', '_'),
      { value: value as DeliveryType, description },
    ]),
  ) as { [name: string]: { value: DeliveryType } },
});

export const WebhookOffReason = builder.enumType('WebhookOffReason', {
  description: 'Why the server switched a webhook off.',
  values: {
    GONE: { value: 'gone', description: 'The endpoint answered 410 Gone.' },
    FAILING: { value: 'failing', description: 'Every attempt has failed for five days.' },
  } satisfies Record<string, { value: OffReason; description: string }>,
});

export const DeliveryStatus = builder.enumType('DeliveryStatus', {
  description: 'The state of a delivery.',
  values: {
    PENDING: { value: 'pending', description: 'Waiting for its first attempt or a retry.' },
    SUCCEEDED: { value: 'succeeded', description: 'The endpoint answered with a 2xx status.' },
    FAILED: { value: 'failed', description: 'It failed and is not retried.' },
  } as const,
});
