/** Opens a page's subscriptions through the SharedWorker of all tabs, or directly in browsers without SharedWorker. */
import { startData } from '../start.ts';
import {
  createHub,
  type FromPage,
  HEARTBEAT_MS,
  type Hub,
  type LiveMessage,
  type ToPage,
} from './hub.ts';

let hub: Hub | undefined;

export function sharedHub(): Hub {
  hub ??= 'SharedWorker' in window ? openWorkerHub() : createHub();
  return hub;
}

function openWorkerHub(): Hub {
  // One worker per user and version: after another user signs in, the page must not use the former user's connection.
  const name = `loam ${startData.build} ${startData.viewer?.username ?? ''}`;
  const worker = new SharedWorker(new URL('./worker.ts', import.meta.url), {
    type: 'module',
    name,
  });
  const { port } = worker;
  const open = new Map<number, (message: LiveMessage) => void>();
  let last = 0;
  const send = (message: FromPage) => port.postMessage(message);
  port.onmessage = ({ data }: MessageEvent<ToPage>) => {
    for (const [id, message] of data) {
      const listener = open.get(id);
      if (message.kind !== 'live' && message.kind !== 'data') open.delete(id);
      listener?.(message);
    }
  };
  setInterval(() => send({ kind: 'here' }), HEARTBEAT_MS);
  addEventListener('pagehide', () => {
    send({ kind: 'bye' });
    // The browser may keep the page for its back button; when it is shown again, it opens its subscriptions again.
    const lost = [...open.values()];
    open.clear();
    const reportLost = () => {
      for (const listener of lost) listener({ kind: 'lost' });
    };
    addEventListener('pageshow', reportLost, { once: true });
  });
  return {
    open(request, listener) {
      const id = ++last;
      open.set(id, listener);
      send({ kind: 'open', id, request });
      return () => {
        if (open.delete(id)) send({ kind: 'close', id });
      };
    },
  };
}
