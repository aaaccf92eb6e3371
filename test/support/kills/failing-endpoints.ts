/** Webhook endpoints that fail at random, for the deliveries of events while servers are killed. */
import { setTimeout as delay } from 'node:timers/promises';
import { expect } from 'vitest';
import { eventually } from '../eventually.ts';
import type { Servers } from '../many-servers.ts';
import { makeDeliveriesDue, type Receiver } from '../webhook-receiver.ts';
import { postUntilAnswered } from './caller.ts';

/** The rate of failed attempts at each endpoint. */
const FAILING: Readonly<Record<string, number>> = { '/steady': 0, '/failing': 0.4 };
/** For each message. Fewer than the ten attempts of a delivery, of which kills use up some. */
const MAX_FAILURES = 5;
const TYPES = `JOB_QUEUED, JOB_RUNNING, JOB_COMPLETED, JOB_FAILED, JOB_CANCELLED,
  REPOSITORY_CREATED, REPOSITORY_RENAMED, REPOSITORY_TRANSFERRED, REPOSITORY_PUSHED, REPOSITORY_DELETED`;
/** Retries failed deliveries early, not after their 5 seconds and more. */
const HURRY_MS = 300;
const SETTLED_MS = 30_000;

/** Creates the webhooks. Must be called before the events that they receive. */
export async function startFailingEndpoints(
  { admin, pool }: Servers,
  receiver: Receiver,
  cleanup: AsyncDisposableStack,
): Promise<{ check(events: readonly string[]): Promise<void> }> {
  /** Ids of accepted messages, by path. */
  const taken = new Map<string, Set<string>>();
  /** Number of failed attempts, by path and id of the message. */
  const failures = new Map<string, number>();
  receiver.answer = (response, { path, headers }, request) => {
    const message = `${path} ${headers['webhook-id']}`;
    const failed = failures.get(message) ?? 0;
    const failing = failed < MAX_FAILURES ? (FAILING[path] ?? 0) : 0;
    const chance = Math.random();
    if (chance < failing) failures.set(message, failed + 1);
    if (chance < failing / 2) return void request.socket.destroy();
    if (chance < failing) return void response.writeHead(500).end();
    taken.set(path, (taken.get(path) ?? new Set()).add(`${headers['webhook-id']}`));
    response.writeHead(204).end();
  };
  for (const path of Object.keys(FAILING))
    await postUntilAnswered(admin, '/graphql', {
      query: `mutation { createWebhook(input: {name: "told", url: "${receiver.url}${path}", namespaces: ["admin"],
         eventTypes: [${TYPES}]}) { webhook { id } } }`,
    });

  const over = new AbortController();
  const hurrying = (async () => {
    while (!over.signal.aborted) {
      await makeDeliveriesDue(pool);
      await delay(HURRY_MS, undefined, { signal: over.signal }).catch(() => {});
    }
  })();
  // The cleanup handles the error.
  hurrying.catch(() => {});
  cleanup.defer(async () => {
    over.abort();
    await hurrying;
  });

  return {
    /** Each endpoint received each of the events, in one delivery, and nothing else. */
    async check(events) {
      const told = events.toSorted();
      await eventually(async () => {
        const { rows } = await pool.query(
          'select status, outcome, count(*)::int as count from deliveries group by status, outcome',
        );
        const count = told.length * Object.keys(FAILING).length;
        expect(rows).toEqual([{ status: 'succeeded', outcome: 'status_204', count }]);
      }, SETTLED_MS);
      for (const path of Object.keys(FAILING))
        expect([path, [...(taken.get(path) ?? [])].sort()]).toEqual([path, told]);
    },
  };
}
