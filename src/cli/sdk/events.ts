/** The events of namespaces, as webhooks send them, followed without a public address. */
import { print } from '@0no-co/graphql.web';
import type { ResultOf, VariablesOf } from 'gql.tada';
import { LoamError } from './errors.ts';
import { readEvents } from './event-stream.ts';
import { graphql } from './graphql.ts';
import { checkOptions, type OptionNames, RETRY_OPTIONS } from './options.ts';
import { Backoff, type RetryOptions, retry } from './retry.ts';
import { graphqlError, MAX_SILENCE_MS, type Transport } from './transport.ts';

const FOLLOW = graphql(`
  subscription FollowEvents($namespaces: [String!]!, $types: [EventType!], $after: SafeInt) {
    events(namespaces: $namespaces, types: $types, after: $after) {
      id cursor type timestamp namespace subject payload
    }
  }
`);
const READ_LATEST = graphql(`
  query ReadLatestEvent($namespace: String!, $after: String) {
    namespace(name: $namespace) {
      events(first: 1, after: $after) { nodes { cursor } pageInfo { hasNextPage endCursor } }
    }
  }
`);

export type EventType =
  | 'JOB_QUEUED'
  | 'JOB_RUNNING'
  | 'JOB_COMPLETED'
  | 'JOB_FAILED'
  | 'JOB_CANCELLED'
  | 'JOB_DELETED'
  | 'REPOSITORY_CREATED'
  | 'REPOSITORY_RENAMED'
  | 'REPOSITORY_TRANSFERRED'
  | 'REPOSITORY_UPDATED'
  | 'REPOSITORY_PUSHED'
  | 'REPOSITORY_DELETED'
  | 'BUDGET_REACHED'
  | 'MACHINE_JOINED'
  | 'MACHINE_SILENT'
  | 'MACHINE_ONLINE'
  | 'MACHINE_DRAINING'
  | 'MACHINE_RESUMED'
  | 'MACHINE_REMOVED';

/** An event in a namespace, as webhooks send it. */
export type LoamEvent = {
  /** Webhooks send it as `webhook-id`. */
  id: string;
  /** Its position, to continue after it. */
  cursor: number;
  type: EventType;
  /** ISO 8601, in UTC. */
  timestamp: string;
  /** The name of the namespace at that time. */
  namespace: string;
  /** The id of the job, repository or machine, or of the namespace of a budget. */
  subject: string;
  /** The `data` of webhooks: the job or repository as REST returned it at that time, or a budget or a machine. */
  payload: unknown;
};

export type FollowOptions = RetryOptions & {
  /** 1 to 100 namespaces of which the caller is a member. */
  namespaces: readonly string[];
  /** By default all types that the caller may see. */
  types?: readonly EventType[] | undefined;
  /** The cursor of the last event that was seen; 0: from the oldest event that is kept; by default from now on. */
  after?: number | undefined;
  /** Called with the cursor after which the first event comes. */
  onStart?: ((cursor: number) => void) | undefined;
};

const FOLLOW_OPTIONS: OptionNames<FollowOptions> = {
  ...RETRY_OPTIONS,
  namespaces: true,
  types: true,
  after: true,
  onStart: true,
};

/** Events of namespaces. */
export class Events {
  readonly #transport: Transport;
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /**
   * Follows events without an end: each comes once and in order, also after restarts of the server and cuts of the network.
   * @throws LoamError `permission_denied`, `not_found`; `invalid_request` when `after` is older than the kept events
   */
  async *follow(options: FollowOptions): AsyncGenerator<LoamEvent> {
    checkOptions(options, FOLLOW_OPTIONS);
    const { namespaces, types, after, onStart } = options;
    // Without a cursor, a connection that is cut before the first event could not be continued without a gap.
    let last = after ?? (await this.#latest(namespaces, options));
    onStart?.(last);
    const backoff = new Backoff(options);
    for (;;) {
      try {
        const variables: VariablesOf<typeof FOLLOW> = {
          namespaces: [...namespaces],
          types: types ? [...types] : null,
          after: last,
        };
        const response = await this.#transport.send('/graphql/stream', {
          method: 'POST',
          headers: { accept: 'text/event-stream', 'content-type': 'application/json' },
          body: JSON.stringify({ query: print(FOLLOW), variables }),
          signal: options.signal,
          timeoutMs: MAX_SILENCE_MS,
        });
        backoff.succeeded();
        for await (const { event: kind, data } of readEvents(response, this.#transport.url)) {
          if (kind !== 'next') break;
          const event = parseEvent(data, this.#transport.url);
          last = event.cursor;
          yield event;
        }
        throw new LoamError('unreachable', `${this.#transport.url} closed the connection`);
      } catch (error) {
        await backoff.afterFailure(error);
      }
    }
  }

  /**
   * The cursor of the newest event of the namespaces. With several, another than the newest may be chosen, as the order of
   * events is not that of their cursors: then some of the newest events come again, and none is lost.
   */
  async #latest(namespaces: readonly string[], options: RetryOptions): Promise<number> {
    let latest = 0;
    for (const namespace of namespaces) {
      let after: string | null = null;
      do {
        const variables: VariablesOf<typeof READ_LATEST> = { namespace, after };
        const read = () => this.#transport.graphql(READ_LATEST, variables, options);
        const page: ResultOf<typeof READ_LATEST> = await retry(read, options);
        const events = page.namespace?.events;
        latest = Math.max(latest, events?.nodes[0]?.cursor ?? 0);
        // A page is empty when the caller may see none of the events that the server has checked.
        const isEmpty = events?.nodes.length === 0 && events.pageInfo.hasNextPage;
        after = isEmpty ? events.pageInfo.endCursor : null;
      } while (after !== null);
    }
    return latest;
  }
}

/** @throws LoamError if the server sent an error in place of an event */
function parseEvent(text: string, server: string): LoamEvent {
  let parsed: { data?: ResultOf<typeof FOLLOW> | null; errors?: unknown } | null = null;
  try {
    parsed = JSON.parse(text);
  } catch {}
  const first = Array.isArray(parsed?.errors) ? parsed.errors[0] : undefined;
  if (first !== undefined) throw graphqlError(first);
  const event = parsed?.data?.events;
  if (typeof event?.id !== 'string' || !Number.isSafeInteger(event.cursor))
    throw new LoamError('bad_answer', `${server} sent something that is not an event.`);
  return event;
}
