/** Proxies and certificate authorities of the user's network. */
import { once } from 'node:events';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { createServer as createHttpServer } from 'node:http';
import { createServer as createHttpsServer } from 'node:https';
import { type AddressInfo, connect, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Certificate, makeCertificate } from '../support/certificate.ts';
import { LoamUser } from '../support/loam-command.ts';

let dir: string;
let certificate: Certificate;
let user: LoamUser;
let secure: Server;
let proxy: Server;
/** Where the server redirects downloads to. */
let storage = '/stored';
/** The addresses that the proxy was asked for. */
const tunnels: string[] = [];

beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'loam-network-'));
  certificate = makeCertificate(dir);
  user = await LoamUser.open();
  const files = { cert: await readFile(certificate.pem), key: await readFile(certificate.key) };
  secure = createHttpsServer(files, (req, res) => {
    if (req.url === '/graphql') {
      const rawUrl = `https://localhost:${port(secure)}/raw`;
      const file = { rawUrl, encoding: 'UTF_8', sizeBytes: 5 };
      return res.end(JSON.stringify({ data: { repository: { file } } }));
    }
    if (req.url === '/raw') return res.writeHead(302, { location: storage }).end();
    res.end(req.url === '/stored' ? 'text\n' : '{"build":"1.2.3"}');
  });
  proxy = createHttpServer().on('connect', (req, near) => {
    tunnels.push(`${req.url}`);
    const far = connect(port(secure), '127.0.0.1', () => {
      near.write('HTTP/1.1 200 OK\r\n\r\n');
      near.pipe(far).pipe(near);
    });
    for (const socket of [near, far]) socket.on('error', () => {});
    near.on('close', () => far.destroy());
    far.on('close', () => near.destroy());
  });
  for (const server of [secure, proxy]) {
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
  }
});
afterAll(async () => {
  await user[Symbol.asyncDispose]();
  for (const server of [secure, proxy]) {
    server.close();
    await once(server, 'close');
  }
  await rm(dir, { recursive: true });
});

const port = (server: Server) => (server.address() as AddressInfo).port;
const version = (url: string, env: Record<string, string>) =>
  user.run(['version', '--server', url], { env });

test('an unknown certificate authority is refused, and LOAM_CA adds one', async () => {
  const url = `https://localhost:${port(secure)}`;
  const refused = await version(url, {});
  expect([refused.code, refused.stderr]).toEqual([69, expect.stringContaining('SELF_SIGNED')]);
  const { code, stdout, stderr } = await version(url, { LOAM_CA: certificate.pem });
  expect([code, stdout], stderr).toEqual([0, expect.stringContaining(`${url} 1.2.3\n`)]);
  const missing = await version(url, { LOAM_CA: join(dir, 'none') });
  expect([missing.code, missing.stderr]).toEqual([2, expect.stringContaining('LOAM_CA')]);
  // There is no way around the check.
  expect((await user.run(['version', '-k', '--server', url])).code).toBe(2);
});

test('a proxy is used, but not for the hosts of NO_PROXY', async () => {
  const url = `https://localhost:${port(secure)}`;
  const env = { LOAM_CA: certificate.pem, HTTPS_PROXY: `http://127.0.0.1:${port(proxy)}` };
  expect((await version(url, env)).stdout).toContain('1.2.3');
  expect(tunnels).toEqual([`localhost:${port(secure)}`]);
  expect((await version(url, { ...env, NO_PROXY: 'localhost' })).stdout).toContain('1.2.3');
  expect(tunnels).toHaveLength(1);
});

test('a download follows redirects, but not to an address without TLS', async () => {
  const env = {
    LOAM_CA: certificate.pem,
    LOAM_URL: `https://localhost:${port(secure)}`,
    LOAM_TOKEN: 'secret',
  };
  const cat = () => user.run(['cat', 'ada/model', 'file'], { env });
  expect(await cat()).toMatchObject({ code: 0, stdout: 'text\n' });
  storage = 'http://localhost/stored';
  const refused = await cat();
  expect([refused.code, refused.stderr]).toEqual([69, expect.stringContaining('without TLS')]);
});
