/**
 * What git reports of a push to its client (`report-status` in gitprotocol-pack): a line for each ref, in packets that
 * may be wrapped in those of a side band.
 */

import { splitPackets } from './pkt-line.ts';

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

/** The contents of packets. */
function packetsOf(bytes: Buffer): Buffer[] {
  const { packets } = splitPackets(bytes);
  return packets.filter(({ length }) => length > 4).map((packet) => packet.subarray(4));
}
