/** `loam webhooks …` */
import { Option } from '@commander-js/extra-typings';
import { type Program, toArray } from '../command.ts';
import { connect } from '../connection.ts';
import { UsageError } from '../exit.ts';
import { collect, eventName, parseLimit, parseName } from '../options.ts';
import { enumOf } from '../sdk/job-input.ts';
import type { Delivery, Webhook, WebhookChanges } from '../sdk/webhooks.ts';
import {
  ago,
  note,
  print,
  printFields,
  printJson,
  printTable,
  readStdin,
  safeText,
} from '../terminal.ts';
import { checkSecret, generateSecret } from '../webhook-message.ts';

type Type = Webhook['eventTypes'][number];

/** The types that a webhook can be created for, and whether there are such events in this version. */
const HAS_EVENTS: Record<Exclude<Type, 'PING'>, boolean> = {
  JOB_QUEUED: true,
  JOB_RUNNING: true,
  JOB_COMPLETED: true,
  JOB_FAILED: true,
  JOB_CANCELLED: true,
  REPOSITORY_CREATED: true,
  REPOSITORY_RENAMED: true,
  REPOSITORY_TRANSFERRED: true,
  REPOSITORY_PUSHED: true,
  REPOSITORY_DELETED: true,
  BUDGET_REACHED: true,
  MACHINE_JOINED: true,
  MACHINE_SILENT: true,
  MACHINE_ONLINE: true,
  MACHINE_DRAINING: true,
  MACHINE_RESUMED: true,
  MACHINE_REMOVED: true,
  SERVICE_CREATED: false,
  SERVICE_DELETED: false,
  SERVICE_SCALED: false,
  DEPLOYMENT_SUCCEEDED: false,
  DEPLOYMENT_FAILED: false,
  DEV_STARTED: false,
  DEV_STOPPED: false,
};
const TYPES = Object.keys(HAS_EVENTS) as Exclude<Type, 'PING'>[];
const TYPE_LIST = TYPES.filter((type) => HAS_EVENTS[type])
  .map(eventName)
  .join(', ');

const STATUSES = ['pending', 'succeeded', 'failed'] as const;

const ID = 'the id of the webhook, as "loam webhooks list" shows it';
const SECRET = 'sign deliveries with the secret on stdin ("-")';

export function addWebhookCommands(program: Program): void {
  const webhooks = program
    .command('webhooks')
    .description('Send events to HTTPS endpoints. For a local program, see "loam listen"');

  webhooks
    .command('create')
    .description('Create a webhook, and print its new secret')
    .argument('<url>', 'the endpoint: an https URL with a public address')
    .requiredOption('--events <types>', `the events to send: ${TYPE_LIST}`, collectTypes)
    .option('--namespace <names>', 'events of these namespaces; by default of your own', collect)
    .option('--name <name>', 'by default the host of the endpoint')
    .option('--secret <file>', SECRET)
    .option('--no-secret', 'do not sign deliveries')
    .option('--json', 'print the webhook and its new secret as JSON')
    .action(async (url, options) => {
      const { client } = await connect(program.opts());
      const given = await readSecret(options.secret);
      const secret = given === undefined ? generateSecret() : given;
      const name = options.name ?? (URL.canParse(url) ? new URL(url).host : url);
      const webhook = await client.webhooks.create(name, url, {
        eventTypes: options.events,
        namespaces: options.namespace ?? [await client.username()],
        secret: secret ?? undefined,
      });
      warnAboutTypes(options.events);
      const shown = given === undefined ? secret : null;
      if (options.json) return printJson({ ...webhook, secret: shown });
      note(`Created the webhook ${webhook.id}.`);
      if (shown === null) return;
      note('Its secret, with which the endpoint verifies deliveries, is shown only now:');
      print(shown);
    });

  webhooks
    .command('list')
    .description('List the webhooks that you administer')
    .option('--namespace <name>', 'only those that receive events of this namespace')
    .option('--json', 'print JSON')
    .action(async ({ namespace, json }) => {
      const { client } = await connect(program.opts());
      const found = await toArray(client.webhooks.list({ namespace }));
      if (json) return printJson(found);
      printTable(
        ['ID', 'STATE', 'NAME', 'NAMESPACES', 'URL'],
        found.map((webhook) => [
          webhook.id,
          stateCell(webhook),
          webhook.name,
          webhook.namespaces.join(','),
          webhook.url,
        ]),
      );
    });

  webhooks
    .command('show')
    .description('Show a webhook')
    .argument('<id>', ID)
    .option('--json', 'print JSON')
    .action(async (id, options) => {
      const { client } = await connect(program.opts());
      const webhook = await client.webhooks.get(id);
      if (options.json) return printJson(webhook);
      printFields([
        ['id', webhook.id],
        ['name', webhook.name],
        ['url', webhook.url],
        ['state', stateOf(webhook)],
        ['namespaces', webhook.namespaces.join(' ')],
        ['events', webhook.eventTypes.map(eventName).join(' ')],
        ['signed', webhook.hasSecret ? 'yes' : 'no'],
        ['former secret until', webhook.formerSecretUntil],
        ['failing since', ago(webhook.failingSince)],
        ['created', ago(webhook.createdAt)],
        ['updated', ago(webhook.updatedAt)],
      ]);
    });

  webhooks
    .command('update')
    .description('Change a webhook; what is not given stays')
    .argument('<id>', ID)
    .option('--url <url>', 'the endpoint')
    .option('--name <name>', 'the name')
    .option('--events <types>', 'the events to send, instead of the present ones', collectTypes)
    .option('--namespace <names>', 'the namespaces, instead of the present ones', collect)
    .option('--secret <file>', `${SECRET}; the former one signs for 24 more hours`)
    .option('--no-secret', 'do not sign deliveries any more')
    .addOption(new Option('--on', 'switch it on').conflicts('off'))
    .option('--off', 'switch it off; pending deliveries fail')
    .option('--json', 'print the webhook as JSON')
    .action(async (id, options) => {
      const { client } = await connect(program.opts());
      const secret = await readSecret(options.secret);
      const { url, name, events, namespace, on, off } = options;
      const changes: WebhookChanges = {
        url,
        name,
        secret,
        eventTypes: events,
        namespaces: namespace,
        active: on || off ? on === true : undefined,
      };
      if (Object.values(changes).every((value) => value === undefined))
        throw new UsageError('Name what to change: see "loam webhooks update --help"');
      const webhook = await client.webhooks.update(id, changes);
      if (events) warnAboutTypes(events);
      if (options.json) return printJson(webhook);
      note(`Changed the webhook ${webhook.name}.`);
    });

  webhooks
    .command('delete')
    .description('Delete a webhook')
    .argument('<id>', ID)
    .action(async (id) => {
      const { client } = await connect(program.opts());
      await client.webhooks.delete(id);
      note(`Deleted the webhook ${id}.`);
    });

  webhooks
    .command('test')
    .description('Send a "ping" to a webhook, and print the id of the delivery')
    .argument('<id>', ID)
    .option('--json', 'print the delivery as JSON')
    .action(async (id, options) => {
      const { client } = await connect(program.opts());
      showNewDelivery(id, await client.webhooks.test(id), options);
    });

  webhooks
    .command('deliveries')
    .description('List the deliveries of a webhook, newest first')
    .argument('<id>', ID)
    .addOption(new Option('--status <status>', 'only those with this status').choices(STATUSES))
    .option('--event <type>', 'only those of this type, or "ping"', parseDeliveredType)
    .option('--limit <n>', 'at most so many', parseLimit, 30)
    .option('--json', 'print JSON')
    .action(async (id, { status, event, limit, json }) => {
      const { client } = await connect(program.opts());
      const filter = { status: status && enumOf<Delivery['status']>(status), type: event };
      const deliveries = await toArray(client.webhooks.deliveries(id, filter, { limit }));
      if (json) return printJson(deliveries);
      printTable(
        ['ID', 'EVENT', 'STATUS', 'OUTCOME', 'ATTEMPTS', 'CREATED'],
        deliveries.map((one) => [
          one.id,
          eventName(one.eventType),
          { text: one.status.toLowerCase(), colour: COLOURS[one.status] },
          one.outcome ?? '',
          `${one.attempts}`,
          ago(one.createdAt),
        ]),
      );
    });

  webhooks
    .command('redeliver')
    .description('Send a message again, and print the id of the new delivery')
    .argument('<id>', ID)
    .argument('<delivery>', 'the id of the delivery')
    .option('--json', 'print the new delivery as JSON')
    .action(async (webhookId, deliveryId, options) => {
      const { client } = await connect(program.opts());
      const delivery = await client.webhooks.redeliver(webhookId, deliveryId);
      showNewDelivery(webhookId, delivery, options);
    });
}

const COLOURS = { PENDING: 'yellow', SUCCEEDED: 'green', FAILED: 'red' } as const;

function showNewDelivery(
  webhookId: string,
  delivery: Delivery,
  { json }: { json?: true | undefined },
): void {
  if (json) {
    printJson(delivery);
    return;
  }
  note(`The message is on its way. See: loam webhooks deliveries ${webhookId}`);
  print(safeText(delivery.id));
}

function stateOf({ active, offReason, failingSince }: Webhook): string {
  if (active) return failingSince === null ? 'on' : 'failing';
  return offReason === null ? 'off' : `off (${offReason.toLowerCase()})`;
}

function stateCell(webhook: Webhook) {
  const text = stateOf(webhook);
  const colour = { on: 'green', failing: 'red' }[text] ?? 'yellow';
  return { text, colour: colour as 'green' | 'red' | 'yellow' };
}

/** A webhook can be created for types of later versions. */
function warnAboutTypes(types: readonly Type[]): void {
  const never = types.filter((type) => type !== 'PING' && !HAS_EVENTS[type]).map(eventName);
  if (never.length > 0)
    note(`loam: Warning: This version of Loam sends no events of these types: ${never.join(', ')}`);
}

/** @returns the secret on stdin; null for `--no-secret`; undefined when neither option is given @throws UsageError */
async function readSecret(
  option: string | boolean | undefined,
): Promise<string | null | undefined> {
  if (option === false) return null;
  if (typeof option !== 'string') return undefined;
  // A secret in an argument would be visible to every user of the machine.
  if (option !== '-') throw new UsageError('--secret reads from stdin only: --secret -');
  return checkSecret((await readStdin()).replace(/\r?\n$/, ''));
}

/** @throws InvalidArgumentError */
function collectTypes(text: string, before: readonly Type[] | undefined): Type[] {
  const names = collect(text);
  return [...(before ?? []), ...names.map((name) => parseName(name, TYPES, eventName))];
}

/** @throws InvalidArgumentError */
function parseDeliveredType(text: string): Type {
  return parseName<Type>(text, [...TYPES, 'PING'], eventName);
}
