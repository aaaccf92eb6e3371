/** Mutations in GraphQL that change webhooks, and that create test deliveries and redeliveries. */
import { builder, deletionPayload, INPUT } from '../../platform/schema/builder.ts';
import * as changes from '../changes.ts';
import type { Delivery as ADelivery } from '../deliveries.ts';
import * as manual from '../manual.ts';
import type { Webhook as AWebhook } from '../webhooks.ts';
import { Delivery, WebhookEventType } from './deliveries.ts';
import { Webhook } from './webhooks.ts';

const ID = { required: true, description: 'The id of the webhook.' } as const;
const NAME = 'The display name: 1 to 100 characters.';
const URL =
  'The endpoint: an https URL with a public address, at most 2,048 characters, without user name, password or fragment.';
const EVENT_TYPES = 'The event types to receive, at least one.';
const NAMESPACES =
  'The names of the namespaces whose events it receives, 1 to 100; the caller must be `ADMIN` in each.';
const SECRET =
  'The signing secret: 1 to 256 printable ASCII characters; after `whsec_` it must be base64.';

const CreateWebhookInput = builder.inputType('CreateWebhookInput', {
  description: 'The webhook to create.',
  fields: (t) => ({
    name: t.string({ required: true, description: NAME }),
    url: t.string({ required: true, description: URL }),
    secret: t.string({ description: `${SECRET} If omitted, deliveries are not signed.` }),
    eventTypes: t.field({ type: [WebhookEventType], required: true, description: EVENT_TYPES }),
    namespaces: t.stringList({ required: true, description: NAMESPACES }),
  }),
});

const UpdateWebhookInput = builder.inputType('UpdateWebhookInput', {
  description:
    'The fields to change; omitted fields stay unchanged. Requires the role `ADMIN` in all namespaces of the webhook; to remove a namespace, only in that one.',
  fields: (t) => ({
    id: t.id(ID),
    name: t.string({ description: NAME }),
    url: t.string({ description: URL }),
    secret: t.string({
      description: `${SECRET} The previous secret signs as well for 24 hours. Null removes the secret.`,
    }),
    eventTypes: t.field({ type: [WebhookEventType], description: EVENT_TYPES }),
    namespaces: t.stringList({ description: NAMESPACES }),
    active: t.boolean({
      description: 'Whether the webhook is on. Switching it off fails its pending deliveries.',
    }),
  }),
});

const DeleteWebhookInput = builder.inputType('DeleteWebhookInput', {
  description: 'The webhook to delete.',
  fields: (t) => ({ id: t.id(ID) }),
});

const TestWebhookInput = builder.inputType('TestWebhookInput', {
  description: 'The webhook to test.',
  fields: (t) => ({ id: t.id(ID) }),
});

const RedeliverInput = builder.inputType('RedeliverInput', {
  description: 'The delivery whose message to send again.',
  fields: (t) => ({
    webhookId: t.id(ID),
    deliveryId: t.id({ required: true, description: 'The id of the delivery.' }),
  }),
});

function webhookPayload(mutation: string, description: string) {
  return builder.objectRef<{ webhook: AWebhook }>(`${mutation}Payload`).implement({
    description,
    fields: (t) => ({
      webhook: t.expose('webhook', { type: Webhook, description: 'The webhook, as it is now.' }),
    }),
  });
}

function deliveryPayload(mutation: string, description: string) {
  return builder.objectRef<{ delivery: ADelivery }>(`${mutation}Payload`).implement({
    description,
    fields: (t) => ({
      delivery: t.expose('delivery', {
        type: Delivery,
        description: 'The new delivery, which is pending.',
      }),
    }),
  });
}

builder.mutationFields((t) => ({
  createWebhook: t.field({
    type: webhookPayload('CreateWebhook', 'The webhook that was created.'),
    nullable: true,
    description:
      'Creates a webhook. Requires the right to administer webhooks in each of its namespaces.',
    args: { input: t.arg({ type: CreateWebhookInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      webhook: await changes.createWebhook(services, viewer, input),
    }),
  }),
  updateWebhook: t.field({
    type: webhookPayload('UpdateWebhook', 'The webhook that was changed.'),
    nullable: true,
    description: 'Changes a webhook. Changes take effect with the next attempt.',
    args: { input: t.arg({ type: UpdateWebhookInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      webhook: await changes.updateWebhook(services, viewer, input),
    }),
  }),
  deleteWebhook: t.field({
    type: deletionPayload('DeleteWebhook'),
    nullable: true,
    description: 'Deletes a webhook with its deliveries. No more requests are sent.',
    args: { input: t.arg({ type: DeleteWebhookInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await changes.deleteWebhook(services, viewer, input.id),
    }),
  }),
  testWebhook: t.field({
    type: deliveryPayload('TestWebhook', 'The delivery of the test.'),
    nullable: true,
    description: 'Sends a `ping`, independent of the event types of the webhook.',
    args: { input: t.arg({ type: TestWebhookInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      delivery: await manual.testWebhook(services, viewer, input.id),
    }),
  }),
  redeliver: t.field({
    type: deliveryPayload('Redeliver', 'The new delivery of the same message.'),
    nullable: true,
    description:
      'Sends the message of a delivery again, with the same event id. The state of the first delivery does not matter.',
    args: { input: t.arg({ type: RedeliverInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      delivery: await manual.redeliver(services, viewer, input),
    }),
  }),
}));
