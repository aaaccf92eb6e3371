/** Decides which addresses are public. Jobs may reach only public addresses, and images are pulled only from them. */
import { BlockList, isIP } from 'node:net';

/**
 * Ranges that are not public (RFC 6890): private and carrier networks, link-local addresses (cloud machines answer with
 * credentials at 169.254.169.254), benchmarks, multicast and reserved ranges. The three documentation ranges are left out:
 * only test setups use them, to imitate the internet.
 */
export const NON_PUBLIC_RANGES = [
  '0.0.0.0/8',
  '10.0.0.0/8',
  '100.64.0.0/10',
  // A public address at which the host of every Azure virtual machine answers.
  '168.63.129.16/32',
  '169.254.0.0/16',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.168.0.0/16',
  '198.18.0.0/15',
  '224.0.0.0/4',
  '240.0.0.0/4',
];

const nonPublic4 = new BlockList();
for (const range of [...NON_PUBLIC_RANGES, '127.0.0.0/8']) {
  const [address = '', bits] = range.split('/');
  nonPublic4.addSubnet(address, Number(bits), 'ipv4');
}

/** All assigned IPv6 addresses. */
const assigned6 = new BlockList();
assigned6.addSubnet('2000::', 3, 'ipv6');
/** Addresses that contain an IPv4 address: protocol assignments, which include Teredo, and 6to4. */
const nonPublic6 = new BlockList();
nonPublic6.addSubnet('2001::', 23, 'ipv6');
nonPublic6.addSubnet('2002::', 16, 'ipv6');

/** False for text that is not an address, too. */
export function isPublicAddress(address: string): boolean {
  if (isIP(address) === 4) return !nonPublic4.check(address, 'ipv4');
  if (isIP(address) !== 6) return false;
  return assigned6.check(address, 'ipv6') && !nonPublic6.check(address, 'ipv6');
}

type Block = { start: number; bits: number };

/** Removes networks from ranges, all IPv4 addresses or CIDRs. A range around a removed network is split. */
export function subtractNetworks(ranges: readonly string[], removed: readonly string[]): string[] {
  const holes = removed.map(parseBlock);
  return ranges.flatMap((range) =>
    holes
      .reduce((rest, hole) => rest.flatMap((block) => subtract(block, hole)), [parseBlock(range)])
      .map(formatBlock),
  );
}

/** Two blocks are apart, or one contains the other. */
function subtract(block: Block, hole: Block): Block[] {
  if (contains(hole, block)) return [];
  if (!contains(block, hole)) return [block];
  const bits = block.bits + 1;
  const halves = [block.start, block.start + 2 ** (32 - bits)];
  return halves.flatMap((start) => subtract({ start, bits }, hole));
}

function contains(outer: Block, inner: Block): boolean {
  const size = 2 ** (32 - outer.bits);
  return outer.bits <= inner.bits && Math.floor(inner.start / size) * size === outer.start;
}

function parseBlock(text: string): Block {
  const [address = '', length = '32'] = text.split('/');
  const bits = Number(length);
  const number = address.split('.').reduce((sum, byte) => sum * 256 + Number(byte), 0);
  return { start: number - (number % 2 ** (32 - bits)), bits };
}

function formatBlock({ start, bits }: Block): string {
  return `${[24, 16, 8, 0].map((shift) => Math.floor(start / 2 ** shift) % 256).join('.')}/${bits}`;
}
