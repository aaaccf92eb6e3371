/** Transfers share hashing buffers: bytes of one transfer must not appear in another. */
import { hash, randomBytes } from 'node:crypto';
import { Readable } from 'node:stream';
import { setImmediate as turn } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { startApp } from '../support/harness.ts';

test('concurrent downloads, aborted downloads and uploads do not mix their bytes', async () => {
  await using app = await startApp();
  const ada = await app.user('ada');
  await ada.post('/auth/v1/repository/ada', { name: 'many' });
  const url = (oid: string) => `${app.base}/ada/many.git/info/lfs/objects/${oid}`;
  const headers = { authorization: `Bearer ${ada.token}` };
  const put = async (bytes: Buffer<ArrayBuffer>) => {
    const oid = hash('sha256', bytes);
    const { status } = await fetch(url(oid), { method: 'PUT', headers, body: bytes });
    expect(status).toBe(200);
    return oid;
  };
  const get = async (oid: string, leaveAfter = Number.POSITIVE_INFINITY) => {
    const response = await fetch(url(oid), { headers });
    const pieces: Uint8Array[] = [];
    let bytes = 0;
    for await (const piece of Readable.fromWeb(response.body as never)) {
      pieces.push(piece);
      bytes += piece.length;
      if (bytes > leaveAfter) return;
      // A slow client, so that many transfers hold buffers at once.
      await turn();
    }
    expect(hash('sha256', Buffer.concat(pieces))).toBe(oid);
  };
  const oids: string[] = [];
  for (let i = 0; i < 8; i++) oids.push(await put(randomBytes(4_000_000 + i)));
  for (let round = 0; round < 3; round++)
    await Promise.all([
      ...oids.map((oid) => get(oid)),
      ...oids.map((oid, i) => get(oid, 400_000 * i)),
      ...oids.map((oid) => get(oid)),
      put(randomBytes(9_000_000)).then((oid) => get(oid)),
      put(randomBytes(5_000_000)).then((oid) => get(oid)),
    ]);
});
