/** Sending a checkout to an engine that stops reading, because it hangs or its connection is cut. */
import { mkdir, mkdtemp, rm, truncate, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { connect, type Engine } from '../../../src/runners/docker/engine.ts';
import { sendCheckout } from '../../../src/runners/docker/remote-folders.ts';
import { eventually } from '../../support/eventually.ts';
import { listCommandLines } from '../../support/processes.ts';

let dir: string;
let engine: Engine;
let asked = 0;
const deaf = createServer((req) => {
  req.pause();
  asked++;
});

beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'loam-remote-'));
  await mkdir(join(dir, 'work'));
  // More than fits into the buffers between `tar` and the engine.
  await writeFile(join(dir, 'work/large'), '');
  await truncate(join(dir, 'work/large'), 2 ** 30);
  const socket = join(dir, 'engine.sock');
  await new Promise<void>((listening) => deaf.listen(socket, listening));
  engine = connect({ host: `unix://${socket}`, tlsVerify: false, configFolder: dir, named: true });
});
afterAll(async () => {
  deaf.closeAllConnections();
  await new Promise((closed) => deaf.close(closed));
  await rm(dir, { recursive: true });
});

test('cancelling the job stops sending, and leaves no process', async () => {
  const abort = new AbortController();
  const sent = sendCheckout({ engine, container: 'far' }, dir, abort.signal);
  await eventually(() => expect(asked).toBe(1));
  abort.abort(new Error('cancelled'));
  await expect(sent).rejects.toThrow('cancelled');
  await eventually(() => expect(listCommandLines(dir)).toEqual([]));
});

test('a cut connection stops sending', async () => {
  const sent = sendCheckout({ engine, container: 'far' }, dir, new AbortController().signal);
  await eventually(() => expect(asked).toBe(2));
  deaf.closeAllConnections();
  await expect(sent).rejects.toThrow();
  await eventually(() => expect(listCommandLines(dir)).toEqual([]));
});

test('an unreadable checkout fails with the reason', async () => {
  const nowhere = join(dir, 'nowhere');
  const sent = sendCheckout({ engine, container: 'far' }, nowhere, new AbortController().signal);
  await expect(sent).rejects.toThrow(/tar ended with 2: .*nowhere/);
});
