/** Subscriptions that reconnect after lost connections and server restarts while a page shows them. */
import { print } from '@0no-co/graphql.web';
import type { TadaDocumentNode } from 'gql.tada';
import { useEffect, useRef, useState } from 'react';
import { redirectToSignIn, SIGNED_OUT } from '../graphql/client.ts';
import { startData } from '../start.ts';
import { sharedHub } from './connection.ts';
import type { LiveError } from './hub.ts';

export type LiveState = 'connecting' | 'live' | 'lost' | 'over' | { refused: LiveError };

type Follower<T, V> = {
  /** Called for each connection attempt, so that a reconnect continues from the last event. */
  variables: () => V;
  onData(data: T): void;
  /** The subscription is active: events missed before can be read now. */
  onLive?: () => void;
  onState?: (state: LiveState) => void;
};

const MIN_BACKOFF_MS = 250;
const MAX_BACKOFF_MS = 8_000;

/** @returns a function that ends the subscription */
export function subscribe<T, V>(
  document: TadaDocumentNode<T, V>,
  follower: Follower<T, V>,
): () => void {
  const query = printDocument(document);
  let backoff = MIN_BACKOFF_MS;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let close = () => {};
  let ended = false;
  const report = (state: LiveState) => !ended && follower.onState?.(state);

  function connect(): void {
    clearTimeout(timer);
    timer = undefined;
    const variables = follower.variables() as Record<string, unknown>;
    close = sharedHub().open({ query, variables }, (message) => {
      if (ended) return;
      switch (message.kind) {
        case 'live':
          backoff = MIN_BACKOFF_MS;
          report('live');
          follower.onLive?.();
          break;
        case 'data':
          follower.onData(message.data as T);
          break;
        case 'refused':
          if (startData.viewer && message.error.extensions?.code === SIGNED_OUT) redirectToSignIn();
          report({ refused: message.error });
          break;
        case 'over':
          report('over');
          break;
        case 'lost':
          report('lost');
          // With jitter: many pages lose the same server at the same time.
          timer = setTimeout(connect, backoff * (0.5 + Math.random()));
          backoff = Math.min(backoff * 2, MAX_BACKOFF_MS);
      }
    });
  }

  /** Reconnects without waiting when the network is back or the tab becomes visible. */
  function reconnectNow(): void {
    if (timer !== undefined && browserDocument.visibilityState === 'visible') connect();
  }
  const browserDocument = globalThis.document;
  addEventListener('online', reconnectNow);
  browserDocument.addEventListener('visibilitychange', reconnectNow);
  report('connecting');
  connect();
  return () => {
    ended = true;
    clearTimeout(timer);
    close();
    removeEventListener('online', reconnectNow);
    browserDocument.removeEventListener('visibilitychange', reconnectNow);
  };
}

const texts = new WeakMap<object, string>();
function printDocument(document: TadaDocumentNode<unknown, never> | object): string {
  let text = texts.get(document);
  if (text === undefined) {
    text = print(document as Parameters<typeof print>[0]);
    texts.set(document, text);
  }
  return text;
}

/** Subscribes while the component is mounted. Another `key` starts a new subscription; with null there is none. */
export function useLiveSubscription<T, V>(
  document: TadaDocumentNode<T, V>,
  key: string | null,
  follower: Follower<T, V>,
): LiveState {
  const [state, setState] = useState<LiveState>('connecting');
  const current = useRef(follower);
  current.current = follower;
  useEffect(() => {
    if (key === null) return;
    return subscribe(document, {
      variables: () => current.current.variables(),
      onData: (data) => current.current.onData(data),
      onLive: () => current.current.onLive?.(),
      onState: (now) => {
        setState(now);
        current.current.onState?.(now);
      },
    });
  }, [document, key]);
  return state;
}
