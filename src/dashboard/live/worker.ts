/** A SharedWorker: it has the one connection of all tabs, and hands each what it has asked for. */
import { createHub } from './hub.ts';
import { type FromPage, SILENT_MS, type ToPage } from './protocol.ts';

/** Of many messages that come at once the first goes over to the page as it comes, the others together, within a frame. */
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
          if (timer === undefined) flush();
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
    timer = setTimeout(() => {
      timer = undefined;
      if (batch.length > 0) flush();
    }, BATCH_MS);
  }

  /** Nothing tells a worker that a tab is gone: it says so itself where it can, and else it is silent. */
  function closeAll(): void {
    clearTimeout(silent);
    for (const close of open.values()) close();
    open.clear();
  }
}
