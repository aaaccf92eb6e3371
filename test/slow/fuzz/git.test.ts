/**
 * Random requests of Git's HTTP protocol, from almost valid to arbitrary: no 5xx, no process left behind, and afterwards
 * the repository is intact and agrees with the database.
 */
import { execFileSync } from 'node:child_process';
import { connect } from 'node:net';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { expectConsistent, expectNoGit } from '../../support/fuzz/agreement.ts';
import { mostly, nastyString } from '../../support/fuzz/values.ts';
import { count } from '../../support/fuzz/world.ts';
import { Workspace } from '../../support/git.ts';
import { startApp } from '../../support/harness.ts';

const NONE = '0'.repeat(40);
const BATCH = 12;
const DEADLINE_MS = 240_000;
const ANSWER_MS = 30_000;

type Sent = {
  method: string;
  path: string;
  headers: Record<string, string>;
  body: Buffer;
  /** How much of the body is sent before the connection is closed, by half or whole. */
  leave: 'stay' | 'half' | 'close';
};

test('no git request gets a 5xx, and none leaves anything behind', {
  timeout: DEADLINE_MS,
}, async () => {
  await using app = await startApp();
  await using workspace = await Workspace.open();
  const { id } = (
    await app.admin.post('/auth/v1/repository/admin', { name: 'fuzzed', visibility: 'public' })
  ).body;
  await workspace.clone(app.admin, 'admin/fuzzed', 'work');
  const tip = await workspace.git('work', 'rev-parse', 'HEAD');
  const next = await workspace.commit('work', { 'a.txt': 'a\n'.repeat(1_000), 'b/c.bin': 'b' });
  const pack = execFileSync('git', ['pack-objects', '--revs', '--stdout', '-q'], {
    cwd: join(workspace.path, 'work'),
    input: `${next}\n^${tip}\n`,
  });
  const password = Buffer.from(`x:${app.admin.token}`).toString('base64');

  const seen = new Map<number, number>();
  let batches = 0;
  const requests = fc.array(requestOf({ tip, next, pack, password }), {
    minLength: BATCH,
    maxLength: BATCH,
  });
  const property = fc.asyncProperty(requests, async (batch) => {
    batches++;
    await Promise.all(
      batch.map(async (request) => {
        const status = await send(app.base, request);
        const { method, path, headers, body } = request;
        const shown = `${method} ${path} ${JSON.stringify(headers)} ${body.subarray(0, 400).toString('latin1')}`;
        expect(status, shown).toBeLessThan(500);
        // Only clients that have disconnected get no answer.
        if (request.leave === 'stay') expect(status, shown).toBeGreaterThan(0);
        seen.set(status, (seen.get(status) ?? 0) + 1);
      }),
    );
  });
  await fc.assert(property, { numRuns: count(60, 500) });
  console.log(`git: ${batches * BATCH} requests, answers:`, Object.fromEntries([...seen].sort()));
  for (const status of [200, 400, 401, 404]) expect(seen.get(status) ?? 0).toBeGreaterThan(0);

  // The stock client still works.
  await workspace.clone(app.admin, 'admin/fuzzed', 'again');
  await workspace.git('work', 'fetch', '-q', 'origin');
  await workspace.git('work', 'push', '-q', '-f', 'origin', 'HEAD:main');
  await expectConsistent(app, [id]);
  await expectNoGit(app.config.dataDir);
});

type World = { tip: string; next: string; pack: Buffer; password: string };

function requestOf(world: World): fc.Arbitrary<Sent> {
  const service = mostly(
    fc.constantFrom('git-upload-pack', 'git-receive-pack'),
    fc.oneof(fc.constantFrom('git-shell', '', 'upload-pack'), nastyString),
    9,
  ).map(String);
  const path = service.chain((name) =>
    fc.oneof(
      fc.constant(`/info/refs?service=${encodeURIComponent(name.toWellFormed())}`),
      { arbitrary: fc.constant(`/${encodeURIComponent(name.toWellFormed())}`), weight: 3 },
      fc.constant('/info/refs'),
    ),
  );
  const repository = mostly(
    fc.constantFrom('/admin/fuzzed.git', '/admin/fuzzed'),
    fc.constantFrom('/admin/none.git', '/admin/%zz.git', '/admin/%00.git', '/ADMIN/fuzzed.git.git'),
    9,
  ).map(String);
  return fc
    .record({
      odd: mostly(fc.constant(''), fc.constantFrom('PUT', 'HEAD', 'X', 'GET', 'POST'), 15),
      repository,
      path,
      protocol: mostly(
        fc.constantFrom('version=2', 'version=1', '', 'version=2'),
        fc.constantFrom('version=9', 'version=2:version=0', 'x'.repeat(900), ':::', 'version=2\t'),
        6,
      ),
      authorization: mostly(
        fc.constant(`Basic ${world.password}`),
        fc.constantFrom(
          '',
          'Basic',
          'Basic !!',
          'Bearer none',
          `Basic ${Buffer.from('a:b').toString('base64')}`,
        ),
        6,
      ),
      type: mostly(
        fc.constantFrom(
          'application/x-git-upload-pack-request',
          'application/x-git-receive-pack-request',
        ),
        fc.constantFrom('application/json', '', 'application/x-git-upload-pack-result'),
        12,
      ),
      body: bodyOf(world),
      encoding: mostly(fc.constant(''), fc.constantFrom('gzip', 'x-gzip', 'br', 'gzip, gzip'), 6),
      packed: mostly(fc.constant(true), fc.constant(false), 6),
      leave: mostly(fc.constant('stay'), fc.constantFrom('half', 'close'), 8),
    })
    .map(
      ({ odd, repository, path, protocol, authorization, type, body, encoding, packed, leave }) => {
        const usual = path.includes('info/refs') ? 'GET' : 'POST';
        const own = /git-(upload|receive)-pack$/.exec(path)?.[0];
        // Usually the content type of the service; otherwise the server does not read the body.
        const contentType = own && type ? `application/x-${own}-request` : String(type);
        return {
          method: String(odd || usual),
          path: repository + path,
          headers: Object.fromEntries(
            Object.entries({
              authorization: String(authorization),
              'git-protocol': String(protocol),
              'content-type': contentType,
              'content-encoding': String(encoding),
            }).filter(([, value]) => value !== ''),
          ),
          body: encoding && packed ? gzipSync(body) : body,
          leave: leave as Sent['leave'],
          [fc.toStringMethod]: () =>
            `${repository + path} ${body.subarray(0, 200).toString('latin1')}`,
        };
      },
    );
}

function bodyOf({ tip, next, pack }: World): fc.Arbitrary<Buffer> {
  const oid = mostly(
    fc.constantFrom(tip, next, NONE),
    fc.constantFrom('f'.repeat(40), tip.toUpperCase(), tip.slice(0, 7), 'x'.repeat(40), ''),
    6,
  ).map(String);
  const ref = mostly(
    fc.constantFrom('refs/heads/main', 'refs/heads/a', 'refs/tags/t', 'refs/heads/a/b'),
    fc.oneof(
      fc.constantFrom(
        'HEAD',
        'refs/heads/..',
        'refs/heads/x.lock',
        'refs/heads/',
        `refs/heads/${tip}`,
        `refs/heads/${'l'.repeat(3_000)}`,
        'config',
        '../../config',
        'refs/heads/a\nb',
      ),
      nastyString,
    ),
    5,
  ).map(String);
  const fetchLine = fc.oneof(
    fc.constantFrom('command=ls-refs\n', 'command=fetch', 'command=object-info', 'command='),
    fc.constantFrom(
      'peel\n',
      'symrefs\n',
      'ref-prefix refs/',
      'done\n',
      'thin-pack',
      'no-progress',
    ),
    fc.constantFrom('agent=x', 'object-format=sha1', 'object-format=sha256', 'filter blob:none'),
    fc.constantFrom('filter tree:0', 'filter combine:', 'deepen 1', 'deepen -1', 'deepen-since 0'),
    fc.constantFrom('deepen-not refs/heads/main', 'wait-for-done', 'sideband-all'),
    oid.map((sha) => `want ${sha} side-band-64k ofs-delta\n`),
    oid.map((sha) => `want ${sha}\n`),
    oid.map((sha) => `have ${sha}\n`),
    oid.map((sha) => `shallow ${sha}\n`),
  );
  const pushLine = fc
    .tuple(
      oid,
      oid,
      ref,
      fc.constantFrom('\0report-status side-band-64k', '\0', '\0atomic delete-refs', ''),
    )
    .map(([before, after, name, caps]) => `${before} ${after} ${name}${caps}`);
  const line = mostly(fc.oneof(fetchLine, pushLine), nastyString, 8).map((text) =>
    framed(Buffer.from(String(text))),
  );
  const special = fc
    .constantFrom('0000', '0001', '0002', '0003', '0004', 'ffff', 'zzzz', '000', '\0')
    .map((t) => Buffer.from(t));
  const lines = fc
    .array(mostly(line, special, 3), { maxLength: 12 })
    .map((parts) => Buffer.concat(parts as Buffer[]));
  const fetch = fc
    .array(fetchLine, { maxLength: 6 })
    .map((parts) =>
      Buffer.concat([
        framed(Buffer.from('command=fetch')),
        Buffer.from('0001'),
        ...parts.map((text) => framed(Buffer.from(text))),
        Buffer.from('0000'),
      ]),
    );
  const damaged = fc
    .tuple(fc.nat(pack.length), fc.nat(255), fc.boolean())
    .map(([at, byte, cut]) => {
      const copy = Buffer.from(cut ? pack.subarray(0, at) : pack);
      if (!cut && at < copy.length) copy[at] = byte;
      return copy;
    });
  const push = fc
    .tuple(
      fc.array(pushLine, { minLength: 1, maxLength: 3 }),
      mostly(fc.constant(pack), damaged, 1),
    )
    .map(([commands, data]) =>
      Buffer.concat([
        ...commands.map((text) => framed(Buffer.from(text))),
        Buffer.from('0000'),
        data as Buffer,
      ]),
    );
  return fc.oneof(
    { arbitrary: lines, weight: 4 },
    { arbitrary: fetch, weight: 3 },
    { arbitrary: push, weight: 4 },
    fc.uint8Array({ maxLength: 2_000 }).map((bytes) => Buffer.from(bytes)),
    // The unpacked size of a few kilobytes of gzip.
    fc.constant(Buffer.alloc(8 * 2 ** 20, '0000')),
    fc.constant(Buffer.alloc(8 * 2 ** 20)),
  );
}

function framed(data: Buffer): Buffer {
  const length = Math.min(data.length + 4, 0xffff)
    .toString(16)
    .padStart(4, '0');
  return Buffer.concat([Buffer.from(length), data]);
}

/** Sends a request over its own connection. @returns the status, or 0 without an answer */
function send(base: string, { method, path, headers, body, leave }: Sent): Promise<number> {
  const { hostname, port, host } = new URL(base);
  const head = [
    `${method} ${path} HTTP/1.1`,
    `Host: ${host}`,
    'Connection: close',
    `Content-Length: ${body.length}`,
    ...Object.entries(headers).map(([name, value]) => `${name}: ${value}`),
  ].join('\r\n');
  const { promise, resolve, reject } = Promise.withResolvers<number>();
  const socket = connect(Number(port), hostname);
  let text = '';
  const answered = () => resolve(Number(/^HTTP\/1\.1 (\d{3})/.exec(text)?.[1] ?? 0));
  socket.on('data', (chunk) => {
    if (text.length < 100) text += chunk.toString('latin1');
  });
  socket.on('close', answered);
  socket.on('error', answered);
  socket.setTimeout(ANSWER_MS, () => {
    reject(new Error(`no answer within ${ANSWER_MS} ms to ${head}`));
    socket.destroy();
  });
  const part = leave === 'stay' ? body : body.subarray(0, body.length >> 1);
  socket.write(`${head}\r\n\r\n`);
  socket.write(part, () => {
    if (leave === 'half') socket.end();
    else if (leave === 'close') socket.destroy();
  });
  return promise;
}
