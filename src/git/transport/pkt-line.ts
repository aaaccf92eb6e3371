/** Git's packet format: four hexadecimal digits of length, which include themselves, then the data. */

export const FLUSH = '0000';

export function pktLine(text: string): string {
  return (Buffer.byteLength(text) + 4).toString(16).padStart(4, '0') + text;
}

/**
 * Splits bytes into whole packets, with headers and flush packets, and an incomplete rest. Bytes that are not a packet
 * count as one packet.
 */
export function splitPackets(bytes: Buffer): { packets: Buffer[]; rest: Buffer } {
  const packets: Buffer[] = [];
  let at = 0;
  while (at + 4 <= bytes.length) {
    const digits = bytes.toString('latin1', at, at + 4);
    const isPacket = /^[0-9a-f]{4}$/i.test(digits);
    // A flush packet is 0000, and no packet is shorter than its own length field.
    const length = isPacket ? Math.max(4, Number.parseInt(digits, 16)) : bytes.length - at;
    if (at + length > bytes.length) break;
    packets.push(bytes.subarray(at, at + length));
    at += length;
  }
  return { packets, rest: bytes.subarray(at) };
}

/*
 * The report of a push to its client (`report-status` in gitprotocol-pack): a line for each ref, in packets that may be
 * wrapped in side-band packets.
 */

/** The refs that git reports as updated. Null without a report: git was cut off or the client requested none. */
export function reportedRefs(output: Buffer): Set<string> | null {
  const packets = payloads(output);
  const first = packets.filter((packet) => packet[0] === 1).map((packet) => packet.subarray(1));
  const lines = (first.length > 0 ? payloads(Buffer.concat(first)) : packets).map((line) =>
    line.toString().trimEnd(),
  );
  if (!lines.some((line) => line.startsWith('unpack '))) return null;
  return new Set(lines.filter((line) => line.startsWith('ok ')).map((line) => line.slice(3)));
}

/** The payloads of packets. */
function payloads(bytes: Buffer): Buffer[] {
  const { packets } = splitPackets(bytes);
  return packets.filter(({ length }) => length > 4).map((packet) => packet.subarray(4));
}
