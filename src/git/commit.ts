/** The text form of a commit: header lines, an empty line, the message. */

export type Signature = { name: string; email: string; date: Date };
export type Commit = {
  sha: string;
  parents: string[];
  message: string;
  author: Signature;
  committer: Signature;
};

/** Never throws: an old or broken commit shows what can be read of it. The final newline is not shown. */
export function parseCommit(sha: string, data: Buffer): Commit {
  const end = data.indexOf('\n\n');
  const head = data.subarray(0, end < 0 ? data.length : end);
  const body = end < 0 ? Buffer.alloc(0) : data.subarray(end + 2);
  const encoding = /^encoding (.+)$/m.exec(head.toString('latin1'))?.[1];
  const decode = decoder(encoding);
  const header = decode(head);
  return {
    sha,
    parents: [...header.matchAll(/^parent ([0-9a-f]{40})$/gm)].map(([, parent = '']) => parent),
    message: decode(body).replace(/\n$/, ''),
    author: signature(header, 'author'),
    committer: signature(header, 'committer'),
  };
}

function decoder(encoding = 'utf-8'): (bytes: Buffer) => string {
  let text: TextDecoder;
  try {
    text = new TextDecoder(encoding);
  } catch {
    text = new TextDecoder();
  }
  return (bytes) => text.decode(bytes);
}

/** The end of the year 9999; git stores any number it is given. */
const MAX_SECONDS = 253_402_300_799;

function signature(header: string, kind: 'author' | 'committer'): Signature {
  const line = new RegExp(`^${kind} (.*)$`, 'm').exec(header)?.[1] ?? '';
  const match = /^(.*?) ?<([^>]*)> ?(-?\d+)?/.exec(line);
  const seconds = Math.min(Math.max(Number(match?.[3] ?? 0), 0), MAX_SECONDS);
  return {
    name: match?.[1] ?? line,
    email: match?.[2] ?? '',
    date: new Date(seconds * 1000),
  };
}
