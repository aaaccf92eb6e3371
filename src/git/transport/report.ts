/**
 * What git reports of a push to its client (`report-status` in gitprotocol-pack): a line for each ref, in packets that
 * may be wrapped in those of a side band.
 */

/** The refs that it reports as updated; null when there is no report, because git was cut off or the client wants none. */
export function reportedRefs(output: Buffer): Set<string> | null {
  const packets = packetsOf(output);
  const first = packets.filter((packet) => packet[0] === 1).map((packet) => packet.subarray(1));
  const lines = (first.length > 0 ? packetsOf(Buffer.concat(first)) : packets).map((line) =>
    line.toString().trimEnd(),
  );
  if (!lines.some((line) => line.startsWith('unpack '))) return null;
  return new Set(lines.filter((line) => line.startsWith('ok ')).map((line) => line.slice(3)));
}

/** The contents of packets (`pkt-line.ts`), up to what is none. */
function packetsOf(bytes: Buffer): Buffer[] {
  const packets: Buffer[] = [];
  for (let at = 0; at + 4 <= bytes.length; ) {
    const digits = bytes.toString('latin1', at, at + 4);
    const length = /^[0-9a-f]{4}$/i.test(digits) ? Number.parseInt(digits, 16) : 1;
    if (length === 1 || at + length > bytes.length) break;
    if (length > 4) packets.push(bytes.subarray(at + 4, at + length));
    // Flush is 0000, and no packet is shorter than its own length.
    at += Math.max(4, length);
  }
  return packets;
}
