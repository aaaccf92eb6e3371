import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { brotliCompressSync, gzipSync } from 'node:zlib';
import express from 'express';
import { expect, test } from 'vitest';
import { serveAssets } from '../../src/api/http/built-files.ts';

const LONG = 'console.log("a line of a script");\n'.repeat(100);

test('assets are sent in the encoding of the client, also after another build has replaced them on disk', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'loam-assets-'));
  await writeFile(join(folder, 'small-1.css'), 'a{}');
  await writeFile(join(folder, 'long-1.js'), LONG);
  await writeFile(join(folder, 'long-1.js.br'), brotliCompressSync(LONG));
  await writeFile(join(folder, 'long-1.js.gz'), gzipSync(LONG));
  const app = express().use('/assets', serveAssets(folder));
  await rm(folder, { recursive: true });
  const server = app.listen(0, '127.0.0.1');
  try {
    await new Promise((resolve) => server.once('listening', resolve));
    const base = `http://127.0.0.1:${(server.address() as AddressInfo).port}/assets`;
    for (const [accepted, sent] of [
      ['gzip, deflate, br, zstd', 'br'],
      ['gzip', 'gzip'],
      ['identity', null],
    ]) {
      const answer = await fetch(`${base}/long-1.js`, {
        headers: { 'accept-encoding': accepted as string },
      });
      expect(answer.headers.get('content-encoding')).toBe(sent);
      expect(answer.headers.get('content-type')).toMatch(/^text\/javascript/);
      expect(answer.headers.get('cache-control')).toContain('immutable');
      expect(await answer.text()).toBe(LONG);
      const again = await fetch(`${base}/long-1.js`, {
        headers: {
          'accept-encoding': accepted as string,
          'if-none-match': answer.headers.get('etag') as string,
          'cache-control': 'max-age=0',
        },
      });
      expect(again.status).toBe(304);
    }
    expect(await (await fetch(`${base}/small-1.css`)).text()).toBe('a{}');
    for (const none of ['none.js', 'long-1.js.br', '..%2fpackage.json', '__proto__', ''])
      expect((await fetch(`${base}/${none}`)).status).toBe(404);
  } finally {
    server.close();
  }
});
