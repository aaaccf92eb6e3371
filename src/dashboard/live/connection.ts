/** The page's end of the connection: through the worker that all tabs share, or, where there is none, by itself. */
import { start } from '../start.ts';
import { createHub, type Hub, type LiveMessage } from './hub.ts';
import { type FromPage, HERE_MS, type ToPage } from './protocol.ts';

let hub: Hub | undefined;

export function connection(): Hub {
  hub ??= 'SharedWorker' in window ? throughWorker() : createHub();
  return hub;
}

function throughWorker(): Hub {
  // A name for each user and version: who signs in as somebody else must not get what the former one may see.
  const name = `loam ${start.build} ${start.viewer?.username ?? ''}`;
  const worker = new SharedWorker(new URL('./worker.ts', import.meta.url), {
    type: 'module',
    name,
  });
  const { port } = worker;
  const open = new Map<number, (message: LiveMessage) => void>();
  let last = 0;
  const say = (message: FromPage) => port.postMessage(message);
  port.onmessage = ({ data }: MessageEvent<ToPage>) => {
    for (const [id, message] of data) {
      const tell = open.get(id);
      if (message.kind !== 'live' && message.kind !== 'data') open.delete(id);
      tell?.(message);
    }
  };
  setInterval(() => say({ kind: 'here' }), HERE_MS);
  addEventListener('pagehide', () => {
    say({ kind: 'bye' });
    // Kept by the browser, and shown again by its back button: what was followed is asked for again.
    const lost = [...open.values()];
    open.clear();
    const goOn = () => {
      for (const tell of lost) tell({ kind: 'lost' });
    };
    addEventListener('pageshow', goOn, { once: true });
  });
  return {
    open(request, tell) {
      const id = ++last;
      open.set(id, tell);
      say({ kind: 'open', id, request });
      return () => {
        if (open.delete(id)) say({ kind: 'close', id });
      };
    },
  };
}
