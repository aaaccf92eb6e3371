/**
 * The lower bound for `bench/rest.ts`: the same two responses from `node:http` and `pg` only. No routing, authentication or
 * validation: no REST server on Node can be faster.
 *
 *   node bench/bare-http.ts <socket folder>     prints its port
 */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import pg from 'pg';
import { readList, readOne } from './by-hand.ts';

const [, , host] = process.argv;
const pool = new pg.Pool({ host, user: 'loam', database: 'loam', max: 20 });

const server = createServer(async (req, res) => {
  const [, , , , namespace = '', id] = (req.url ?? '').split('/');
  const answer = id ? await readOne(pool, namespace, id) : await readList(pool, namespace);
  const body = JSON.stringify(answer);
  res.writeHead(200, {
    'Content-Type': 'application/json',
    'Content-Length': Buffer.byteLength(body),
  });
  res.end(body);
});

server.listen(0, '127.0.0.1', () => console.log((server.address() as AddressInfo).port));
