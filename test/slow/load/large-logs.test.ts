/** Large reads of a log in a server with a small heap: the size of each answer is limited, and so is their sum. */
import { existsSync } from 'node:fs';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { Client } from '../../support/harness.ts';
import { type ServerProcess, startServer } from '../../support/process.ts';
import { submit } from '../../support/submit.ts';

const MB = 2 ** 20;
const TOKEN = 'a-token-of-some-length';
/** 56 MB of lines. Some are control characters, which take six bytes each in JSON: the limit counts the bytes that are sent. */
const PRINT = `head -c 60000 /dev/zero | tr '\\0' x > l; head -c 10000 /dev/zero | tr '\\0' '\\1' > c
i=0; while [ $i -lt 800 ]; do cat c; echo; cat l; echo; i=$((i+1)); done; echo done; sleep 600`;

let folder: string;
let server: ServerProcess;
let admin: Client;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'loam-logs-'));
  server = await startServer({
    LOAM_DATA_DIR: join(folder, 'data'),
    LOAM_ADMIN_TOKEN: TOKEN,
    LOAM_RATE_LIMITS: 'off',
    NODE_OPTIONS: '--max-old-space-size=400',
  });
  admin = new Client(server.base, `Bearer ${TOKEN}`);
  await admin.repository('admin/code');
  await submit(admin, { namespace: 'admin', repo: 'admin/code', name: 'loud', command: PRINT });
  await eventually(async () => {
    const { body } = await admin.get('/admin/job/loud/logs?stream=false&tail=1');
    expect(body.lines).toMatchObject([{ message: 'done' }]);
  });
});

afterAll(async () => {
  await admin.graphql(
    'mutation { cancelJob(input: {namespace: "admin", name: "loud"}) { job { id } } }',
  );
  await server.stop();
  await rm(folder, { recursive: true, force: true, maxRetries: 5 });
});

/** The size of an answer and its end, without keeping the answer. */
async function weigh(path: string, init: RequestInit = {}) {
  const headers = { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' };
  const response = await fetch(server.base + path, { ...init, headers });
  let bytes = 0;
  let end = '';
  for await (const chunk of response.body ?? []) {
    bytes += chunk.length;
    end = (end + Buffer.from(chunk.subarray(-200)).toString()).slice(-200);
  }
  return { status: response.status, bytes, end };
}

test('24 requests for all of a log of 96 MB get bounded answers, and the server survives', async () => {
  const path = '/admin/job/loud/logs?tail=10000';
  const answers = await Promise.all(Array.from({ length: 24 }, () => weigh(path)));
  const made = answers.filter(({ status }) => status === 200);
  // Requests that would wait for more than half a minute, on a busy machine, get 503 with Retry-After.
  for (const { status } of answers) expect([200, 503]).toContain(status);
  expect(made.length).toBeGreaterThanOrEqual(4);
  for (const { bytes, end } of made) {
    expect(end).toContain('"has_more":true');
    expect(bytes).toBeLessThan(17 * MB);
  }
  expect(server.child.exitCode).toBeNull();
  if (!existsSync('/proc/self/status')) return;
  const status = await readFile(`/proc/${server.child.pid}/status`, 'utf8');
  // One unbounded answer of this kind took 1.9 GB.
  expect(Number(/^VmHWM:\s+(\d+) kB/m.exec(status)?.[1]) / 1024).toBeLessThan(900);
});

test('all logs in one GraphQL answer share its size limit', async () => {
  const one =
    'job(namespace: "admin", name: "loud") { logs(tail: 700) { hasMore lines { message } } }';
  const query = `{ ${Array.from({ length: 8 }, (_, i) => `j${i}: ${one}`).join(' ')} }`;
  const { status, bytes } = await weigh('/graphql', {
    method: 'POST',
    body: JSON.stringify({ query }),
  });
  expect(status).toBe(200);
  expect(bytes).toBeGreaterThan(14 * MB);
  expect(bytes).toBeLessThan(17 * MB);
});

test('a hundred followers that do not read use little memory', async () => {
  if (!existsSync('/proc/self/status')) return;
  const resident = async () => {
    const status = await readFile(`/proc/${server.child.pid}/status`, 'utf8');
    return Number(/^VmRSS:\s+(\d+) kB/m.exec(status)?.[1]) * 1024;
  };
  const before = await resident();
  const headers = { authorization: `Bearer ${TOKEN}`, 'last-event-id': '0' };
  const url = `${server.base}/admin/job/loud/logs?stream=true`;
  const going = new AbortController();
  const signal = going.signal;
  await Promise.all(Array.from({ length: 100 }, () => fetch(url, { headers, signal })));
  expect(((await resident()) - before) / MB).toBeLessThan(150);
  going.abort();
});
