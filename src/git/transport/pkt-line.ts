/** Git's framing: four hexadecimal digits of length, which they are part of, then the data. */

export const FLUSH = '0000';

export function pktLine(text: string): string {
  return (Buffer.byteLength(text) + 4).toString(16).padStart(4, '0') + text;
}
