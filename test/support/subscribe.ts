/** GraphQL subscriptions with stock clients. */
import { createClient } from 'graphql-sse';
import type { Client } from './harness.ts';
import { parseEvents } from './sse.ts';

/** The modes of GraphQL over SSE: a stream for each subscription, one stream for all of a client, and Yoga's own. */
export const MODES = {
  'graphql-sse, distinct connections': (client: Client, query: string) =>
    viaGraphqlSse(client, query, false),
  'graphql-sse, single connection': (client: Client, query: string) =>
    viaGraphqlSse(client, query, true),
  "Yoga's own": viaYoga,
};
// biome-ignore lint/suspicious/noExplicitAny: events are asserted on, field by field.
export type Answers = AsyncGenerator<{ data?: any; errors?: readonly any[] }>;

async function* viaGraphqlSse(client: Client, query: string, singleConnection: boolean): Answers {
  const sse = createClient({
    url: `${client.base}/graphql/stream`,
    singleConnection: singleConnection as false,
    headers: { authorization: client.authorization ?? '' },
    retryAttempts: 0,
  });
  try {
    yield* sse.iterate({ query }) as Answers;
  } finally {
    sse.dispose();
  }
}

/** Yoga's mode: a POST whose answer is the stream. */
export function postSubscription(
  { base, authorization }: Pick<Client, 'base' | 'authorization'>,
  body: { query: string; variables?: object },
  signal: AbortSignal,
): Promise<Response> {
  return fetch(`${base}/graphql`, {
    method: 'POST',
    signal,
    headers: {
      accept: 'text/event-stream',
      'content-type': 'application/json',
      ...(authorization && { authorization }),
    },
    body: JSON.stringify(body),
  });
}

export async function* viaYoga(client: Client, query: string): Answers {
  const abort = new AbortController();
  const response = await postSubscription(client, { query }, abort.signal);
  try {
    if (!response.body) return;
    for await (const { event, data } of parseEvents(response.body))
      if (event === 'next') yield data;
  } finally {
    abort.abort();
  }
}

export async function take(answers: Answers, field: string, count = Infinity) {
  // biome-ignore lint/suspicious/noExplicitAny: events are asserted on, field by field.
  const seen: any[] = [];
  for await (const { data, errors } of answers) {
    if (errors)
      throw Object.assign(new Error(errors[0].message), { code: errors[0].extensions?.code });
    seen.push(data[field]);
    if (seen.length === count) break;
  }
  return seen;
}
