/**
 * Pointers of git-lfs (docs/spec.md of git-lfs, version 1): the small text that stands in git where a large file would.
 * Those with extensions are no pointers here: what they lead to is not the file, but what a program of the client's
 * made of it.
 */

export type Pointer = {
  /** SHA-256 of the contents, in hexadecimal. */
  oid: string;
  /** In bytes. */
  size: number;
};

/** Of a pointer, in bytes: its text with a size of 1 to 16 digits, and at most a CR a line. */
export const POINTER_BYTES = { min: 126, max: 144 };

const FORM =
  /^version https:\/\/git-lfs\.github\.com\/spec\/v1\r?\noid sha256:([0-9a-f]{64})\r?\nsize (\d{1,16})\s*$/;

/** Whether a blob of this size may be one, so that others need not be read. */
export function canBePointer(bytes: number): boolean {
  return bytes >= POINTER_BYTES.min && bytes <= POINTER_BYTES.max;
}

/** Null for any other text. */
export function parsePointer(text: string): Pointer | null {
  const [, oid, digits] = canBePointer(text.length) ? (FORM.exec(text) ?? []) : [];
  const size = Number(digits);
  return oid && Number.isSafeInteger(size) ? { oid, size } : null;
}
