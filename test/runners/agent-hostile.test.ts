/**
 * Hostile agents and hostile jobs of clusters. A job that runs with the account of its agent can read the token of its attempt,
 * and send anything in the name of the agent.
 */
import { createHash, randomUUID } from 'node:crypto';
import {
  mkdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { readdir } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { buffer, text } from 'node:stream/consumers';
import { gzipSync } from 'node:zlib';
import fc from 'fast-check';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import { busy } from '../../src/base/errors.ts';
import { encodeFrame, encodeJsonFrame } from '../../src/platform/frames.ts';
import { type ExecSpec, NotExecutable, RunnerUnavailable } from '../../src/runners/runner.ts';
import { tarHeader } from '../../src/runners/supervisor/tar-format.ts';
import { type ForgedAttempt, framesOf, openForger } from '../support/agent-forger.ts';
import { agentRunner } from '../support/agent-runner.ts';
import { eventually } from '../support/eventually.ts';
import { nastyString } from '../support/fuzz/values.ts';
import { LoopbackEngine } from '../support/loopback-engine.ts';
import { listCommandLines } from '../support/processes.ts';
import { allLines, attemptSpec, entriesOf, runToEnd } from '../support/runner.contract.ts';

type Forger = Awaited<ReturnType<typeof openForger>>;

const never = new AbortController().signal;

/** Each request of the protocol, in a valid form. */
const REQUESTS = [
  ['GET', 'checkout', {}],
  ['POST', 'begin', {}],
  ['PUT', 'log?offset=0', { body: framesOf('forged') }],
  ['POST', 'report', { json: { started: { pid: 1, startedAt: 1 } } }],
  ['GET', 'control?seen=', {}],
  ['PUT', 'output?request=x', { body: 'tar' }],
  ['POST', 'output?request=x', { json: { reason: null } }],
] as const;

const statusesOf = async (
  attempt: ForgedAttempt,
  how: { token?: string | null; nonce?: string } = {},
): Promise<number[]> => {
  const statuses: number[] = [];
  for (const [method, path, sent] of REQUESTS)
    statuses.push((await attempt.send(method, path, { ...sent, ...how })).status);
  return statuses;
};
const all = (status: number) => REQUESTS.map(() => status);

describe('the requests of agents', () => {
  test('only the agent with the token and the claim of an attempt is answered', async () => {
    await using made = await openForger();
    const [mine, other] = [await made.begin(), await made.begin()];
    const waiting = await made.submit();
    expect(await statusesOf(other, { token: null })).toEqual(all(401));
    expect(await statusesOf(other, { token: 'wrong' })).toEqual(all(401));
    expect(await statusesOf(other, { token: mine.token, nonce: mine.nonce })).toEqual(all(401));
    expect(await statusesOf(other, { nonce: randomUUID() })).toEqual(all(409));
    expect(await statusesOf(other, { nonce: '' })).toEqual(all(409));
    // Before the claim.
    expect(await statusesOf(waiting)).toEqual(all(409));
    expect((await waiting.claim('n1', { token: mine.token })).status).toBe(401);
    expect((await waiting.claim()).status).toBe(200);
    expect((await waiting.claim('n2', { nonce: randomUUID() })).status).toBe(409);
    expect((await waiting.log(0, framesOf('early'))).status).toBe(410);
    // Nothing of all that was stored.
    for (const { id } of [mine, other, waiting]) {
      const folder = join(made.dir, 'attempts', id);
      expect(statSync(join(folder, 'log')).size).toBe(0);
      expect(await readdir(folder)).not.toContain('started');
    }
    await made.runner.remove(other.handle);
    expect(await statusesOf(other)).toEqual(all(410));
    expect(made.logged).toEqual([]);
  });

  test('an id of an attempt is no path', async () => {
    await using made = await openForger();
    const { id, token } = await made.begin();
    for (const path of [
      `..%2F${id}`,
      '..',
      `.%2F${id}`,
      '.trash',
      '%00',
      'a'.repeat(5_000),
      '__proto__',
      '%ff',
    ])
      expect([400, 404, 410], path).toContain(
        (
          await fetch(`${made.url}/agents/${path}/control`, {
            headers: { authorization: `Bearer ${token}` },
          })
        ).status,
      );
    expect(made.logged).toEqual([]);
  });

  test('an attempt whose worker does not answer is answered with 503, so that its agent goes on', async () => {
    await using made = await openForger({
      findWorker: async () => 'srv_other',
      forwardTo: async () => {
        throw busy('It does not answer');
      },
    });
    const attempt = await made.begin();
    await made.runner.remove(attempt.handle);
    expect(await statusesOf(attempt)).toEqual(all(503));
    expect(made.logged).toEqual([]);
  });

  test('the log takes whole lines once, and nothing else', async () => {
    await using made = await openForger();
    const attempt = await made.begin({ log: { bytes: 900_000, lines: 10 } });
    const first = framesOf('one', 'two');
    const send = async (offset: number | string, frames: string | Buffer<ArrayBuffer>) => {
      const { status, text } = await attempt.log(offset, frames);
      return status === 200 ? (JSON.parse(text).size as number) : status;
    };
    const size = first.length;
    expect(await send(0, first)).toBe(size);
    // Known bytes are not stored again, and the agent is told where to continue.
    expect(await send(0, first)).toBe(size);
    expect(await send(5, first.slice(0, 10))).toBe(size);
    expect(await send(10 * size, framesOf('later'))).toBe(size);
    for (const offset of ['-1', '1e99', 'NaN', '', '0&offset=1', '0.5'].slice(0, 3))
      expect(await send(offset, first), offset).toBe(400);
    const wrong = [
      'no frame\n',
      framesOf('half').slice(0, -1),
      `${framesOf('good')}bad\n`,
      '\n',
      '17000000000000 o fourteen digits\n',
      `${Date.now()} x kind\n`,
      `${Date.now()} o ${'x'.repeat(100_000)}\n`,
      '\0'.repeat(1_000),
    ];
    for (const frames of wrong) expect(await send(size, frames), frames.slice(0, 40)).toBe(422);
    // Overlaps what is known, and would continue in the middle of a line.
    expect(await send(size - 3, framesOf('in the middle'))).toBe(422);
    expect(await send(size, framesOf('x'.repeat(60_000)).repeat(17))).toBe(413);
    const nul = Buffer.from(`${Date.now()} e a\0b\xff\r\n`, 'latin1');
    expect(await send(size, nul as Buffer<ArrayBuffer>)).toBe(size + nul.length);
    await attempt.exit({ logBytes: size + nul.length });
    expect(await send(size + nul.length, framesOf('after the exit'))).toBe(size + nul.length);
    expect(await allLines(made.runner, attempt.handle)).toEqual(['one', 'two', 'a\0b\ufffd']);
    expect(made.logged).toEqual([]);
  });

  test('lines that are sent many times at once are stored once', async () => {
    await using made = await openForger();
    const attempt = await made.begin();
    const parts = Array.from({ length: 8 }, (_, i) => framesOf(`a ${i}`, `b ${i}`));
    let offset = 0;
    for (const part of parts) {
      const at = offset;
      await Promise.all([1, 2, 3].map(() => attempt.log(at, part)));
      offset += part.length;
    }
    await attempt.exit({ logBytes: offset });
    const lines = await allLines(made.runner, attempt.handle);
    expect(lines).toEqual(parts.flatMap((_, i) => [`a ${i}`, `b ${i}`]));
  });

  test('times are never before the start or in the future', async () => {
    await using made = await openForger();
    const before = Date.now();
    const attempt = await made.begin();
    const frames = '0000000000000 o old\n9999999999999 o new\n';
    await attempt.log(0, frames);
    await attempt.exit({ startedAt: 0, endedAt: 9_999_999_999_999, logBytes: frames.length });
    const times: Date[] = [];
    for await (const { lines } of made.runner.logs(attempt.handle, null, never))
      times.push(...lines.map(({ timestamp }) => timestamp));
    const outcome = await made.runner.wait(attempt.handle, never);
    if (outcome.kind !== 'exited') throw new Error(outcome.kind);
    times.push(outcome.startedAt, outcome.endedAt);
    for (const time of times) {
      expect(time.getTime()).toBeGreaterThanOrEqual(before);
      expect(time.getTime()).toBeLessThanOrEqual(Date.now());
    }
  });

  test.for([
    ['that it began when it ended', 'late'],
    ['that it ended when it began', 'early'],
    ['nothing but the lack of memory that ended it', 'none'],
  ] as const)(
    'the time in which the worker saw it run is billed, if an agent reports %s',
    async ([, how]) => {
      await using made = await openForger();
      const attempt = await made.begin();
      const begunAt = Date.now();
      const outcome = made.runner.wait(attempt.handle, never);
      const seenFrom = async (time: number) => {
        const running = (await made.runner.findSession(attempt.id))?.running;
        expect(running?.until).toBeGreaterThan(time);
        return running;
      };
      const first = await eventually(() => seenFrom(begunAt));
      const last = await eventually(() => seenFrom(first?.until ?? 0));
      const [future, past] = [9_999_999_999_999, 0];
      if (how === 'late') await attempt.exit({ startedAt: future, endedAt: future });
      if (how === 'early') await attempt.exit({ startedAt: past, endedAt: past });
      if (how === 'none') {
        await attempt.report({ started: { pid: 1, startedAt: future } });
        const end = { exitCode: 137, outOfMemory: true, isLoss: false, reason: 'out of memory' };
        made.states.set(attempt.id, { kind: 'ended', end });
      }
      const ended = await outcome;
      if (ended.kind !== 'exited') throw new Error(ended.kind);
      expect(ended.startedAt.getTime()).toBeLessThanOrEqual(first?.from ?? 0);
      expect(ended.endedAt.getTime()).toBeGreaterThanOrEqual(last?.until ?? Infinity);
    },
  );

  test('a restarted worker still bills what the one before it saw', async () => {
    await using made = await openForger();
    const attempt = await made.begin();
    const stopping = new AbortController();
    const waiting = made.runner.wait(attempt.handle, stopping.signal).catch(() => {});
    const contact = join(made.dir, 'attempts', attempt.id, 'contact');
    const { until } = await eventually(async () => {
      const { running } = JSON.parse(readFileSync(contact, 'utf8'));
      expect(running.until).toBeGreaterThan(running.from);
      return running;
    });
    stopping.abort();
    await waiting;
    const restarted = await made.again();
    await attempt.exit({ startedAt: 0, endedAt: 0 });
    const ended = await restarted.wait(attempt.handle, never);
    if (ended.kind !== 'exited') throw new Error(ended.kind);
    expect(ended.endedAt.getTime()).toBeGreaterThanOrEqual(until);
  });

  test('the time in which the worker was away is billed as the agent reports it', async () => {
    await using made = await openForger();
    const attempt = await made.begin();
    const startedAt = Date.now();
    await attempt.exit({ startedAt, endedAt: startedAt });
    const ended = await made.runner.wait(attempt.handle, never);
    if (ended.kind !== 'exited') throw new Error(ended.kind);
    expect([ended.startedAt, ended.endedAt]).toEqual([new Date(startedAt), new Date(startedAt)]);
  });

  test('reports have the ranges that the database can store', async () => {
    await using made = await openForger();
    const attempt = await made.begin();
    const usage = { at: 1, cpuSeconds: 1, memoryBytes: 1, gpuPercent: 1, diskBytes: 1 };
    const wrong = [
      null,
      [],
      'text',
      { usage: { ...usage, memoryBytes: 1e300 } },
      { usage: { ...usage, cpuSeconds: -1 } },
      { usage: { ...usage, gpuPercent: 1e9 } },
      { usage: { at: 1 } },
      { started: { pid: '1', startedAt: 1 } },
      { started: { pid: 1, startedAt: 8.64e15 } },
    ];
    for (const json of wrong)
      expect((await attempt.report(json)).status, JSON.stringify(json)).toBe(400);
    for (const exit of [{ exitCode: 256 }, { exitCode: -1 }, { endedAt: 1e300 }, { logBytes: -1 }])
      expect((await attempt.exit(exit)).status, JSON.stringify(exit)).toBe(400);
    expect((await attempt.report({ usage })).status).toBe(200);
    expect(await made.runner.stats(attempt.handle)).toMatchObject({ memoryBytes: 1 });
    // The first exit counts.
    const answer = await attempt.exit({ exitCode: 3, reason: 'a\0b\nc\ud800' });
    expect(answer).toMatchObject({ status: 200, text: '{"size":0}' });
    expect((await attempt.exit({ exitCode: 0 })).status).toBe(200);
    expect(await made.runner.wait(attempt.handle, never)).toMatchObject({
      exitCode: 3,
      note: 'a b c\ufffd',
    });
  });

  test('an exit before the end of the log tells the agent where to continue', async () => {
    await using made = await openForger();
    const attempt = await made.begin();
    const frames = framesOf('one');
    await attempt.log(0, frames);
    const early = await attempt.exit({ logBytes: 1_000 });
    expect(early).toMatchObject({ status: 200, text: JSON.stringify({ size: frames.length }) });
    expect(await readdir(join(made.dir, 'attempts', attempt.id))).not.toContain('exit');
    await attempt.exit({ logBytes: frames.length });
    expect(await made.runner.wait(attempt.handle, never)).toMatchObject({ exitCode: 0 });
  });

  test('an agent that asks twice begins once', async () => {
    await using made = await openForger();
    let asked = 0;
    const answer = Promise.withResolvers<boolean>();
    const attempt = await made.submit((handle) => {
      asked++;
      expect(handle).toMatchObject({ cluster: 'forged', node: 'n_1_', inspect: 'look' });
      // Its place is shown to all who may see the job.
      expect(JSON.stringify(handle)).not.toContain(attempt.token);
      return answer.promise;
    });
    expect((await attempt.claim('n\0 1\u202e'.replace(' ', ''))).status).toBe(200);
    const begins = [1, 2, 3].map(() => attempt.send('POST', 'begin'));
    await eventually(() => expect(asked).toBe(1));
    answer.resolve(true);
    expect((await Promise.all(begins)).map(({ status }) => status)).toEqual([200, 200, 200]);
    expect(await attempt.started).toBe(true);
    expect(asked).toBe(1);
  });

  test('bodies over the limits, broken or compressed, are refused without an error in the log', async () => {
    await using made = await openForger();
    const attempt = await made.begin();
    const large = 'x'.repeat(2 ** 21);
    const type = { 'content-type': 'application/json' };
    const gzip = { 'content-encoding': 'gzip' };
    const bomb = new Uint8Array(gzipSync(Buffer.alloc(100 * 2 ** 20)));
    expect((await attempt.report({ large })).status).toBe(413);
    expect((await attempt.log(0, large)).status).toBe(413);
    expect((await attempt.log(0, bomb, { headers: gzip })).status).toBe(413);
    expect((await attempt.log(0, 'no gzip', { headers: gzip })).status).toBe(400);
    expect((await attempt.log(0, 'x', { headers: { 'content-encoding': 'zip' } })).status).toBe(
      415,
    );
    for (const body of ['{', '{"a":1}}', '\0'])
      expect((await attempt.send('POST', 'report', { body, headers: type })).status).toBe(400);
    const charset = { 'content-type': 'application/json; charset=latin1' };
    expect((await attempt.send('POST', 'report', { body: '{}', headers: charset })).status).toBe(
      415,
    );
    expect(made.logged).toEqual([]);
  });

  test('no body of others is read, and an attempt has few requests open', async () => {
    await using made = await openForger();
    const [busy, other] = [await made.begin(), await made.begin()];
    const endless = (token: string) => {
      const { port } = new URL(made.url);
      const socket = connect(Number(port), '127.0.0.1');
      socket.write(
        `PUT /agents/${busy.id}/log?offset=0 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${token}\r\nloam-agent: ${busy.nonce}\r\ncontent-length: 1000\r\n\r\nx`,
      );
      return socket;
    };
    // Answered although the body never comes.
    const refused = endless('wrong');
    const answer = await new Promise((resolve) => refused.once('data', (d) => resolve(String(d))));
    expect(answer).toMatch(/^HTTP\/1.1 401 /);
    refused.destroy();
    const open = Array.from({ length: 40 }, () => endless(busy.token));
    await eventually(async () => expect((await busy.send('GET', 'control')).status).toBe(429));
    expect((await other.send('GET', 'control')).status).toBe(200);
    for (const socket of open) socket.destroy();
    await eventually(async () => expect((await busy.send('GET', 'control')).status).toBe(200));
    expect(made.logged).toEqual([]);
  });

  test('the bodies that agents have not sent to their end take a limited amount of memory', async () => {
    await using made = await openForger();
    const sockets: Socket[] = [];
    onTestFinished(() => {
      for (const socket of sockets) socket.destroy();
    });
    /** Sends all of a part of the log but its last byte. */
    const hold = async ({ id, token, nonce }: ForgedAttempt): Promise<void> => {
      const socket = connect(Number(new URL(made.url).port), '127.0.0.1');
      sockets.push(socket);
      // The server resets a connection whose part it cuts.
      socket.on('error', () => {});
      const length = 2 ** 20;
      const headers = `host: x\r\nauthorization: Bearer ${token}\r\nloam-agent: ${nonce}`;
      socket.write(
        `PUT /agents/${id}/log?offset=0 HTTP/1.1\r\n${headers}\r\ncontent-length: ${length}\r\n\r\n`,
      );
      await new Promise<void>((sent) => socket.write(Buffer.alloc(length - 1), () => sent()));
    };
    const greedy = await made.begin();
    await Promise.all([hold(greedy), hold(greedy)]);
    const frames = framesOf('x');
    await eventually(async () => expect((await greedy.log(0, frames)).status).toBe(429));
    const honest = await made.begin();
    expect((await honest.log(0, frames)).status).toBe(200);
    for (let others = 0; others < 15; others++) {
      const other = await made.begin();
      await Promise.all([hold(other), hold(other)]);
    }
    await eventually(async () =>
      expect(await honest.log(frames.length, frames)).toMatchObject({
        status: 503,
        text: expect.stringContaining('Agents send too much at once'),
      }),
    );
    // Requests without a body go on, and those with a short one.
    expect((await honest.send('GET', 'control')).status).toBe(200);
    expect(
      (await honest.send('POST', 'report', { json: { started: { pid: 1, startedAt: 1 } } })).status,
    ).toBe(200);
    expect((await (await made.submit()).claim()).status).toBe(200);
    // Slow parts are cut, and no more of them than the new part needs.
    const past = performance.now() + 10_000;
    const clock = vi.spyOn(performance, 'now').mockReturnValue(past);
    onTestFinished(() => clock.mockRestore());
    expect((await honest.log(frames.length, frames)).status).toBe(200);
    await eventually(() => expect(sockets.filter((socket) => socket.closed)).toHaveLength(1));
    clock.mockRestore();
    for (const socket of sockets) socket.destroy();
    await eventually(async () =>
      expect((await honest.log(2 * frames.length, frames)).status).toBe(200),
    );
    expect(made.logged).toEqual([]);
  });

  test('waiting leaves nothing behind, however often it is interrupted', async () => {
    await using made = await openForger();
    const attempt = await made.begin();
    const session = await made.runner.findSession(attempt.id);
    if (!session) throw new Error('no session');
    const { version } = JSON.parse((await attempt.send('GET', 'control')).text);
    for (let round = 0; round < 200; round++) {
      const abort = new AbortController();
      const waiting = session.control(version, { canExec: false }, abort.signal);
      abort.abort();
      await waiting;
    }
    const late = session.control(version, { canExec: false }, never);
    await made.runner.signal(attempt.handle, 'TERM');
    expect(await late).toMatchObject({ signal: 'TERM' });
  });

  test('an agent that disconnects is no error of the server', async () => {
    await using made = await openForger();
    const attempt = await made.begin({
      checkout: async (dir) => {
        mkdirSync(dir);
        writeFileSync(join(dir, 'large'), Buffer.alloc(2 ** 25));
      },
    });
    const authorization = `Bearer ${attempt.token}`;
    for (const path of ['agent.mjs', `${attempt.id}/checkout`, `${attempt.id}/control`]) {
      const abort = new AbortController();
      const response = fetch(`${made.url}/agents/${path}`, {
        headers: { authorization, 'loam-agent': attempt.nonce },
        signal: abort.signal,
      });
      await response;
      abort.abort();
    }
    await attempt.cut('log?offset=0', framesOf('x'));
    const wanted = made.runner.artifacts(attempt.handle, 'out');
    const { output } = await eventually(async () => {
      const control = JSON.parse((await attempt.send('GET', 'control')).text);
      expect(control.output).toBeDefined();
      return control;
    });
    const path = `output?request=${output.request}`;
    // In the middle of an entry.
    const header = tarHeader({ name: Buffer.from('large'), size: 10_000, mode: 0o644 });
    const reading = wanted.then((tar) => tar && buffer(tar));
    await attempt.cut(path, header, wanted);
    await expect(reading).rejects.toThrow(RunnerUnavailable);
    expect((await attempt.send('PUT', path, { body: 'again' })).status).toBe(404);
    expect((await attempt.send('GET', 'control')).status).toBe(200);
    expect(made.logged).toEqual([]);
  });

  test('arbitrary requests are refused without an error of the server', async () => {
    await using made = await openForger();
    const [attempt, other] = [await made.begin(), await made.begin()];
    const untouched = join(made.dir, 'attempts', other.id, 'log');
    const bodies = fc.oneof(nastyString, fc.json(), fc.constant(framesOf('fine')));
    const request = fc.record({
      method: fc.constantFrom('GET', 'POST', 'PUT', 'DELETE', 'PATCH', 'OPTIONS'),
      name: fc.constantFrom('claim', 'checkout', 'begin', 'log', 'report', 'output', 'x'),
      query: fc.oneof(nastyString, fc.constantFrom('offset=0', 'request=1', 'seen=', 'offset=')),
      type: fc.constantFrom('application/json', 'application/x-tar', 'text/plain'),
      body: bodies,
    });
    await fc.assert(
      fc.asyncProperty(request, async ({ method, name, query, type, body }) => {
        const { status } = await attempt.send(
          method,
          `${name}?${encodeURI(query.toWellFormed())}`,
          {
            ...(method !== 'GET' && { body }),
            headers: { 'content-type': type },
          },
        );
        expect(status).toBeLessThan(500);
      }),
      { numRuns: 300 },
    );
    expect(statSync(untouched).size).toBe(0);
    expect(made.logged).toEqual([]);
  });

  test('while the disk of the server is nearly full, lines stay on the node and nothing ends', async () => {
    let isDiskLow = true;
    await using made = await openForger({ isDiskLow: () => isDiskLow });
    const attempt = await made.begin();
    expect((await attempt.log(0, framesOf('later'))).status).toBe(503);
    expect((await attempt.send('GET', 'control')).status).toBe(200);
    isDiskLow = false;
    expect((await attempt.log(0, framesOf('later'))).status).toBe(200);
    expect(made.logged).toEqual([]);
  });

  test('a jump of the clock ends no lease, and no file of a killed server stops the next one', async () => {
    await using made = await openForger();
    const attempt = await made.begin();
    const folder = join(made.dir, 'attempts', attempt.id);
    expect(statSync(join(folder, 'contact')).size).toBeGreaterThan(0);
    const silentMs = async () => {
      const session = await (await made.again()).findSession(attempt.id);
      return session?.silentMs ?? Number.NaN;
    };
    const hours = 5 * 3_600_000;
    try {
      vi.setSystemTime(Date.now() + hours);
      expect(await silentMs()).toBeLessThan(60_000);
    } finally {
      vi.useRealTimers();
    }
    const old = new Date(Date.now() - hours);
    utimesSync(join(folder, 'contact'), old, old);
    expect(await silentMs()).toBeLessThan(60_000);
    for (const contents of ['', '{', JSON.stringify({ bootId: 'another', uptime: -1e9 })]) {
      writeFileSync(join(folder, 'contact'), contents);
      expect(await silentMs()).toBeLessThan(60_000);
    }
    // After a loss of power.
    writeFileSync(join(folder, 'agent.json'), '');
    const runner = await made.again();
    expect(await runner.attach(attempt.handle)).toBe('gone');
    await runner.remove(attempt.handle);
    expect(await readdir(join(made.dir, 'attempts'))).not.toContain(attempt.id);
  });

  test('an attempt that begun in a folder of which only an older copy exists is given up', async () => {
    await using made = await openForger();
    const attempt = await made.submit();
    await attempt.claim();
    // The copy is from the time between the claim and the begin.
    expect((await attempt.log(0, framesOf('one'))).status).toBe(410);
    expect((await attempt.exit()).status).toBe(410);
    expect(await readdir(join(made.dir, 'attempts', attempt.id))).not.toContain('exit');
  });
});

/** Jobs with the account of their agent, on this machine. */
function loopbackRunner(options: { graceMs?: number } = {}) {
  let engine: LoopbackEngine | undefined;
  return agentRunner(async (dir) => {
    engine ??= new LoopbackEngine(dir);
    return engine;
  }, options);
}

/** Shell code that finds the pid and the folder of the agent. */
const AGENT = 'agent=$PPID; folder=$(dirname "$PWD")/agent';

describe('commands beside that of a job', () => {
  const spec: ExecSpec = { command: 'cat', env: {}, terminal: null };
  const exec = (made: Forger, { handle }: ForgedAttempt) =>
    made.runner.exec?.(handle, spec) ?? Promise.reject(new Error('no exec'));
  /** The session, and the connection of the forged agent. */
  async function openSession(made: Forger, attempt: ForgedAttempt) {
    const opening = exec(made, attempt);
    const [id = ''] = await attempt.wantedExecs();
    const connection = await attempt.connectExec(id);
    connection.on('error', () => {});
    return { id, connection, session: await opening };
  }

  test('only the agent of the attempt opens the session, once', async () => {
    await using made = await openForger();
    const [mine, other] = [await made.begin(), await made.begin()];
    const opening = exec(made, mine);
    const [id = ''] = await mine.wantedExecs();
    await expect(other.connectExec(id)).rejects.toThrow('404');
    await expect(mine.connectExec(id, { token: 'wrong' })).rejects.toThrow('401');
    await expect(mine.connectExec(id, { nonce: randomUUID() })).rejects.toThrow('409');
    await expect(mine.connectExec(randomUUID())).rejects.toThrow('404');
    const refusal = { json: { reason: 'forged' } };
    expect((await other.send('POST', `exec?session=${id}`, refusal)).status).toBe(404);
    const connection = await mine.connectExec(id);
    await expect(mine.connectExec(id)).rejects.toThrow('404');
    expect((await mine.send('POST', `exec?session=${id}`, refusal)).status).toBe(404);
    expect(await mine.wantedExecs(0)).toEqual([]);
    const session = await opening;
    connection.write(Buffer.concat(encodeFrame('data', Buffer.from('hello'))));
    connection.write(encodeJsonFrame('exit', { code: 3 }));
    expect(await text(session.stdout)).toBe('hello');
    expect(await session.exited).toBe(3);
    await made.runner.remove(mine.handle);
    await expect(mine.connectExec(id)).rejects.toThrow('410');
    expect(made.logged).toEqual([]);
  });

  test('an agent that refuses says why, and one that does not open the session is not waited for', async () => {
    await using made = await openForger();
    const attempt = await made.begin();
    const refused = expect(exec(made, attempt)).rejects.toThrow(
      new NotExecutable('It has no shell.'),
    );
    const [id] = await attempt.wantedExecs();
    const json = { reason: 'It has\0no shell.' };
    expect((await attempt.send('POST', `exec?session=${id}`, { json })).status).toBe(204);
    await refused;
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    onTestFinished(() => void vi.useRealTimers());
    const agent = await made.runner.findSession(attempt.id);
    const late = agent?.execs.open(spec, 'n1');
    vi.advanceTimersByTime(15_000);
    await expect(late).rejects.toThrow('n1 did not open the session within 15 seconds.');
    vi.useRealTimers();
    expect(await attempt.wantedExecs(0)).toEqual([]);
    // An agent of an earlier version.
    const outcome = expect(exec(made, attempt)).rejects.toThrow('earlier version of Loam');
    await attempt.wantedExecs();
    await attempt.send('GET', 'control');
    await outcome;
    await expect(exec(made, attempt)).rejects.toThrow('earlier version of Loam');
  });

  test.for<[string, Uint8Array | Buffer]>([
    ['bytes that are no frames', Buffer.from('HTTP/1.1 200 OK\r\n\r\n')],
    ['a frame of the other direction', encodeJsonFrame('exec', {})],
    ['a frame of 4 GB of JSON', Buffer.from([7, 255, 255, 255, 255, 0])],
    ['an exit that is no JSON', Buffer.concat(encodeFrame('exit', Buffer.from('{')))],
    ['an exit code of any form', encodeJsonFrame('exit', { code: '0; rm' })],
    ['an exit code out of range', encodeJsonFrame('exit', { code: 256 })],
    ['no exit code', encodeJsonFrame('exit', null)],
  ])('%s end the session, whose exit code is unknown', async ([, bytes]) => {
    await using made = await openForger();
    const { connection, session } = await openSession(made, await made.begin());
    connection.write(bytes);
    expect(await session.exited).toBeNull();
    expect(await text(session.stdout)).toBe('');
    // Writing and resizing have no effect any more.
    session.stdin.write('late');
    await session.resize({ columns: 1, rows: 1 });
    session.close();
    expect(made.logged).toEqual([]);
  });

  test('an agent that sends for ever, or reads nothing, takes little memory', async () => {
    await using made = await openForger();
    const attempt = await made.begin();
    const { connection, session } = await openSession(made, attempt);
    const frame = Buffer.concat(encodeFrame('data', Buffer.alloc(2 ** 16)));
    // Nobody reads the output.
    let sent = 0;
    const isFull = () => connection.writableNeedDrain;
    for (; !isFull(); sent += frame.length) connection.write(frame);
    for (let full = 0; full < 20; full = isFull() ? full + 1 : 0) {
      for (; !isFull(); sent += frame.length) connection.write(frame);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    // The buffers of the kernel.
    expect(sent).toBeLessThan(32 * 2 ** 20);
    // Nobody reads the input.
    connection.pause();
    const input = Buffer.alloc(2 ** 16);
    let written = 0;
    for (let full = 0; full < 20; full = session.stdin.writableNeedDrain ? full + 1 : 0) {
      for (; !session.stdin.writableNeedDrain; written += input.length) session.stdin.write(input);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    expect(written).toBeLessThan(32 * 2 ** 20);
    // The session ends with the attempt.
    await made.runner.remove(attempt.handle);
    session.stdout.resume();
    expect(await session.exited).toBeNull();
    await eventually(() => expect(connection.destroyed).toBe(true));
  });

  test('a session ends when its caller closes it, and when the connection is lost', async () => {
    await using made = await openForger();
    const attempt = await made.begin();
    const closed = await openSession(made, attempt);
    closed.session.close();
    expect(await closed.session.exited).toBeNull();
    closed.connection.resume();
    await eventually(() => expect(closed.connection.destroyed).toBe(true));
    const lost = await openSession(made, attempt);
    lost.connection.destroy();
    expect(await lost.session.exited).toBeNull();
    const ended = await openSession(made, attempt);
    ended.connection.end();
    expect(await ended.session.exited).toBeNull();
    for (const { session } of [closed, lost, ended]) {
      expect(session.stdin.destroyed).toBe(true);
      expect(await text(session.stdout)).toBe('');
    }
  });
});

describe('jobs on a node', () => {
  test('a job that kills its supervisor is lost, and nothing of it is left after its removal', async () => {
    await using made = await loopbackRunner();
    const { handle, outcome } = await runToEnd(
      made.runner,
      attemptSpec(`${AGENT}; kill -9 $agent; exit 0`),
    );
    expect(outcome).toEqual({ kind: 'lost' });
    await made.runner.remove(handle);
    expect(await made.runner.attach(handle)).toBe('gone');
  });

  test('a session ends with its command, whatever that leaves behind or does to its reports', async () => {
    await using made = await loopbackRunner();
    const handle = await made.runner.prepare(attemptSpec('sleep 600 & wait'), never);
    await made.runner.start(handle);
    const endOf = async (command: string) => {
      const session = await eventually(async () => {
        const spec = { command, env: {}, terminal: null };
        const opened = await made.runner.exec?.(handle, spec);
        if (!opened) throw new Error('no exec');
        return opened;
      });
      session.stdout.resume();
      session.stderr?.resume();
      return session.exited;
    };
    expect(await endOf('yes & exit 3')).toBe(3);
    expect(await endOf('sleep 600 & exit 4')).toBe(4);
    const report = '$HOME/../agent/exec.*/report';
    // 255: as of a command that was lost.
    const flood = `for file in ${report}; do head -c 10000 /dev/zero >$file; done; sleep 77601`;
    expect(await endOf(flood)).toBe(255);
    expect(await endOf('rm -rf $HOME/../agent/exec.*; exit 5')).toBe(5);
    const reporter = 'kill -9 $PPID; sleep 77602';
    expect(await endOf(reporter)).toBe(255);
    await eventually(() => expect(listCommandLines('sleep 7760')).toEqual([]));
  });

  test('a job cannot forge or delete what its agent reports', async () => {
    await using made = await loopbackRunner();
    const forge = [
      AGENT,
      'echo real',
      'now=$(date +%s)000',
      'echo "{\\"exitCode\\":0,\\"timedOut\\":false,\\"startedAt\\":$now,\\"endedAt\\":$now,\\"unstartable\\":false}" > $folder/exit',
      'echo forged > $folder/begun; echo x > $folder/started; echo x > $folder/disk; rm $folder/out $folder/err $folder/reserve',
      'for name in HUP INT PIPE; do kill -$name $agent; done',
      'sleep 0.3; echo still real; exit 7',
    ];
    const forged = await runToEnd(made.runner, attemptSpec(forge.join('; ')));
    expect(forged.outcome).toMatchObject({ kind: 'exited', exitCode: 7 });
    expect(forged.lines).toEqual(['real', 'still real']);
    const removing = `${AGENT}; echo one; sleep 0.5; rm -rf "$folder" 2>/dev/null; echo two; sleep 0.1; echo three; exit 5`;
    const removed = await runToEnd(made.runner, attemptSpec(removing));
    expect(removed.outcome).toMatchObject({ kind: 'exited', exitCode: 5 });
    expect(removed.lines).toEqual(['one', 'two', 'three']);
  });

  test('processes that leave the tree, ignore signals or stop the agent end with the job', async () => {
    await using made = await loopbackRunner();
    const name = `/tmp/left-${process.pid}`;
    const daemon = `(trap "" TERM HUP; setsid sh -c "exec -a ${name} sleep 600" >/dev/null 2>&1 & )`;
    const { outcome } = await runToEnd(
      made.runner,
      attemptSpec(`bash -c '${daemon}'; exec bash -c 'trap "" TERM; exit 3'`),
    );
    expect(outcome).toMatchObject({ exitCode: 3 });
    expect(listCommandLines(name)).toEqual([]);
    await using strict = await loopbackRunner({ graceMs: 1_000 });
    const stubborn = attemptSpec('trap "" TERM; echo up; while :; do sleep 1; done');
    const handle = await strict.runner.prepare(stubborn, never);
    await strict.runner.start(handle);
    // Its trap is set.
    for await (const _ of strict.runner.logs(handle, null, never)) break;
    await strict.runner.signal(handle, 'TERM');
    expect(await strict.runner.wait(handle, never)).toMatchObject({ exitCode: 137 });
  });

  test('outputs without a line end, closed or with any bytes are stored within the limits', async () => {
    await using made = await loopbackRunner();
    const flood =
      'head -c 30000000 /dev/zero | tr "\\0" x; echo; head -c 70000 /dev/urandom | tr -d "\\n"';
    const end = 'printf "\\n\\000\\377\\n"; echo err >&2; exec >&- 2>&-; sleep 0.1; exit 4';
    const spec = attemptSpec(`${flood}; ${end}`, { log: { bytes: 200_000, lines: 1_000 } });
    const { outcome, lines } = await runToEnd(made.runner, spec);
    expect(outcome).toMatchObject({ exitCode: 4 });
    expect(lines[0]).toMatch(/^x{65536} \[cut: the line is over 64 KiB\]$/);
    expect(lines).toContain('\0\ufffd');
    expect(lines).toContain('err');
    const full = attemptSpec('yes | head -c 3000000', { log: { bytes: 1_000, lines: 100 } });
    const { lines: kept } = await runToEnd(made.runner, full);
    expect(kept).toHaveLength(101);
    expect(kept.at(-1)).toMatch(/^The log ends here/);
  });

  test('values of any form reach the command, and it has no input', async () => {
    await using made = await loopbackRunner();
    const value = `'"$(id)\`\\\n\t${'x'.repeat(100_000)}`;
    const env = { LONG: value, QUOTE: "it's", EMPTY: '', PATH: process.env.PATH ?? '' };
    const comment = `: ${'y'.repeat(100_000)}`;
    const print = 'printf %s "$LONG" | sha256sum; echo "$QUOTE|$EMPTY"; cat; echo "input: $?"';
    const { outcome, lines } = await runToEnd(
      made.runner,
      attemptSpec(`${print}; ${comment}`, { env }),
    );
    expect(outcome).toMatchObject({ exitCode: 0 });
    const hash = createHash('sha256').update(value).digest('hex');
    expect(lines).toEqual([`${hash}  -`, "it's|", 'input: 0']);
  });

  test('lines that the worker has lost after a loss of power are sent again', async () => {
    await using made = await loopbackRunner();
    const spec = attemptSpec('seq 1000; sleep 0.5; echo end; exit 6');
    const handle = await made.runner.prepare(spec, never);
    await made.runner.start(handle);
    const nodeDir = made.engine.agents.get(spec.id)?.dir ?? '';
    const log = join(nodeDir, '../../attempts', spec.id, 'log');
    await eventually(() => expect(readFileSync(log, 'utf8').split('\n')).toHaveLength(1_001));
    truncateSync(log, readFileSync(log).indexOf('\n') + 1);
    expect(await made.runner.wait(handle, never)).toMatchObject({ exitCode: 6 });
    const numbers = Array.from({ length: 1_000 }, (_, i) => `${i + 1}`);
    expect(await allLines(made.runner, handle)).toEqual([...numbers, 'end']);
  });

  test('artifacts do not leave the folders of the job', async () => {
    await using made = await loopbackRunner();
    const command =
      'ln -s /etc out; mkdir own; echo mine > own/a; ln -s /etc/passwd own/link; mkfifo own/fifo; mkdir own/shut; echo x > own/shut/b; chmod 0 own/shut; ln -s ../agent agent; ln -s own good';
    const { handle } = await runToEnd(made.runner, attemptSpec(command));
    const at = (path: string) => entriesOf(made.runner.artifacts(handle, path));
    for (const path of ['out', 'out/passwd', '../agent', 'agent', '/etc', '../../../../etc/passwd'])
      expect(await at(path), path).toBeNull();
    const own = await at('own');
    expect(own).toMatchObject({ a: 'mine\n', link: 'symlink' });
    expect(await at('good')).toMatchObject({ a: 'mine\n' });
    expect(JSON.stringify(own)).not.toContain('root:');
  });

  test('a checkout keeps its names, links and executable files', async () => {
    await using made = await loopbackRunner();
    const names = [
      '-rf',
      'a b',
      'new\nline',
      "it's",
      '*',
      'ü',
      '.hidden',
      '\u202eabc',
      'x'.repeat(255),
    ];
    const checkout = async (dir: string) => {
      mkdirSync(join(dir, 'deep/er'), { recursive: true });
      for (const name of names) writeFileSync(join(dir, name), name);
      writeFileSync(join(dir, 'run.sh'), '#!/bin/sh\necho ran\n', { mode: 0o755 });
      symlinkSync('run.sh', join(dir, 'link'));
      symlinkSync('/nowhere', join(dir, 'broken'));
      mkdirSync(join(dir, 'many'));
      for (let i = 0; i < 2_000; i++) writeFileSync(join(dir, 'many', `${i}`), '');
    };
    const command =
      './run.sh; ./link; readlink broken; [ -d deep/er ] && echo deep; ls many | wc -l; for f in * .hidden; do [ ! -f "./$f" ] || [ "$f" = run.sh ] || [ "$f" = link ] || [ "$(cat "./$f")" = "$f" ] && echo same; done | wc -l; touch writable && echo yes';
    const { lines } = await runToEnd(made.runner, attemptSpec(command, { checkout }));
    expect(lines).toEqual(['ran', 'ran', '/nowhere', 'deep', '2000', expect.any(String), 'yes']);
    // The names, and the others that are no files to compare.
    expect(Number(lines[5])).toBe(names.length + 5);
  });
});
