/** Sending objects: if a client disconnects at any moment, the resources that are open for it are freed. */
import { once } from 'node:events';
import { connect } from 'node:net';
import express from 'express';
import { expect, test } from 'vitest';
import { sendObject } from '../../src/platform/web/send-object.ts';

test('contents are closed if the connection ends between two of their pieces', async ({
  onTestFinished,
}) => {
  const closed = Promise.withResolvers<string>();
  const server = express()
    .get('/', async (req, res) => {
      async function* contents() {
        try {
          yield Buffer.alloc(10);
          // Before the response is informed, a write would wait for a socket that is never assigned.
          req.socket.destroy();
          yield Buffer.alloc(10);
        } finally {
          closed.resolve('closed');
        }
      }
      const open = async () => contents();
      await sendObject(req, res, { size: 20, etag: 'version', open }).catch(() => {});
    })
    .listen(0, '127.0.0.1');
  onTestFinished(() => void server.close());
  await once(server, 'listening');
  const client = connect((server.address() as { port: number }).port, '127.0.0.1');
  client.on('error', () => {});
  client.resume().write('GET / HTTP/1.1\r\nHost: loam\r\n\r\n');
  expect(await closed.promise).toBe('closed');
  client.destroy();
});
