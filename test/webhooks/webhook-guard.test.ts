/** Webhooks are sent only to public addresses, in every notation of an address. */
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { attemptDelivery } from '../../src/webhooks/delivery/attempt.ts';
import { type ConnectorOptions, createConnector } from '../../src/webhooks/delivery/connector.ts';
import {
  addressesIn,
  createGuard,
  findUrlProblem,
  type Lookup,
  resolveHost,
} from '../../src/webhooks/delivery/guard.ts';
import { type Authority, makeAuthority, startReceiver } from '../support/webhook-receiver.ts';

const guard = createGuard([]);

test.each([
  ...['0.0.0.0', '0.1.2.3', '10.0.0.0', '10.255.255.255', '100.64.0.0', '100.100.100.200'],
  ...['100.127.255.255', '127.0.0.1', '127.255.255.255', '168.63.129.16', '169.254.0.1'],
  ...['169.254.169.254', '172.16.0.1', '172.31.255.255', '192.0.0.1', '192.0.0.192', '192.0.2.7'],
  ...['192.88.99.1', '192.168.0.1', '192.168.255.255', '198.18.0.1', '198.19.255.255'],
  ...['198.51.100.9', '203.0.113.200', '224.0.0.1', '239.255.255.255', '240.0.0.1', '250.1.2.3'],
  ...['255.255.255.255', '::', '::1', '0:0:0:0:0:0:0:1', '::7f00:1', '::127.0.0.1', '::8.8.8.8'],
  ...['::ffff:127.0.0.1', '::ffff:8.8.8.8', '::FFFF:0808:0808', '::ffff:0:8.8.8.8'],
  ...['64:ff9b::8.8.8.8', '64:ff9b::7f00:1', '64:ff9b:1::1', '64:ff9b:1:ffff::8.8.8.8', '100::1'],
  ...['100:0:0:1::1', '2001::1', '2001:0:4136:e378:8000:63bf:3fff:fdd2', '2001:2::1', '2001:10::1'],
  ...['2001:20::1', '2001:30::1', '2001:1::1', '2001:db8::1', '2002:7f00:1::', '2002:808:808::1'],
  ...['3fff::1', '3fff:fff:ffff::1', '4000::1', '5f00::1', '8000::1', 'fc00::1', 'fd12:3456::1'],
  ...['fe80::1', 'fe80::1%eth0', 'FEBF::1%25lo', 'fec0::1', 'ff02::1', 'ff0e::1', '1::1', '400::1'],
  ...['2606:4700::1111%eth0', '', 'localhost', '127.1', '0x7f000001', '2130706433', '8.8.8.8/32'],
])('%s is refused', (address) => {
  expect(guard.findRefusal(address)).toMatch(/^(is|has) [a-z]/);
});

test.each([
  ...['1.1.1.1', '8.8.8.8', '9.255.255.255', '11.0.0.0', '100.63.255.255', '100.128.0.0'],
  ...['126.255.255.255', '128.0.0.1', '169.253.255.255', '169.255.0.0', '172.15.255.255'],
  ...['172.32.0.0', '192.0.1.0', '192.0.3.0', '192.167.255.255', '192.169.0.0', '198.17.255.255'],
  ...['198.20.0.0', '223.255.255.255', '2606:4700:4700::1111', '2a00:1450:4001:80e::200e'],
  ...['2001:4860:4860::8888', '2001:200::1', '2003::1', '2001:db7::1', '3ffe::1', '3fff:1000::1'],
])('%s is public', (address) => {
  expect(guard.findRefusal(address)).toBeNull();
});

test('the allow-list permits refused addresses, separately for each family', () => {
  const allowing = createGuard(['127.0.0.0/8', '10.1.2.3', 'fd00:1::/32', 'fe80::/64']);
  for (const address of ['127.0.0.1', '10.1.2.3', 'fd00:1::9', 'fe80::1%eth0'])
    expect(allowing.findRefusal(address)).toBeNull();
  for (const address of ['10.1.2.4', 'fd00:2::9', '::ffff:127.0.0.1', '::1', '64:ff9b::7f00:1'])
    expect(allowing.findRefusal(address)).not.toBeNull();
  expect(createGuard(['::ffff:0:0/96']).findRefusal('::ffff:127.0.0.1')).toBeNull();
  expect(createGuard(['::ffff:0:0/96']).findRefusal('127.0.0.1')).not.toBeNull();
});

const names: Record<string, string[]> = {
  'public.example': ['93.184.216.34', '2606:2800:220:1::1'],
  'inside.example': ['10.0.0.5'],
  'mixed.example': ['93.184.216.34', '127.0.0.1'],
  'mapped.example': ['::ffff:93.184.216.34'],
};
const lookup: Lookup = async (host) => {
  const addresses = names[host];
  if (!addresses) throw new Error('no such name');
  return addresses;
};

test.each([
  ['http://public.example/', 'must use https'],
  ['ftp://public.example/', 'must use https'],
  ['file:///etc/passwd', 'must use https'],
  ['public.example', 'must be a URL'],
  ['', 'must be a URL'],
  ['https://', 'must be a URL'],
  ['https://[fe80::1%25eth0]/', 'must be a URL'],
  ['https://256.0.0.1/', 'must be a URL'],
  ['https://ada:secret@public.example/', 'must not contain a user name'],
  ['https://ada@public.example/', 'must not contain a user name'],
  ['https://@public.example/', 'must not contain a user name'],
  ['https://:@public.example', 'must not contain a user name'],
  // The URL standard accepts these as public.example.
  ['https:public.example', 'must begin with https:// and a host'],
  ['https:/public.example/', 'must begin with https:// and a host'],
  ['https:///public.example/', 'must begin with https:// and a host'],
  ['https:\\\\public.example\\path', 'must begin with https:// and a host'],
  ['https://public.example\\@elsewhere.example/', 'must begin with https:// and a host'],
  ['https://public.example:0/', 'must name a port'],
  ['https://public.example/#part', 'must not have a fragment'],
  ['https://public.example/#', 'must not have a fragment'],
  [`https://public.example/${'a'.repeat(2_048)}`, 'must be at most 2048 characters'],
  ['https://localhost/', 'not sent to'],
  ['https://LOCALHOST./', 'not sent to'],
  ['https://foo.localhost/', 'not sent to'],
  ['https://a.b.LOCALHOST.:8443/', 'not sent to'],
  [
    'https://2130706433/',
    'is a loopback address (RFC 1122); the operator of this server can allow it with LOAM_WEBHOOK_ALLOW',
  ],
  // For a host name, the kind of its address is not revealed.
  ...['inside', 'mixed', 'mapped'].map((name) => [
    `https://${name}.example/`,
    'has an address that webhooks are not sent to; the operator of this server can allow it with LOAM_WEBHOOK_ALLOW',
  ]),
  ['https://[::ffff:93.184.216.34]/', 'is an IPv4-mapped address'],
])('a webhook to %s is not created', async (url, why) => {
  const real = url.toLowerCase().includes('localhost');
  expect(await findUrlProblem(url ?? '', guard, real ? resolveHost : lookup)).toContain(why);
});

test.each([
  'https://public.example/path?query=1',
  'HTTPS://Public.Example?query=a@b',
  'https://93.184.216.34:8443/',
  'https://[2606:2800:220:1::1]/',
  // The name is resolved again at each attempt.
  'https://unknown.example/',
])('a webhook to %s is created', async (url) => {
  expect(await findUrlProblem(url, guard, lookup)).toBeNull();
});

test('a hanging lookup is cancelled, and the URL is accepted', async () => {
  const hanging: Lookup = (_, signal) =>
    new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
  expect(await findUrlProblem('https://silent.example/', guard, hanging)).toBeNull();
});

test('the hosts file is parsed as lines with an address and its names', () => {
  const hosts =
    '127.0.0.1 localhost\n10.0.0.5\tdb db.internal # 10.0.0.6 db\n#10.0.0.7 db\n::1 localhost\n';
  expect(addressesIn(hosts, 'db')).toEqual(['10.0.0.5']);
  expect(addressesIn(hosts, 'localhost')).toEqual(['127.0.0.1', '::1']);
  expect(addressesIn(hosts, '10.0.0.5')).toEqual([]);
});

describe('no connection is opened', () => {
  let authority: Authority;
  /** Listeners on loopback addresses, which every hostile URL below would reach. */
  let listeners: Listener[];
  /** Addresses to which sockets of this process connected or tried to connect. */
  const dialled: string[] = [];
  const onSocket = (message: unknown) => {
    const { socket } = message as { socket: Socket };
    socket.on('connectionAttempt', (ip) => dialled.push(ip));
  };

  beforeAll(async () => {
    authority = await makeAuthority();
    const first = await listen('127.0.0.1', 0);
    const others = ['127.0.0.2', '::1'].map((host) => listen(host, first.port).catch(() => null));
    listeners = [first, ...(await Promise.all(others)).filter((one) => one !== null)];
    subscribe('net.client.socket', onSocket);
  });
  afterAll(async () => {
    unsubscribe('net.client.socket', onSocket);
    for (const one of listeners) await one.close();
    await authority[Symbol.asyncDispose]();
  });

  const send = async (url: string, means: Partial<ConnectorOptions> = {}) => {
    await using connector = createConnector({
      guard,
      lookup,
      authorities: [authority.pem],
      ...means,
    });
    const message = { webhookId: 'wh_1', url, secrets: [], id: 'evt_1', body: '{}' };
    const { signal } = new AbortController();
    return await attemptDelivery(
      { connector, userAgent: 'test', timeoutMs: 3_000 },
      message,
      signal,
    );
  };
  const connections = () => listeners.reduce((sum, { count }) => sum + count(), 0);

  const HOSTS = [
    // IP literals, in every form that URLs accept.
    ...['127.0.0.1', '127.1', '127.0.1', '2130706433', '0x7f000001', '0x7f.1', '0177.0.0.1'],
    ...['017700000001', '0x7f.0x0.0x0.0x1', '127.000.000.001', '127.0.0.1.', '127.0.0.2'],
    ...['0', '0.0.0.0', '0x0', '10.0.0.1', '012.0.0.1', '100.64.0.1', '169.254.169.254'],
    ...['0xa9fea9fe', '2852039166', '172.16.0.1', '172.31.255.254', '192.168.1.1', '3232235777'],
    ...['192.0.0.192', '192.0.2.1', '198.18.0.1', '198.51.100.1', '203.0.113.1', '168.63.129.16'],
    ...[
      '224.0.0.1',
      '240.0.0.1',
      '255.255.255.255',
      '１２７.０.０.１',
      '①②⑦.0.0.1',
      '%31%32%37.0.0.1',
    ],
    ...['[::1]', '[::]', '[0:0:0:0:0:0:0:1]', '[::127.0.0.1]', '[::7f00:1]', '[::ffff:127.0.0.1]'],
    ...['[::ffff:7f00:1]', '[::ffff:0:127.0.0.1]', '[64:ff9b::127.0.0.1]', '[64:ff9b::a9fe:a9fe]'],
    ...['[64:ff9b:1::7f00:1]', '[2002:7f00:1::]', '[2001:0:7f00:1::]', '[fe80::1]', '[fc00::1]'],
    ...['[fd00:ec2::254]', '[fec0::1]', '[ff02::1]', '[100::1]', '[2001:db8::1]', '[3fff::1]'],
    ...['[2001:10::1]', '[5f00::1]', '[4000::1]', '[::ffff:8.8.8.8]', '[64:ff9b::8.8.8.8]'],
    // Names that resolve to these addresses.
    ...['localhost', 'LOCALHOST.', 'inside.example', 'mixed.example', 'mapped.example'],
    ...['loopback.example', 'metadata.example', 'zone.example', 'nonsense.example'],
  ];
  const HOSTILE: Record<string, string[]> = {
    localhost: ['127.0.0.1', '::1'],
    'localhost.': ['127.0.0.1'],
    'loopback.example': ['127.0.0.1'],
    'metadata.example': ['169.254.169.254'],
    'zone.example': ['fe80::1%lo'],
    'nonsense.example': ['0x7f.1'],
  };

  test(`to any of ${HOSTS.length} hosts`, async () => {
    expect(HOSTS.length).toBeGreaterThan(60);
    const lookup: Lookup = async (host) => HOSTILE[host] ?? names[host] ?? [];
    const before = dialled.length;
    for (const host of HOSTS) {
      const url = `https://${host}:${listeners[0]?.port}/`;
      const { outcome } = await send(url, { lookup });
      expect([host, outcome]).toEqual([host, 'refused_address']);
      expect(await findUrlProblem(url, guard, lookup), host).toContain('not sent to');
    }
    expect(dialled.slice(before)).toEqual([]);
    expect(connections()).toBe(0);
  });

  test.each([
    '[fe80::1%25lo]',
    '[::1%lo]',
    '127.0.0.1%00.example',
    '256.1.1.1',
    '[::g]',
    '1.2.3.4.5',
  ])('by %s, which is no host', async (host) => {
    const url = `https://${host}:${listeners[0]?.port}/`;
    expect(await findUrlProblem(url, guard, lookup)).toBe('must be a URL');
    await expect(send(url)).rejects.toThrow('Invalid URL');
  });

  test('if a name resolves differently after the check', async () => {
    await using receiver = await startReceiver(authority, '127.0.0.3');
    const answers = ['127.0.0.3', '127.0.0.1'];
    const asked: string[] = [];
    const moving: Lookup = async () => {
      const answer = answers[Math.min(asked.length, 1)] ?? '';
      asked.push(answer);
      return [answer];
    };
    const allowing = createGuard(['127.0.0.3']);
    const url = `https://rebind.hooks.test:${receiver.port}/`;
    const before = dialled.length;
    // The only lookup decides where the connection goes.
    expect(await send(url, { guard: allowing, lookup: moving })).toMatchObject({
      outcome: 'status_204',
    });
    expect(asked).toEqual(['127.0.0.3']);
    expect(dialled.slice(before)).toEqual(['127.0.0.3']);
    // The result of the next lookup is checked again.
    expect(await send(url, { guard: allowing, lookup: moving })).toMatchObject({
      outcome: 'refused_address',
    });
    expect(dialled.length).toBe(before + 1);
    expect(receiver.received.length).toBe(1);
    expect(connections()).toBe(0);
  });

  test('if the connected address differs from the requested one', async () => {
    // The kernel connects 0.0.0.0 to 127.0.0.1.
    const allowing = createGuard(['0.0.0.0']);
    const { outcome } = await send(`https://0.0.0.0:${listeners[0]?.port}/`, { guard: allowing });
    expect(outcome).toBe('refused_address');
    expect(listeners[0]?.bytes()).toBe(0);
  });
});

type Listener = { port: number; count(): number; bytes(): number; close(): Promise<void> };

/** Counts connections and received bytes. */
async function listen(host: string, port: number): Promise<Listener> {
  let count = 0;
  let bytes = 0;
  const server = createServer((socket) => {
    count++;
    socket.on('data', (chunk) => {
      bytes += chunk.length;
    });
    socket.on('error', () => {});
  });
  await new Promise<void>((resolve, reject) => {
    server.on('error', reject);
    server.listen(port, host, resolve);
  });
  return {
    port: (server.address() as AddressInfo).port,
    count: () => count,
    bytes: () => bytes,
    close: () => new Promise((resolve) => server.close(() => resolve())),
  };
}
