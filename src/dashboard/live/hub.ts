/**
 * All subscriptions of a browser over one connection: HTTP/1.1 allows a browser six to a host, for all its tabs, so one
 * for each tab would stop the seventh tab from loading anything.
 */
import { createClient } from 'graphql-sse';

export type LiveRequest = { query: string; variables: Record<string, unknown> };
export type LiveError = { message: string; extensions?: { code?: string } };
export type LiveMessage =
  /** The server has taken the subscription: what happens from now on is sent. */
  | { kind: 'live' }
  | { kind: 'data'; data: unknown }
  /** Refused, or ended for a reason of its own: asking again would not help. */
  | { kind: 'refused'; error: LiveError }
  /** The connection is gone; ask again, from the last that was seen. */
  | { kind: 'lost' }
  | { kind: 'over' };

export type Hub = { open(request: LiveRequest, tell: (message: LiveMessage) => void): () => void };

/** Where the last subscription has ended, another page is often just opening. */
const IDLE_MS = 3_000;

export function createHub(): Hub {
  const accepted = new Map<string, () => void>();
  let last = 0;
  const client = createClient({
    url: new URL('/graphql/stream', location.href).href,
    singleConnection: true,
    lazy: true,
    lazyCloseTimeout: IDLE_MS,
    // Those who ask begin where they were, which the library cannot know.
    retryAttempts: 0,
    // Pages of other sites cannot send it (`isFromHere` in the server).
    headers: { 'loam-page': '1' },
    fetchFn: async (url: string, init: RequestInit) => {
      const response = await fetch(url, init);
      if (init.method === 'POST' && response.status === 202)
        accepted.get(JSON.parse(String(init.body)).extensions.number)?.();
      return response;
    },
  });
  return {
    open(request, tell) {
      const number = String(++last);
      accepted.set(number, () => tell({ kind: 'live' }));
      let over = false;
      const end = (message: LiveMessage) => {
        if (over) return;
        over = true;
        accepted.delete(number);
        tell(message);
      };
      const close = client.subscribe(
        { ...request, extensions: { number } },
        {
          next({ data, errors }) {
            const [error] = errors ?? [];
            if (error) end(isLoss(error) ? { kind: 'lost' } : { kind: 'refused', error });
            else if (!over) tell({ kind: 'data', data });
          },
          error: (error) => end(endOf(error)),
          complete: () => end({ kind: 'over' }),
        },
      );
      return () => {
        over = true;
        accepted.delete(number);
        close();
      };
    },
  };
}

/** A server that stops, or that cannot look now, says so; another, or the same one later, goes on. */
function isLoss({ extensions }: LiveError): boolean {
  return ['INTERNAL_ERROR', 'RATE_LIMIT_EXCEEDED'].includes(extensions?.code ?? '');
}

function endOf(error: unknown): LiveMessage {
  const [first] = Array.isArray(error) ? error : [];
  if (first && !isLoss(first)) return { kind: 'refused', error: first };
  return { kind: 'lost' };
}
