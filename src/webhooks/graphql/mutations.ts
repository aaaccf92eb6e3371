/** What changes webhooks, and what is sent on demand, in GraphQL. */
import { builder, deletionPayload, INPUT } from '../../platform/schema/builder.ts';
import * as changes from '../changes.ts';
import type { Delivery as ADelivery } from '../deliveries.ts';
import * as manual from '../manual.ts';
import type { Webhook as AWebhook } from '../webhooks.ts';
import { Delivery, WebhookEventType } from './deliveries.ts';
import { Webhook } from './webhooks.ts';

const ID = { required: true, description: 'The id of the webhook.' } as const;
const NAME = 'What people call it: 1 to 100 characters.';
const URL =
  'The endpoint: https, at most 2,048 characters, without user name, password and fragment, and at a public address.';
const EVENT_TYPES = 'What it is to be told of, at least one type.';
const NAMESPACES =
  'The names of the namespaces whose events it is to be told of, 1 to 100; the caller must be `ADMIN` in each.';
const SECRET =
  '1 to 256 printable ASCII characters, with which what it is sent is signed; after `whsec_` it must be base64.';

const CreateWebhookInput = builder.inputType('CreateWebhookInput', {
  description: 'The webhook to create.',
  fields: (t) => ({
    name: t.string({ required: true, description: NAME }),
    url: t.string({ required: true, description: URL }),
    secret: t.string({ description: `${SECRET} Left out: it is not signed.` }),
    eventTypes: t.field({ type: [WebhookEventType], required: true, description: EVENT_TYPES }),
    namespaces: t.stringList({ required: true, description: NAMESPACES }),
  }),
});

const UpdateWebhookInput = builder.inputType('UpdateWebhookInput', {
  description:
    'What to change of a webhook; what is left out stays. It takes the role `ADMIN` in all its namespaces, but to take out one, only in that.',
  fields: (t) => ({
    id: t.id(ID),
    name: t.string({ description: NAME }),
    url: t.string({ description: URL }),
    secret: t.string({
      description: `${SECRET} The one before signs beside it for 24 hours. Null removes it.`,
    }),
    eventTypes: t.field({ type: [WebhookEventType], description: EVENT_TYPES }),
    namespaces: t.stringList({ description: NAMESPACES }),
    active: t.boolean({
      description: 'Whether it is on. When it is switched off, what is pending fails.',
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
  description: 'The delivery whose message is to be sent again.',
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
        description: 'The delivery, which is pending.',
      }),
    }),
  });
}

builder.mutationFields((t) => ({
  createWebhook: t.field({
    type: webhookPayload('CreateWebhook', 'The webhook that was created.'),
    nullable: true,
    description:
      'Creates a webhook. It takes the right to administer webhooks in each of its namespaces.',
    args: { input: t.arg({ type: CreateWebhookInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      webhook: await changes.createWebhook(services, viewer, input),
    }),
  }),
  updateWebhook: t.field({
    type: webhookPayload('UpdateWebhook', 'The webhook that was changed.'),
    nullable: true,
    description: 'Changes a webhook, from the next attempt on.',
    args: { input: t.arg({ type: UpdateWebhookInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      webhook: await changes.updateWebhook(services, viewer, input),
    }),
  }),
  deleteWebhook: t.field({
    type: deletionPayload('DeleteWebhook'),
    nullable: true,
    description: 'Deletes a webhook with its deliveries. Nothing more is sent.',
    args: { input: t.arg({ type: DeleteWebhookInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await changes.deleteWebhook(services, viewer, input.id),
    }),
  }),
  testWebhook: t.field({
    type: deliveryPayload('TestWebhook', 'The test that is sent.'),
    nullable: true,
    description: 'Sends a `ping`, whatever the webhook is told of.',
    args: { input: t.arg({ type: TestWebhookInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      delivery: await manual.testWebhook(services, viewer, input.id),
    }),
  }),
  redeliver: t.field({
    type: deliveryPayload('Redeliver', 'The new delivery of the same message.'),
    nullable: true,
    description:
      'Sends the message of a delivery again, whatever became of it, under the same event id.',
    args: { input: t.arg({ type: RedeliverInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      delivery: await manual.redeliver(services, viewer, input),
    }),
  }),
}));
