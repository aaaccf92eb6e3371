/** Sending an object to a client that disconnects closes the contents. */
import { once } from 'node:events';
import { connect } from 'node:net';
import express from 'express';
import { expect, test } from 'vitest';
import { sendObject } from '../../src/http/send-object.ts';

test('contents are closed when the connection ends between two of their pieces', async ({
  onTestFinished,
}) => {
  const closed = Promise.withResolvers<string>();
  const server = express()
    .get('/', async (req, res) => {
      async function* contents() {
        try {
          yield Buffer.alloc(10);
          // The response does not know yet that its socket is destroyed, so a write to it never calls back.
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
