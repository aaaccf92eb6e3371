/** Webhooks in GraphQL: the type, queries and the subscription. */
import { Namespace, User } from '../../identity/graphql/namespaces.ts';
import { builder } from '../../platform/schema/builder.ts';
import {
  cursorPageArgs,
  defineConnectionType,
  definePageType,
  numberedPageCost,
  offsetPageArgs,
  pageCost,
  toConnection,
} from '../../platform/schema/paging.ts';
import { abortOnDisconnect, unwrapEvent } from '../../platform/schema/subscription.ts';
import { listDeliveries, sliceDeliveries } from '../deliveries.ts';
import { followDeliveries } from '../following.ts';
import * as webhooks from '../webhooks.ts';
import {
  Delivery,
  DeliveryConnection,
  DeliveryPage,
  DeliveryStatus,
  WebhookEventType,
  WebhookOffReason,
} from './deliveries.ts';

const WebhookRef = builder.objectRef<webhooks.Webhook>('Webhook');
export const Webhook = builder.node(WebhookRef, {
  description: 'An HTTPS endpoint that receives events.',
  id: { resolve: ({ id }) => id },
  loadMany: async (ids, { services, viewer }) => {
    const found = await webhooks.findWebhooks(services, viewer, ids);
    const byId = new Map(found.map((webhook) => [webhook.id, webhook]));
    return ids.map((id) => byId.get(id) ?? null);
  },
  fields: (t) => ({
    name: t.exposeString('name', { description: 'The display name. It need not be unique.' }),
    url: t.exposeString('url', {
      description: 'The endpoint, which receives a POST request for each event.',
    }),
    eventTypes: t.field({
      type: [WebhookEventType],
      description: 'The event types that it receives.',
      resolve: ({ eventTypes }) => eventTypes,
    }),
    namespaces: t.exposeStringList('namespaces', {
      description: 'The names of the namespaces whose events it receives, sorted.',
    }),
    hasSecret: t.exposeBoolean('hasSecret', {
      description: 'Whether deliveries are signed. The secret is never shown.',
    }),
    formerSecretUntil: t.expose('formerUntil', {
      type: 'DateTime',
      nullable: true,
      description: 'Until when the previous secret signs as well; null when it does not.',
    }),
    active: t.exposeBoolean('active', { description: 'Whether the webhook is on.' }),
    offReason: t.expose('offReason', {
      type: WebhookOffReason,
      nullable: true,
      description:
        'Why the server switched it off; null while it is on, and when a user switched it off.',
    }),
    failingSince: t.expose('failingSince', {
      type: 'DateTime',
      nullable: true,
      description: 'Since when every attempt has failed; null when the last one succeeded.',
    }),
    createdAt: t.expose('createdAt', {
      type: 'DateTime',
      description: 'When the webhook was created.',
    }),
    updatedAt: t.expose('updatedAt', {
      type: 'DateTime',
      description: 'When the webhook was last changed.',
    }),
    deliveries: t.field({
      type: DeliveryConnection,
      nullable: true,
      description:
        'The deliveries, newest first: those of namespaces that the viewer administers, and tests.',
      complexity: pageCost(),
      args: {
        ...cursorPageArgs,
        status: t.arg({ type: DeliveryStatus, description: 'Only those with this status.' }),
        type: t.arg({ type: WebhookEventType, description: 'Only those of this type.' }),
      },
      resolve: async (webhook, args, { services, viewer }) =>
        toConnection(await sliceDeliveries(services, viewer, webhook, args), args),
    }),
    deliveryPage: t.field({
      type: DeliveryPage,
      nullable: true,
      description: 'The same deliveries as a numbered page; only for REST.',
      complexity: numberedPageCost(),
      args: {
        ...offsetPageArgs,
        status: t.arg({ type: DeliveryStatus, description: 'Only those with this status.' }),
        type: t.arg({ type: WebhookEventType, description: 'Only those of this type.' }),
      },
      resolve: (webhook, args, { services, viewer }) =>
        listDeliveries(services, viewer, webhook, args),
    }),
  }),
});

const WebhookConnection = defineConnectionType('Webhook', Webhook);
const WebhookPage = definePageType<webhooks.Webhook>('WebhookPage', Webhook);

builder.prismaObjectField(User, 'webhooks', (t) =>
  t.field({
    type: WebhookConnection,
    nullable: true,
    description:
      'The webhooks of all namespaces that the user administers, newest first. Only the user sees them here.',
    complexity: pageCost(),
    args: cursorPageArgs,
    select: { id: true },
    resolve: async ({ id }, args, { services, viewer }) =>
      toConnection(await webhooks.sliceWebhooks(services, viewer, id, args), args),
  }),
);

builder.prismaObjectField(Namespace, 'webhooks', (t) =>
  t.field({
    type: WebhookConnection,
    nullable: true,
    description:
      'The webhooks that receive events of the namespace, newest first. Only its admins see them.',
    complexity: pageCost(),
    args: cursorPageArgs,
    select: { id: true },
    resolve: async ({ id }, args, { services, viewer }) =>
      toConnection(await webhooks.sliceNamespaceWebhooks(services, viewer, id, args), args),
  }),
);

builder.queryFields((t) => ({
  webhook: t.field({
    type: Webhook,
    nullable: true,
    description: 'A webhook by its id. Requires the right to administer one of its namespaces.',
    args: { id: t.arg.id({ required: true, description: 'The id of the webhook.' }) },
    resolve: (_root, { id }, { services, viewer }) => webhooks.getWebhook(services, viewer, id),
  }),
  webhookPage: t.field({
    type: WebhookPage,
    nullable: true,
    description:
      'The webhooks of all namespaces that the caller administers, newest first; only for REST. In GraphQL use `viewer { webhooks }`.',
    complexity: numberedPageCost(),
    args: offsetPageArgs,
    resolve: (_root, args, { services, viewer }) => webhooks.listWebhooks(services, viewer, args),
  }),
}));

builder.subscriptionFields((t) => ({
  webhookDeliveries: t.field({
    type: Delivery,
    description:
      'Follows the deliveries of a webhook from now on: each one when it is created and whenever it changes. Ends with an error when the viewer loses access to one of its namespaces.',
    args: { id: t.arg.id({ required: true, description: 'The id of the webhook.' }) },
    subscribe: async (_root, { id }, { services, viewer }) =>
      abortOnDisconnect(await followDeliveries(services, viewer, id)),
    resolve: unwrapEvent,
  }),
}));
