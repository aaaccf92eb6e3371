/** Following a subscription for as long as a page shows it, over lost connections and restarts of the server. */
import { print } from '@0no-co/graphql.web';
import type { TadaDocumentNode } from 'gql.tada';
import { useEffect, useRef, useState } from 'react';
import { SIGNED_OUT, signIn } from '../graphql/client.ts';
import { start } from '../start.ts';
import { connection } from './connection.ts';
import type { LiveError } from './hub.ts';

export type LiveState = 'connecting' | 'live' | 'lost' | 'over' | { refused: LiveError };

export type Follower<T, V> = {
  /** Asked each time that it connects: where to go on. */
  variables: () => V;
  onData(data: T): void;
  /** The server sends what happens from now on: what was missed before can be asked for. */
  onLive?: () => void;
  onState?: (state: LiveState) => void;
};

const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 8_000;

/** @returns what ends it */
export function follow<T, V>(
  document: TadaDocumentNode<T, V>,
  follower: Follower<T, V>,
): () => void {
  const query = textOf(document);
  let wait = FIRST_WAIT_MS;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let close = () => {};
  let ended = false;
  const tell = (state: LiveState) => !ended && follower.onState?.(state);

  function connect(): void {
    clearTimeout(timer);
    timer = undefined;
    const variables = follower.variables() as Record<string, unknown>;
    close = connection().open({ query, variables }, (message) => {
      if (ended) return;
      switch (message.kind) {
        case 'live':
          wait = FIRST_WAIT_MS;
          tell('live');
          follower.onLive?.();
          break;
        case 'data':
          follower.onData(message.data as T);
          break;
        case 'refused':
          if (start.viewer && message.error.extensions?.code === SIGNED_OUT) signIn();
          tell({ refused: message.error });
          break;
        case 'over':
          tell('over');
          break;
        case 'lost':
          tell('lost');
          // Not all at once, where many pages lose the same server.
          timer = setTimeout(connect, wait * (0.5 + Math.random()));
          wait = Math.min(wait * 2, LONGEST_WAIT_MS);
      }
    });
  }

  /** The network is back, or somebody looks: waiting on would help nobody. */
  function hurry(): void {
    if (timer !== undefined && document_.visibilityState === 'visible') connect();
  }
  const document_ = globalThis.document;
  addEventListener('online', hurry);
  document_.addEventListener('visibilitychange', hurry);
  tell('connecting');
  connect();
  return () => {
    ended = true;
    clearTimeout(timer);
    close();
    removeEventListener('online', hurry);
    document_.removeEventListener('visibilitychange', hurry);
  };
}

const texts = new WeakMap<object, string>();
function textOf(document: TadaDocumentNode<unknown, never> | object): string {
  let text = texts.get(document);
  if (text === undefined) {
    text = print(document as Parameters<typeof print>[0]);
    texts.set(document, text);
  }
  return text;
}

/** Follows while the component is shown. `key`: what makes it another subscription; null: none now. */
export function useFollow<T, V>(
  document: TadaDocumentNode<T, V>,
  key: string | null,
  follower: Follower<T, V>,
): LiveState {
  const [state, setState] = useState<LiveState>('connecting');
  const current = useRef(follower);
  current.current = follower;
  useEffect(() => {
    if (key === null) return;
    return follow(document, {
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
