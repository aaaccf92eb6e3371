/**
 * The floor of `bench/events.ts`: event streams by `node:http` alone. `POST /` writes its body to all that are open,
 * and `GET` answers at once.
 * No authentication, no GraphQL, no database: what a server of event streams on Node cannot be faster than.
 *
 *   node bench/bare-events.ts     prints its port
 */
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { buffer } from 'node:stream/consumers';

const open = new Set<ServerResponse>();

const server = createServer(async (req, res) => {
  const body = await buffer(req);
  if (req.headers.accept === 'text/event-stream') {
    res.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8' });
    res.write(':\n\n');
    open.add(res);
    res.on('close', () => open.delete(res));
    return;
  }
  if (req.method === 'POST') for (const each of open) each.write(body);
  res.end();
});

server.listen(0, '127.0.0.1', () => console.log((server.address() as AddressInfo).port));
