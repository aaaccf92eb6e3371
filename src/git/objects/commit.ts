/**
 * Parses commits and annotated tags (header lines, an empty line, the message) for display. Ancestry is decided by git.
 * isomorphic-git cannot be used: it parses only objects that it reads from the disk itself, and only as UTF-8.
 */

export type Signature = { name: string; email: string; date: Date };
export type Commit = {
  sha: string;
  parents: string[];
  message: string;
  author: Signature;
  committer: Signature;
};

/** The message and author of an annotated tag. */
export type Annotation = {
  /** Id of the tag object. */
  sha: string;
  /** Without a cryptographic signature. */
  message: string;
  /** Null if the tag has no tagger, as some old tags. */
  tagger: Signature | null;
};

/**
 * Never throws: of a malformed commit it returns the readable parts. The final newline of the message is removed.
 * `size` is the size of the whole object; when `data` is only its beginning, the message ends with a line that says so.
 */
export function parseCommit(sha: string, data: Buffer, size = data.length): Commit {
  const { header, message } = splitObject(data, size);
  return {
    sha,
    parents: parseParents(header),
    message,
    author: parseSignature(header, 'author'),
    committer: parseSignature(header, 'committer'),
  };
}

/** Reads parents directly after the tree line, as git does. Later `parent` lines do not count. */
function parseParents(header: string): string[] {
  const lines = header.split('\n').slice(1);
  const end = lines.findIndex((line) => !/^parent [0-9a-f]{40}$/.test(line));
  return lines.slice(0, end < 0 ? lines.length : end).map((line) => line.slice('parent '.length));
}

/** Like `parseCommit`, for a tag. */
export function parseTag(sha: string, data: Buffer, size = data.length): Annotation {
  const { header, message } = splitObject(data, size);
  const isSigned = /^-----BEGIN (?:PGP SIGNATURE|PGP MESSAGE|SSH SIGNATURE|SIGNED MESSAGE)-----$/m;
  const [text = ''] = message.split(isSigned, 1);
  return {
    sha,
    message: text.replace(/\n$/, ''),
    tagger: /^tagger /m.test(header) ? parseSignature(header, 'tagger') : null,
  };
}

function splitObject(data: Buffer, size: number): { header: string; message: string } {
  const end = data.indexOf('\n\n');
  const head = data.subarray(0, end < 0 ? data.length : end);
  const body = end < 0 ? Buffer.alloc(0) : data.subarray(end + 2);
  const encoding = /^encoding (.+)$/m.exec(head.toString('latin1'))?.[1];
  const decode = makeDecoder(encoding);
  const header = decode(head);
  const missing = size - data.length;
  const message = decode(body, missing > 0).replace(/\n$/, '');
  return {
    header,
    message: missing > 0 ? `${message}\n[${missing} more bytes are not shown]` : message,
  };
}

/** `cut`: the bytes may end within a character, which is then omitted. */
function makeDecoder(encoding = 'utf-8'): (bytes: Buffer, cut?: boolean) => string {
  let text: TextDecoder;
  try {
    text = new TextDecoder(encoding);
  } catch {
    text = new TextDecoder();
  }
  return (bytes, cut = false) => text.decode(bytes, { stream: cut });
}

/** The end of the year 9999; git stores any number. */
const MAX_SECONDS = 253_402_300_799;

function parseSignature(header: string, kind: 'author' | 'committer' | 'tagger'): Signature {
  const line = new RegExp(`^${kind} (.*)$`, 'm').exec(header)?.[1] ?? '';
  // The name ends at the first `<`: trying each of them takes quadratic time for a line of nothing else.
  const match = /^([^<]*?) ?<([^>]*)> ?(-?\d+)?/.exec(line);
  const seconds = Math.min(Math.max(Number(match?.[3] ?? 0), 0), MAX_SECONDS);
  return {
    name: match?.[1] ?? line,
    email: match?.[2] ?? '',
    date: new Date(seconds * 1000),
  };
}
