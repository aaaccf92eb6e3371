/**
 * The lower bound for `bench/events.ts`: event streams with `node:http` only. `POST /` writes its body to all open streams,
 * and `GET` responds at once. No authentication, GraphQL or database: no event stream server on Node can be faster.
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
