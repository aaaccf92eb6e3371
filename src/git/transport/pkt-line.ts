/** Git's framing: four hexadecimal digits of length, which they are part of, then the data. */

export const FLUSH = '0000';

export function pktLine(text: string): string {
  return (Buffer.byteLength(text) + 4).toString(16).padStart(4, '0') + text;
}

/**
 * The whole packets that bytes begin with, headers and flushes included, and what is not whole yet. Bytes that are no
 * packet count as one.
 */
export function splitPackets(bytes: Buffer): { packets: Buffer[]; rest: Buffer } {
  const packets: Buffer[] = [];
  let at = 0;
  while (at + 4 <= bytes.length) {
    const digits = bytes.toString('latin1', at, at + 4);
    const isPacket = /^[0-9a-f]{4}$/i.test(digits);
    // Flush is 0000, and no packet is shorter than its own length.
    const length = isPacket ? Math.max(4, Number.parseInt(digits, 16)) : bytes.length - at;
    if (at + length > bytes.length) break;
    packets.push(bytes.subarray(at, at + length));
    at += length;
  }
  return { packets, rest: bytes.subarray(at) };
}
