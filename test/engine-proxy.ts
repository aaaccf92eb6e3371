/** Stands before a container engine, on a TCP port of the loopback, and notes what is asked of it. */
import { once } from 'node:events';
import { request as ask, createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';

export type EngineProxy = AsyncDisposable & {
  /** `tcp://…`. */
  host: string;
  /** What containers of attempts were to be created with, in order. */
  created: Record<string, never>[];
};

/** @param socket as `unix://…` */
export async function engineProxy(socket: string): Promise<EngineProxy> {
  const created: Record<string, never>[] = [];
  const server = createServer(async (request, response) => {
    const { method, url = '', headers } = request;
    const isCreation = /\/containers\/create\?name=/.test(url);
    const body = isCreation ? await text(request) : undefined;
    if (body) created.push(JSON.parse(body));
    const forwarded = ask(
      { socketPath: new URL(socket).pathname, method, path: url, headers },
      (answer) => {
        response.writeHead(answer.statusCode ?? 502, answer.headers);
        response.flushHeaders();
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
  return {
    host: `tcp://127.0.0.1:${(server.address() as AddressInfo).port}`,
    created,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}
