/**
 * All subscriptions of a browser over one connection, and the messages between pages and the SharedWorker that holds it.
 * Over HTTP/1.1 a browser opens six connections per host for all its tabs: with one per tab, the seventh could not load.
 */
import { createClient } from 'graphql-sse';

type LiveRequest = { query: string; variables: Record<string, unknown> };
export type LiveError = { message: string; extensions?: { code?: string } };
export type LiveMessage =
  /** The server accepted the subscription: all later events are sent. */
  | { kind: 'live' }
  | { kind: 'data'; data: unknown }
  /** The server refused or ended the subscription with an error that a retry would repeat. */
  | { kind: 'refused'; error: LiveError }
  /** The connection was lost: subscribe again, from the last event received. */
  | { kind: 'lost' }
  | { kind: 'over' };

export type Hub = {
  open(request: LiveRequest, listener: (message: LiveMessage) => void): () => void;
};

/** The connection stays open this long without subscriptions, because the next page usually subscribes at once. */
const IDLE_MS = 3_000;

export function createHub(): Hub {
  const accepted = new Map<string, () => void>();
  let last = 0;
  const client = createClient({
    url: new URL('/graphql/stream', location.href).href,
    singleConnection: true,
    lazy: true,
    lazyCloseTimeout: IDLE_MS,
    // `follow` retries: only the subscriber knows the last event that it received.
    retryAttempts: 0,
    // Cross-site pages cannot send this header, so the server uses it against CSRF.
    headers: { 'loam-page': '1' },
    fetchFn: async (url: string, init: RequestInit) => {
      const response = await fetch(url, init);
      if (init.method === 'POST' && response.status === 202)
        accepted.get(JSON.parse(String(init.body)).extensions.number)?.();
      return response;
    },
  });
  return {
    open(request, listener) {
      const number = String(++last);
      accepted.set(number, () => listener({ kind: 'live' }));
      let isClosed = false;
      const end = (message: LiveMessage) => {
        if (isClosed) return;
        isClosed = true;
        accepted.delete(number);
        listener(message);
      };
      const close = client.subscribe(
        { ...request, extensions: { number } },
        {
          next({ data, errors }) {
            const [error] = errors ?? [];
            if (error) end(isRetryable(error) ? { kind: 'lost' } : { kind: 'refused', error });
            else if (!isClosed) listener({ kind: 'data', data });
          },
          error: (error) => end(toFinalMessage(error)),
          complete: () => end({ kind: 'over' }),
        },
      );
      return () => {
        isClosed = true;
        accepted.delete(number);
        close();
      };
    },
  };
}

/** A server that stops, or that temporarily cannot serve a subscription, ends it with these codes: subscribe again. */
function isRetryable({ extensions }: LiveError): boolean {
  return ['INTERNAL_ERROR', 'RATE_LIMIT_EXCEEDED'].includes(extensions?.code ?? '');
}

function toFinalMessage(error: unknown): LiveMessage {
  const [first] = Array.isArray(error) ? error : [];
  if (first && !isRetryable(first)) return { kind: 'refused', error: first };
  return { kind: 'lost' };
}

export type FromPage =
  | { kind: 'open'; id: number; request: LiveRequest }
  | { kind: 'close'; id: number }
  | { kind: 'here' }
  | { kind: 'bye' };

export type ToPage = [id: number, message: LiveMessage][];

/** Heartbeat of a page. Browsers run timers of hidden pages once a minute, so the timeout allows more than that. */
export const HEARTBEAT_MS = 45_000;
export const HEARTBEAT_TIMEOUT_MS = 150_000;
