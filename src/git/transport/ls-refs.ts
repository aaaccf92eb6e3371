/**
 * Answers `ls-refs`, which protocol version 2 requests before a fetch, from git's ref files. Starting git to answer it
 * took a quarter of the CPU time of a small clone. Git answers unusual requests: unknown arguments, an annotated tag
 * whose target is not in the files, a `HEAD` that is not a branch.
 */
import type { Readable } from 'node:stream';
import {
  MAX_SERVED_PACKED_BYTES,
  type RefOnDisk,
  readBranchOfHead,
  readRefFiles,
} from '../disk/ref-files.ts';
import { HIDDEN_PREFIX } from '../objects/refs.ts';
import { FLUSH, pktLine } from './pkt-line.ts';

/** Arguments of `ls-refs` in `gitprotocol-v2`: which refs to list, and which attributes. */
type LsRefsRequest = {
  /** Prefixes of full ref names. An empty list means all refs. */
  prefixes: string[];
  /** Show the target of annotated tags. */
  peel: boolean;
  /** Show the target of `HEAD`. */
  symrefs: boolean;
  /** Also show `HEAD` while its branch does not exist. */
  unborn: boolean;
};

/**
 * Limited, because each prefix is compared with each ref on the main thread. Clients send three prefixes, or one per
 * ref that they fetch.
 */
const MAX_PREFIXES = 100;
const DELIMITER = '0001';
const HEAD = 'HEAD';
/** After one of these events the request has started, or never will. */
const REQUEST_EVENTS = ['readable', 'end', 'error', 'close'];
/** Client capabilities that change no answer. */
const IGNORED_CAPABILITY = /^(?:agent=.*|object-format=sha1)$/;

/**
 * Reads the beginning of a request, or all of a short request. The bytes stay readable. Returns null if `signal` aborts
 * first.
 */
export async function peekRequest(input: Readable, signal: AbortSignal): Promise<Buffer | null> {
  const { promise, resolve } = Promise.withResolvers<void>();
  const go = () => resolve();
  for (const event of REQUEST_EVENTS) input.on(event, go);
  signal.addEventListener('abort', go);
  // A stream that has already ended emits no event.
  if (signal.aborted || !input.readable || input.readableLength > 0) resolve();
  await promise;
  for (const event of REQUEST_EVENTS) input.off(event, go);
  // `signal` lives as long as the server.
  signal.removeEventListener('abort', go);
  // Reading from a stream that ended without a byte would end the stream before git gets it.
  const chunk: Buffer | null = input.readableLength > 0 ? input.read() : null;
  if (chunk) input.unshift(chunk);
  return chunk;
}

/** Null when this is another request, is incomplete, or has arguments that only git understands. */
export function parseLsRefs(request: Buffer): LsRefsRequest | null {
  const lines = parseLines(request);
  if (lines?.[0] !== 'command=ls-refs') return null;
  const middle = lines.indexOf(DELIMITER);
  const end = middle < 0 ? lines.length : middle;
  if (!lines.slice(1, end).every((line) => IGNORED_CAPABILITY.test(line))) return null;
  const asked: LsRefsRequest = { prefixes: [], peel: false, symrefs: false, unborn: false };
  for (const line of lines.slice(end + 1)) {
    if (line === 'peel' || line === 'symrefs' || line === 'unborn') asked[line] = true;
    else if (line.startsWith('ref-prefix ')) asked.prefixes.push(line.slice('ref-prefix '.length));
    else return null;
  }
  return asked.prefixes.length > MAX_PREFIXES ? null : asked;
}

/**
 * The lines of a whole request without its flush packet; a delimiter packet is one line. Null when the request is
 * malformed.
 */
function parseLines(request: Buffer): string[] | null {
  const lines: string[] = [];
  for (let at = 0; at + 4 <= request.length; ) {
    const digits = request.toString('latin1', at, at + 4);
    if (digits === FLUSH) return at + 4 === request.length ? lines : null;
    const length = /^[0-9a-f]{4}$/.test(digits) ? Number.parseInt(digits, 16) : 0;
    if (digits === DELIMITER) lines.push(DELIMITER);
    else if (length < 4 || at + length > request.length) return null;
    else lines.push(request.toString('utf8', at + 4, at + length).replace(/\n$/, ''));
    at += Math.max(4, length);
  }
  return null;
}

/** The whole answer; null when git must answer. */
export async function answerLsRefs(dir: string, asked: LsRefsRequest): Promise<string | null> {
  // Read before the refs, so that a branch that becomes the default branch in between is not reported as missing.
  const branch = readBranchOfHead(dir);
  const refs = branch && (await readRefFiles(dir, MAX_SERVED_PACKED_BYTES));
  if (!refs) return null;
  const { prefixes } = asked;
  const isAsked = (name: string) =>
    prefixes.length === 0 || prefixes.some((prefix) => name.startsWith(prefix));
  const lines: string[] = [];
  if (isAsked(HEAD)) {
    const target = asked.symrefs ? ` symref-target:${branch}` : '';
    const ref = refs.get(branch);
    if (ref) lines.push(`${ref.id} ${HEAD}${target}`);
    else if (asked.unborn && asked.symrefs) lines.push(`unborn ${HEAD}${target}`);
  }
  for (const [name, ref] of refs) {
    if (!isAsked(name) || name.startsWith(HIDDEN_PREFIX)) continue;
    const peeled = asked.peel ? peeledAttribute(ref) : '';
    if (peeled === null) return null;
    lines.push(`${ref.id} ${name}${peeled}`);
  }
  return lines.map((line) => pktLine(`${line}\n`)).join('') + FLUSH;
}

function peeledAttribute({ peeled }: RefOnDisk): string | null {
  if (peeled === undefined) return null;
  return peeled === null ? '' : ` peeled:${peeled}`;
}
