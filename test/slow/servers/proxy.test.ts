/** Runs the configurations of docs/proxy.md unchanged, except for ports and certificates. */
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import type { IncomingMessage } from 'node:http';
import { request } from 'node:https';
import type { AddressInfo, LookupFunction } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { expect, test } from 'vitest';
import { PLAN_LIMITS } from '../../../src/base/config/plans.ts';
import { EXEC_PROTOCOL } from '../../../src/runners/agent/protocol.ts';
import { type Certificate, makeCertificate } from '../../support/certificate.ts';
import { eventually } from '../../support/eventually.ts';
import { Workspace } from '../../support/git.ts';
import { Client, startApp } from '../../support/harness.ts';
import { type Need, needs } from '../../support/needs.ts';
import { freePort } from '../../support/ports.ts';
import { shellSocket } from '../../support/shell-socket.ts';

const PAGE = readFileSync(join(import.meta.dirname, '../../../docs/proxy.md'), 'utf8');

type Place = Certificate & { dir: string; port: number; target: number };
type Started = { command: string; args: string[] };

/** The code blocks of the page in this language, for Loam and for programs of jobs, with the names and ports of this test. */
function block(language: string, { port, target, pem, key, both }: Place): string {
  const found = PAGE.matchAll(new RegExp(`\`\`\`${language}\\n(.*?)\`\`\``, 'gs'));
  const texts = [...found].map(([, text = '']) => text);
  // The second block for HAProxy is for several servers.
  const changed = (language === 'haproxy' ? texts.slice(0, 1) : texts)
    .join('\n')
    .replaceAll('loam-apps.example', 'apps.localhost')
    .replace('/etc/ssl/loam-apps.pem', pem)
    .replace('/etc/ssl/loam-apps.key', key)
    .replaceAll('127.0.0.1:3000', `127.0.0.1:${target}`)
    .replaceAll('listen 443', `listen 127.0.0.1:${port}`)
    .replace('bind :443', `bind 127.0.0.1:${port}`)
    .replaceAll('loam.example.com', 'localhost')
    .replace('/etc/ssl/loam.pem', pem)
    .replace('/etc/ssl/loam.key', key)
    .replace('/etc/haproxy/loam.pem', both);
  expect(changed).toContain(`127.0.0.1:${target}`);
  return changed;
}

const PROXIES: Record<'nginx' | 'caddy' | 'haproxy', (place: Place) => Started> = {
  nginx(place) {
    const { dir } = place;
    const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
      .map((name) => `${name}_temp_path ${dir}/${name};`)
      .join(' ');
    writeFileSync(
      join(dir, 'nginx.conf'),
      `daemon off; master_process off; pid ${dir}/pid; error_log stderr;
       events {} http { access_log off; ${temporary} ${block('nginx', place)} }`,
    );
    return { command: 'nginx', args: ['-p', dir, '-c', join(dir, 'nginx.conf'), '-e', 'stderr'] };
  },
  caddy(place) {
    const { dir, port, pem, key } = place;
    const site = block('caddyfile', place)
      .replace(/^localhost \{/m, `localhost:${port} {\n  bind 127.0.0.1\n  tls ${pem} ${key}`)
      .replace(/^\*\.apps\.localhost \{/m, `*.apps.localhost:${port} {\n  bind 127.0.0.1`);
    writeFileSync(join(dir, 'Caddyfile'), `{\n  admin off\n  auto_https off\n}\n${site}`);
    return {
      command: 'caddy',
      args: ['run', '--adapter', 'caddyfile', '--config', join(dir, 'Caddyfile')],
    };
  },
  haproxy(place) {
    writeFileSync(join(place.dir, 'haproxy.cfg'), block('haproxy', place));
    return { command: 'haproxy', args: ['-db', '-f', join(place.dir, 'haproxy.cfg')] };
  },
};

test.for(Object.keys(PROXIES) as (keyof typeof PROXIES)[])('Loam behind %s', async (name, ctx) => {
  needs(ctx, name satisfies Need, 'openssl');
  await using cleanup = new AsyncDisposableStack();
  const dir = mkdtempSync(join(tmpdir(), 'loam-proxy-'));
  cleanup.defer(() => rmSync(dir, { recursive: true, force: true }));
  const port = await freePort();
  const base = `https://localhost:${port}`;
  const limits = { ...PLAN_LIMITS, free: { ...PLAN_LIMITS.free, perMinute: 3 } };
  const app = cleanup.use(
    await startApp({
      config: {
        baseUrl: base,
        trustedProxies: ['127.0.0.1'],
        rateLimits: limits,
        appsDomain: { name: 'apps.localhost' },
      },
    }),
  );
  const { port: target } = app.app.server.address() as AddressInfo;
  const place = { dir, port, target, ...makeCertificate(dir) };
  const { command, args } = PROXIES[name](place);
  const proxy = spawn(command, args, {
    stdio: ['ignore', 'ignore', 'pipe'],
    env: { PATH: process.env.PATH, HOME: dir },
  });
  cleanup.defer(() => stop(proxy));
  const ca = readFileSync(place.pem);
  const authorization = app.admin.authorization as string;
  const get = async (path: string, headers: Record<string, string> = {}) => {
    const res = await ask(base + path, ca, headers);
    return { status: res.statusCode, headers: res.headers, text: await text(res) };
  };

  await eventually(async () =>
    expect((await get('/auth/v1/whoami', { authorization })).status).toBe(200),
  );
  const direct = new Client(`http://127.0.0.1:${target}`, authorization);
  const { body: made } = await direct.post('/auth/v1/repository/admin', { name: 'work' });
  expect(made.clone_url).toBe(`${base}/admin/work.git`);

  await using workspace = await Workspace.open();
  const trusting = ['-c', `http.sslCAInfo=${place.pem}`];
  const url = made.clone_url.replace('https://', `https://x:${app.admin.token}@`);
  await workspace.git('.', ...trusting, 'clone', '-q', url, 'work');
  await workspace.commit('work', { 'large.bin': randomBytes(8 * 2 ** 20) });
  await workspace.git('work', ...trusting, 'push', '-q');
  await workspace.git('.', ...trusting, 'clone', '-q', url, 'again');
  expect(await workspace.git('again', 'rev-parse', 'HEAD')).toBe(
    await workspace.git('work', 'rev-parse', 'HEAD'),
  );

  // If the proxy buffered the line, it would arrive with the end of the job, a minute later.
  const job = { name: 'slow', command: 'echo first; sleep 60', repo: 'admin/work', gpu: 'none' };
  expect((await direct.post('/auth/v1/seed/admin/jobs', job)).status).toBe(201);
  const stream = await ask(`${base}/admin/job/slow/logs?stream=true`, ca, {
    authorization,
    'Last-Event-ID': '0',
  });
  expect(stream.headers['content-type']).toContain('text/event-stream');
  let seen = '';
  for await (const chunk of stream) {
    seen += chunk;
    if (!seen.includes('"first"') || seen.includes('cancelled')) continue;
    using shell = await shellSocket(new Client(base, authorization), 'admin/slow', {}, ca);
    shell.exec({ command: 'true' });
    await shell.closed;
    // The runner of this test has none.
    expect(shell.stderr).toBe('loam: Jobs of this server have no shell.\n');
    await expectAppHost(direct, ca);
    const cancelled = await direct.post('/auth/v1/seed/admin/jobs/slow/cancel');
    expect(cancelled.status).toBe(200);
  }
  expect(seen).toContain('event: end\ndata: {"status":"cancelled"');

  // 410: the attempt is over. Without the upgrade there is no such path.
  const upgrade = { Connection: 'Upgrade', Upgrade: EXEC_PROTOCOL, authorization: 'Bearer forged' };
  expect((await get('/agents/att_1/exec?session=s', upgrade)).status).toBe(410);

  // Each caller has its own rate limit, and cannot avoid it by a forged header.
  const statuses: (number | undefined)[] = [];
  for (let i = 0; i < 4; i++)
    statuses.push((await get('/auth/v1/whoami', { 'X-Forwarded-For': `192.0.2.${i}` })).status);
  expect(statuses).toEqual([401, 401, 401, 429]);
  const other = new Client(direct.base, null);
  const forwarded = { 'X-Forwarded-For': '192.0.2.77' };
  expect((await other.get('/auth/v1/whoami', forwarded)).status).toBe(401);
});

/** A browser signs in on the host of a port. */
async function expectAppHost(client: Client, ca: Buffer): Promise<void> {
  const { openJobPort } = await client.gql(
    'mutation { openJobPort(input: {namespace: "admin", name: "slow", port: 8888}) { url } }',
  );
  const opened = await ask(openJobPort.url, ca, {});
  opened.resume();
  const [cookie = ''] = opened.headers['set-cookie'] ?? [];
  expect([opened.statusCode, cookie]).toEqual([
    303,
    expect.stringMatching(/^__Host-loam-app=\w{40}; Path=\/; HttpOnly; Secure; SameSite=Lax$/),
  ]);
  const page = await ask(new URL('/', openJobPort.url).href, ca, {
    cookie: cookie.split(';')[0] ?? '',
  });
  expect([page.statusCode, await text(page)]).toEqual([
    503,
    expect.stringContaining('Jobs of this server have no shell.'),
  ]);
}

/** Names below `localhost`, which not every system resolves, are of this machine. */
const lookup: LookupFunction = (_host, { all }, done) => {
  const found = { address: '127.0.0.1', family: 4 };
  if (all) done(null, [found]);
  else done(null, found.address, found.family);
};

function ask(url: string, ca: Buffer, headers: Record<string, string>): Promise<IncomingMessage> {
  // The certificate has no name below `localhost`.
  const isApp = new URL(url).hostname.endsWith('.apps.localhost');
  const tls = { ca, lookup, ...(isApp && { checkServerIdentity: () => undefined }) };
  return new Promise((resolve, reject) => {
    // From an address other than the proxy's.
    request(url, { ...tls, headers, agent: false, localAddress: '127.0.0.9' }, resolve)
      .on('error', reject)
      .end();
  });
}

async function stop(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  child.kill('SIGTERM');
  await once(child, 'close');
}
