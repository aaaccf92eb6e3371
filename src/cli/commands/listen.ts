/** `loam listen` */
import { InvalidArgumentError, Option } from '@commander-js/extra-typings';
import type { Program } from '../command.ts';
import { type Connection, connect } from '../connection.ts';
import { EXIT, UsageError } from '../exit.ts';
import { collect, eventName, parseName } from '../options.ts';
import type { Client } from '../sdk/client.ts';
import type { EventType, LoamEvent } from '../sdk/events.ts';
import { graphql } from '../sdk/graphql.ts';
import { demandViewer } from '../sdk/pages.ts';
import { isTerminal, note, paint, print, printJson, safeText } from '../terminal.ts';
import {
  checkSecret,
  type Delivery,
  deliver,
  generateSecret,
  type WebhookEvent,
} from '../webhook-message.ts';

const READ_NAMESPACES = graphql(`
  query ReadNamespaces {
    viewer {
      namespace { name }
      organizations(first: 100) { nodes { name } pageInfo { hasNextPage } }
    }
  }
`);

/** The types of events, and whether webhooks send them. */
const IS_SENT: Record<EventType, boolean> = {
  JOB_QUEUED: true,
  JOB_RUNNING: true,
  JOB_COMPLETED: true,
  JOB_FAILED: true,
  JOB_CANCELLED: true,
  JOB_DELETED: false,
  REPOSITORY_CREATED: true,
  REPOSITORY_RENAMED: true,
  REPOSITORY_TRANSFERRED: true,
  REPOSITORY_UPDATED: false,
  REPOSITORY_PUSHED: true,
  REPOSITORY_DELETED: true,
  BUDGET_REACHED: true,
  MACHINE_JOINED: true,
  MACHINE_SILENT: true,
  MACHINE_ONLINE: true,
  MACHINE_DRAINING: true,
  MACHINE_RESUMED: true,
  MACHINE_REMOVED: true,
};
const TYPES = Object.keys(IS_SENT) as EventType[];
const MAX_NAMESPACES = 100;

const EXPLANATION = `
Each event is posted once to the address of --forward, with the body, headers and signature of webhooks
(/docs/webhooks on the server), one after the other. Unlike a webhook, a post that fails is shown and not repeated.
${TYPES.filter((type) => !IS_SENT[type])
  .map(eventName)
  .join(' and ')} are shown only: webhooks do not send them.

Without --secret, posts are signed with a new secret, which is shown at the start. Other users of this machine can
read arguments: LOAM_WEBHOOK_SECRET is private.

Examples:
  loam listen
  loam listen --forward localhost:8080/hook --events job.completed,job.failed`;

export function addListenCommand(program: Program): void {
  program
    .command('listen')
    .description('Show events as they happen, and post them to a local address as webhooks do')
    .option('--forward <url>', 'post each event to this address', parseForward)
    .option('--events <types>', `only these: ${TYPES.map(eventName).join(', ')}`, collectTypes)
    .option('--namespace <names>', 'of these namespaces; by default of all of yours', collect)
    .addOption(
      new Option('--secret <secret>', 'sign posts with this secret').env('LOAM_WEBHOOK_SECRET'),
    )
    .option('--after <cursor>', 'begin after this event; 0: with the oldest', parseCursor)
    .option('--json', 'print one line of JSON for each event')
    .addHelpText('after', EXPLANATION)
    .action(async ({ namespace, events, after, forward, secret, json }) => {
      const connection = await connect(program.opts());
      const namespaces = namespace ?? (await readNamespaces(connection.client));
      const target = forward && {
        url: forward,
        secret: secret === undefined ? generateSecret() : checkSecret(secret),
      };
      if (target && secret === undefined) note(`The secret of this session is ${target.secret}`);
      await listen(connection, { namespaces, types: events, after, target, json: json === true });
    });
}

type ListenOptions = {
  namespaces: readonly string[];
  types: readonly EventType[] | undefined;
  after: number | undefined;
  target: { url: URL; secret: string } | undefined;
  json: boolean;
};

/** Returns after an interrupt. */
async function listen(
  { client, server }: Connection,
  { namespaces, types, after, target, json }: ListenOptions,
): Promise<void> {
  const interrupt = new AbortController();
  const { signal } = interrupt;
  process.once('SIGINT', () => interrupt.abort());
  process.once('SIGTERM', () => interrupt.abort());
  let last = after;
  let isLost = false;
  const events = client.events.follow({
    namespaces,
    types,
    after,
    signal,
    onStart: (cursor) => {
      last = cursor;
      const where = target ? `, posted to ${target.url.href}` : '';
      note(`Events of ${namespaces.join(', ')} on ${server}${where}:`);
    },
    onRetry: ({ message }) => {
      if (!isLost) note(`${message}. Events continue when it is back.`);
      isLost = true;
    },
    onRecovered: () => {
      note(`Connected to ${server} again.`);
      isLost = false;
    },
  });
  try {
    for await (const event of events) {
      const message = toMessage(event);
      const delivery =
        target && IS_SENT[event.type] && message.data !== null
          ? await deliver(target.url, message, target.secret, signal)
          : null;
      last = event.cursor;
      if (json) printJson({ cursor: event.cursor, ...message, delivery }, 0);
      else print(lineOf(message, event.subject, delivery));
    }
  } catch (error) {
    if (!signal.aborted) throw error;
    if (last !== undefined) note(`To continue after the last event, add --after ${last}`);
    process.exitCode = EXIT.interrupted;
  }
}

function toMessage({ id, type, timestamp, namespace, payload }: LoamEvent): WebhookEvent {
  return { id, type: eventName(type), timestamp, namespace, data: payload };
}

function lineOf(
  { type, timestamp, namespace, data }: WebhookEvent,
  id: string,
  delivery: Delivery | null,
): string {
  const name = (data as { name?: unknown } | null)?.name;
  const subject = namespace && typeof name === 'string' ? `${namespace}/${name}` : id;
  const result = delivery ? `${delivery.status ?? delivery.error}` : '';
  const took = delivery ? `${delivery.milliseconds} ms` : '';
  if (!isTerminal) return [timestamp, type, subject, result, took].map(safeText).join('\t');
  const isAccepted = delivery?.status != null && delivery.status >= 200 && delivery.status < 300;
  const time = new Date(timestamp).toLocaleTimeString(undefined, { hour12: false });
  return [
    paint('dim', time),
    safeText(type).padEnd(Math.max(...TYPES.map((each) => each.length))),
    safeText(subject),
    paint(isAccepted ? 'green' : 'red', safeText(result)),
    paint('dim', took),
  ].join('  ');
}

/** The own namespace and the organizations of the caller. */
async function readNamespaces(client: Client): Promise<string[]> {
  const viewer = demandViewer(await client.graphql(READ_NAMESPACES));
  const { nodes = [] } = viewer.organizations ?? {};
  const names = [viewer.namespace.name, ...nodes.map(({ name }) => name)];
  if (names.length > MAX_NAMESPACES)
    throw new UsageError(
      `You have more than ${MAX_NAMESPACES} namespaces: choose with --namespace`,
    );
  return names;
}

/** @throws InvalidArgumentError */
function parseForward(text: string): URL {
  const given = /^[a-z][a-z0-9+.-]*:\/\//i.test(text) ? text : `http://${text}`;
  const url = URL.canParse(given) ? new URL(given) : null;
  if (!url || !/^https?:$/.test(url.protocol) || url.username !== '' || url.hash !== '')
    throw new InvalidArgumentError('It must be an address such as http://localhost:8080/hook');
  return url;
}

/** @throws InvalidArgumentError */
function parseCursor(text: string): number {
  if (!/^\d{1,15}$/.test(text))
    throw new InvalidArgumentError('It must be the cursor of an event.');
  return Number(text);
}

/** @throws InvalidArgumentError */
function collectTypes(text: string, before: readonly EventType[] | undefined): EventType[] {
  const names = collect(text);
  return [...(before ?? []), ...names.map((name) => parseName(name, TYPES, eventName))];
}
