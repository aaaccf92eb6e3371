/** A proxy to a container engine, on a TCP port of the loopback. It records and holds requests. */
import { once } from 'node:events';
import { request as ask, createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';

export type EngineProxy = AsyncDisposable & {
  /** `tcp://…`. */
  host: string;
  /** Options of created containers, in order. */
  created: Record<string, never>[];
  /** For matching paths only the headers of the response pass, as if the engine were frozen. */
  held?: RegExp;
  /** Number of held responses whose client still waits. */
  holding: number;
  /** Closes all connections. */
  breakOff(): void;
};

/**
 * @param socket as `unix://…`
 * @param hasGpus removes requests for GPUs, as if the engine had granted them
 */
export async function engineProxy(
  socket: string,
  { hasGpus = false }: { hasGpus?: boolean } = {},
): Promise<EngineProxy> {
  const created: Record<string, never>[] = [];
  const server = createServer(async (request, response) => {
    const { method, url = '', headers } = request;
    const isCreation = /\/containers\/create\?name=/.test(url);
    let body = isCreation ? await text(request) : undefined;
    if (body) created.push(JSON.parse(body));
    if (body && hasGpus) body = withoutGpus(body);
    const length = body && { 'content-length': String(Buffer.byteLength(body)) };
    const forwarded = ask(
      {
        socketPath: new URL(socket).pathname,
        method,
        path: url,
        headers: { ...headers, ...length },
      },
      (answer) => {
        response.writeHead(answer.statusCode ?? 502, answer.headers);
        response.flushHeaders();
        if (proxy.held?.test(url)) {
          proxy.holding++;
          response.on('close', () => proxy.holding--);
          return;
        }
        answer.pipe(response);
        answer.on('error', () => response.destroy());
      },
    );
    response.on('close', () => forwarded.destroy());
    forwarded.on('error', () => response.destroy());
    if (body === undefined) request.pipe(forwarded);
    else forwarded.end(body);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const proxy: EngineProxy = {
    host: `tcp://127.0.0.1:${(server.address() as AddressInfo).port}`,
    created,
    holding: 0,
    breakOff: () => server.closeAllConnections(),
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
  return proxy;
}

function withoutGpus(body: string): string {
  const { HostConfig, ...rest } = JSON.parse(body);
  const { DeviceRequests: _, ...others } = HostConfig;
  return JSON.stringify({ ...rest, HostConfig: others });
}
