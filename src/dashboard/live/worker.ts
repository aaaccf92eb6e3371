/** The SharedWorker that holds the event connection of all tabs and forwards each tab its events. */
import { createHub, type FromPage, HEARTBEAT_TIMEOUT_MS, type ToPage } from './hub.ts';

/** In a burst, the first message is posted at once and the rest as one batch, within a frame. */
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
  let watchdog = setTimeout(closeAll, HEARTBEAT_TIMEOUT_MS);
  port.onmessage = ({ data }: MessageEvent<FromPage>) => {
    clearTimeout(watchdog);
    watchdog = setTimeout(closeAll, HEARTBEAT_TIMEOUT_MS);
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

  /** A worker gets no event for a closed tab: the tab sends `bye` if it can, otherwise its heartbeats stop. */
  function closeAll(): void {
    clearTimeout(watchdog);
    for (const close of open.values()) close();
    open.clear();
  }
}
