/** Webhooks: create, list, read, change, test, delete; their deliveries. */
import { graphql } from './graphql.ts';
import { checkOptions, type OptionNames } from './options.ts';
import { demand, demandViewer, LIST_OPTIONS, type ListOptions, readPages } from './pages.ts';
import type { Transport } from './transport.ts';

const WEBHOOK_FIELDS = graphql(`
  fragment WebhookFields on Webhook {
    id name url active namespaces eventTypes hasSecret formerSecretUntil offReason failingSince createdAt updatedAt
  }
`);
const DELIVERY_FIELDS = graphql(`
  fragment DeliveryFields on Delivery {
    id eventId eventType status outcome responseStatus attempts nextAttemptAt createdAt completedAt
  }
`);
const CREATE = graphql(
  `mutation CreateWebhook($input: CreateWebhookInput!) {
    createWebhook(input: $input) { webhook { ...WebhookFields } }
  }`,
  [WEBHOOK_FIELDS],
);
const LIST_MINE = graphql(
  `query ListMyWebhooks($first: Int!, $after: String) {
    viewer {
      webhooks(first: $first, after: $after) {
        nodes { ...WebhookFields } pageInfo { hasNextPage endCursor }
      }
    }
  }`,
  [WEBHOOK_FIELDS],
);
const LIST_OF_NAMESPACE = graphql(
  `query ListWebhooks($namespace: String!, $first: Int!, $after: String) {
    namespace(name: $namespace) {
      webhooks(first: $first, after: $after) {
        nodes { ...WebhookFields } pageInfo { hasNextPage endCursor }
      }
    }
  }`,
  [WEBHOOK_FIELDS],
);
const READ = graphql(`query ReadWebhook($id: ID!) { webhook(id: $id) { ...WebhookFields } }`, [
  WEBHOOK_FIELDS,
]);
const UPDATE = graphql(
  `mutation UpdateWebhook($input: UpdateWebhookInput!) {
    updateWebhook(input: $input) { webhook { ...WebhookFields } }
  }`,
  [WEBHOOK_FIELDS],
);
const DELETE = graphql(`
  mutation DeleteWebhook($id: ID!) { deleteWebhook(input: { id: $id }) { id } }
`);
const TEST = graphql(
  `mutation TestWebhook($id: ID!) {
    testWebhook(input: { id: $id }) { delivery { ...DeliveryFields } }
  }`,
  [DELIVERY_FIELDS],
);
const LIST_DELIVERIES = graphql(
  `query ListDeliveries(
    $id: ID!, $first: Int!, $after: String, $status: DeliveryStatus, $type: WebhookEventType
  ) {
    webhook(id: $id) {
      deliveries(first: $first, after: $after, status: $status, type: $type) {
        nodes { ...DeliveryFields } pageInfo { hasNextPage endCursor }
      }
    }
  }`,
  [DELIVERY_FIELDS],
);
const REDELIVER = graphql(
  `mutation Redeliver($webhookId: ID!, $deliveryId: ID!) {
    redeliver(input: { webhookId: $webhookId, deliveryId: $deliveryId }) { delivery { ...DeliveryFields } }
  }`,
  [DELIVERY_FIELDS],
);

/** `PING` is the type of tests. There are no events yet of the types from `SERVICE_CREATED` on. */
export type WebhookEventType =
  | 'PING'
  | 'JOB_QUEUED'
  | 'JOB_RUNNING'
  | 'JOB_COMPLETED'
  | 'JOB_FAILED'
  | 'JOB_CANCELLED'
  | 'REPOSITORY_CREATED'
  | 'REPOSITORY_RENAMED'
  | 'REPOSITORY_TRANSFERRED'
  | 'REPOSITORY_PUSHED'
  | 'REPOSITORY_DELETED'
  | 'BUDGET_REACHED'
  | 'MACHINE_JOINED'
  | 'MACHINE_SILENT'
  | 'MACHINE_ONLINE'
  | 'MACHINE_DRAINING'
  | 'MACHINE_RESUMED'
  | 'MACHINE_REMOVED'
  | 'SERVICE_CREATED'
  | 'SERVICE_DELETED'
  | 'SERVICE_SCALED'
  | 'DEPLOYMENT_SUCCEEDED'
  | 'DEPLOYMENT_FAILED'
  | 'DEV_STARTED'
  | 'DEV_STOPPED';

/** A webhook as it was when it was read, without its secret. Times are ISO 8601, in UTC. */
export type Webhook = {
  id: string;
  name: string;
  url: string;
  active: boolean;
  namespaces: readonly string[];
  eventTypes: readonly WebhookEventType[];
  /** Whether its deliveries are signed. */
  hasSecret: boolean;
  /** Until when deliveries are also signed with the former secret; null when they are not. */
  formerSecretUntil: string | null;
  /** Why the server switched it off: every attempt failed for five days, or the endpoint answered 410 Gone. */
  offReason: 'FAILING' | 'GONE' | null;
  /** Since when every attempt has failed; null when the last one succeeded. */
  failingSince: string | null;
  createdAt: string;
  updatedAt: string;
};

export type WebhookOptions = {
  /** The events to send, at least one type. `PING` is not among them: every webhook receives it. */
  eventTypes: readonly WebhookEventType[];
  /** 1 to 100 namespaces, of which the caller is an admin. */
  namespaces: readonly string[];
  /** Signs deliveries: printable ASCII characters; after `whsec_` it must be base64. */
  secret?: string | undefined;
};

export type WebhookChanges = {
  name?: string | undefined;
  url?: string | undefined;
  eventTypes?: readonly WebhookEventType[] | undefined;
  namespaces?: readonly string[] | undefined;
  /** For 24 hours, deliveries are also signed with the former secret. Null: deliveries are not signed any more. */
  secret?: string | null | undefined;
  /** Whether the webhook is on. Its pending deliveries fail when it is switched off. */
  active?: boolean | undefined;
};

/** One event for one webhook. Times are ISO 8601, in UTC. */
export type Delivery = {
  id: string;
  /** The same in all deliveries of the event; sent as `webhook-id`. */
  eventId: string;
  eventType: WebhookEventType;
  status: 'PENDING' | 'SUCCEEDED' | 'FAILED';
  /** The result of the last attempt, such as `status_200`, `timeout` or `dns_failed`. */
  outcome: string | null;
  /** The HTTP status of the last answer. */
  responseStatus: number | null;
  attempts: number;
  nextAttemptAt: string | null;
  createdAt: string;
  /** When it succeeded, or failed for good. */
  completedAt: string | null;
};

export type DeliveryFilter = {
  status?: Delivery['status'] | undefined;
  type?: WebhookEventType | undefined;
};

const WEBHOOK_CHANGES: OptionNames<WebhookChanges> = {
  name: true,
  url: true,
  eventTypes: true,
  namespaces: true,
  secret: true,
  active: true,
};

/** Webhooks. All methods require admin rights in the namespaces of the webhook. */
export class Webhooks {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /**
   * Creates a webhook, which sends events to an endpoint: an https URL with a public address. The endpoint checks them with
   * `verifyWebhook`. Without a secret they are not signed.
   * @throws LoamError `invalid_request` with the field, `permission_denied`, `quota_exceeded`
   */
  async create(name: string, url: string, options: WebhookOptions): Promise<Webhook> {
    checkOptions(options, { eventTypes: true, namespaces: true, secret: true });
    const { eventTypes, namespaces, secret } = options;
    const input = {
      name,
      url,
      eventTypes: [...eventTypes],
      namespaces: [...namespaces],
      secret,
    };
    const { createWebhook } = await this.#transport.graphql(CREATE, { input });
    return demand(createWebhook, 'Webhook').webhook;
  }

  /**
   * Lists webhooks, newest first: those that receive events of one namespace, or all that the caller administers.
   * @throws LoamError `not_found` for the namespace, `permission_denied`
   */
  list(
    filter: { namespace?: string | undefined } = {},
    options: ListOptions = {},
  ): AsyncGenerator<Webhook> {
    checkOptions(filter, { namespace: true });
    checkOptions(options, LIST_OPTIONS);
    const { namespace } = filter;
    if (namespace === undefined)
      return readPages(
        async (range) => demandViewer(await this.#transport.graphql(LIST_MINE, range)).webhooks,
        { ...options, what: 'Webhooks' },
      );
    return readPages(
      async (range) =>
        (await this.#transport.graphql(LIST_OF_NAMESPACE, { ...range, namespace })).namespace
          ?.webhooks,
      { ...options, what: `Namespace ${namespace}` },
    );
  }

  /** Reads a webhook. @throws LoamError `not_found`, `permission_denied` */
  async get(id: string): Promise<Webhook> {
    return demand((await this.#transport.graphql(READ, { id })).webhook, 'Webhook');
  }

  /**
   * Changes the fields that are given.
   * @throws LoamError `not_found`, `invalid_request` with the field, `permission_denied`, `quota_exceeded`
   */
  async update(id: string, changes: WebhookChanges): Promise<Webhook> {
    checkOptions(changes, WEBHOOK_CHANGES);
    const { eventTypes, namespaces, ...others } = changes;
    const input = {
      ...others,
      id,
      eventTypes: eventTypes && [...eventTypes],
      namespaces: namespaces && [...namespaces],
    };
    const { updateWebhook } = await this.#transport.graphql(UPDATE, { input });
    return demand(updateWebhook, 'Webhook').webhook;
  }

  /** Deletes a webhook. @throws LoamError `not_found`, `permission_denied` */
  async delete(id: string): Promise<void> {
    await this.#transport.graphql(DELETE, { id });
  }

  /** Sends a `ping`, and returns its pending delivery. @throws LoamError `not_found`, `conflict` when the webhook is off */
  async test(id: string): Promise<Delivery> {
    const { testWebhook } = await this.#transport.graphql(TEST, { id });
    return demand(testWebhook, 'Webhook').delivery;
  }

  /** Lists the deliveries of the last 30 days, newest first. @throws LoamError `not_found`, `permission_denied` */
  deliveries(
    id: string,
    filter: DeliveryFilter = {},
    options: ListOptions = {},
  ): AsyncGenerator<Delivery> {
    checkOptions(filter, { status: true, type: true });
    checkOptions(options, LIST_OPTIONS);
    return readPages(
      async (range) =>
        (await this.#transport.graphql(LIST_DELIVERIES, { ...filter, ...range, id })).webhook
          ?.deliveries,
      { ...options, what: 'Webhook' },
    );
  }

  /**
   * Sends the event of a delivery again, and returns the new, pending delivery.
   * @throws LoamError `not_found`, `conflict` when the webhook is off
   */
  async redeliver(id: string, deliveryId: string): Promise<Delivery> {
    const { redeliver } = await this.#transport.graphql(REDELIVER, { webhookId: id, deliveryId });
    return demand(redeliver, 'Delivery').delivery;
  }
}
