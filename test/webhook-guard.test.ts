/** Webhooks are sent to the public internet and nowhere else, however an address is written. */
import { expect, test } from 'vitest';
import { createGuard, whyNotUrl } from '../src/webhooks/delivery/guard.ts';
import { addressesIn, type Lookup, lookUp } from '../src/webhooks/delivery/lookup.ts';

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
  expect(guard.whyNot(address)).toMatch(/^(is|has) [a-z]/);
});

test.each([
  ...['1.1.1.1', '8.8.8.8', '9.255.255.255', '11.0.0.0', '100.63.255.255', '100.128.0.0'],
  ...['126.255.255.255', '128.0.0.1', '169.253.255.255', '169.255.0.0', '172.15.255.255'],
  ...['172.32.0.0', '192.0.1.0', '192.0.3.0', '192.167.255.255', '192.169.0.0', '198.17.255.255'],
  ...['198.20.0.0', '223.255.255.255', '2606:4700:4700::1111', '2a00:1450:4001:80e::200e'],
  ...['2001:4860:4860::8888', '2001:200::1', '2003::1', '2001:db7::1', '3ffe::1', '3fff:1000::1'],
])('%s is public', (address) => {
  expect(guard.whyNot(address)).toBeNull();
});

test('the allow-list names what may be contacted all the same, each family by itself', () => {
  const allowing = createGuard(['127.0.0.0/8', '10.1.2.3', 'fd00:1::/32', 'fe80::/64']);
  for (const address of ['127.0.0.1', '10.1.2.3', 'fd00:1::9', 'fe80::1%eth0'])
    expect(allowing.whyNot(address)).toBeNull();
  for (const address of ['10.1.2.4', 'fd00:2::9', '::ffff:127.0.0.1', '::1', '64:ff9b::7f00:1'])
    expect(allowing.whyNot(address)).not.toBeNull();
  expect(createGuard(['::ffff:0:0/96']).whyNot('::ffff:127.0.0.1')).toBeNull();
  expect(createGuard(['::ffff:0:0/96']).whyNot('127.0.0.1')).not.toBeNull();
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
  ['http://public.example/', 'must begin with https://'],
  ['ftp://public.example/', 'must begin with https://'],
  ['file:///etc/passwd', 'must begin with https://'],
  ['public.example', 'must be a URL'],
  ['', 'must be a URL'],
  ['https://', 'must be a URL'],
  ['https://[fe80::1%25eth0]/', 'must be a URL'],
  ['https://256.0.0.1/', 'must be a URL'],
  ['https://ada:secret@public.example/', 'must not hold a user name'],
  ['https://ada@public.example/', 'must not hold a user name'],
  ['https://public.example/#part', 'must have no fragment'],
  ['https://public.example/#', 'must have no fragment'],
  [`https://public.example/${'a'.repeat(2_048)}`, 'must be at most 2048 characters'],
  ['https://inside.example/', 'is a private address'],
  ['https://mixed.example/', 'is a loopback address'],
  ['https://mapped.example/', 'is an IPv4-mapped address'],
  ['https://localhost/', 'is a loopback address'],
  ['https://LOCALHOST./', 'is a loopback address'],
  ['https://2130706433/', 'is a loopback address'],
  ['https://[::ffff:93.184.216.34]/', 'is an IPv4-mapped address'],
])('a webhook to %s is not created', async (url, why) => {
  const real = url.toLowerCase().includes('localhost');
  expect(await whyNotUrl(url, guard, real ? lookUp : lookup)).toContain(why);
});

test.each([
  'https://public.example/path?query=1',
  'https://93.184.216.34:8443/',
  'https://[2606:2800:220:1::1]/',
  // It is looked up again at each attempt.
  'https://unknown.example/',
])('a webhook to %s is created', async (url) => {
  expect(await whyNotUrl(url, guard, lookup)).toBeNull();
});

test('a lookup that hangs is given up, and the URL is taken', async () => {
  const hanging: Lookup = (_, signal) =>
    new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
  expect(await whyNotUrl('https://silent.example/', guard, hanging)).toBeNull();
});

test('the file of hosts is read by lines of an address and its names', () => {
  const hosts =
    '127.0.0.1 localhost\n10.0.0.5\tdb db.internal # 10.0.0.6 db\n#10.0.0.7 db\n::1 localhost\n';
  expect(addressesIn(hosts, 'db')).toEqual(['10.0.0.5']);
  expect(addressesIn(hosts, 'localhost')).toEqual(['127.0.0.1', '::1']);
  expect(addressesIn(hosts, '10.0.0.5')).toEqual([]);
});
