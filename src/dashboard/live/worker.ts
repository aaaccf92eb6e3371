/** A SharedWorker: it has the one connection of all tabs, and hands each what it has asked for. */
import { createHub } from './hub.ts';
import { type FromPage, SILENT_MS, type ToPage } from './protocol.ts';

/** Many lines of a log come at once: they go over to the page together, still within a frame. */
const BATCH_MS = 8;

const hub = createHub();
const scope = self as unknown as { onconnect: (event: MessageEvent) => void };

scope.onconnect = ({ ports: [port] }) => {
  if (port) serve(port);
};

function serve(port: MessagePort): void {
  const open = new Map<number, () => void>();
  let batch: ToPage = [];
  let timer: ReturnType<typeof setTimeout> | undefined;
  let silent = setTimeout(closeAll, SILENT_MS);
  port.onmessage = ({ data }: MessageEvent<FromPage>) => {
    clearTimeout(silent);
    silent = setTimeout(closeAll, SILENT_MS);
    switch (data.kind) {
      case 'open': {
        const { id, request } = data;
        const close = hub.open(request, (message) => {
          if (message.kind !== 'live' && message.kind !== 'data') open.delete(id);
          batch.push([id, message]);
          if (timer === undefined) timer = setTimeout(flush, BATCH_MS);
        });
        open.set(id, close);
        break;
      }
      case 'close':
        open.get(data.id)?.();
        open.delete(data.id);
        break;
      case 'bye':
        closeAll();
    }
  };

  function flush(): void {
    port.postMessage(batch);
    batch = [];
    timer = undefined;
  }

  /** Nothing tells a worker that a tab is gone: it says so itself where it can, and else it is silent. */
  function closeAll(): void {
    clearTimeout(silent);
    for (const close of open.values()) close();
    open.clear();
  }
}
