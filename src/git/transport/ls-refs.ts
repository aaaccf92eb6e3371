/**
 * The refs that a client of version 2 asks for before it fetches, out of their files: to start a git that lists them was a
 * quarter of the CPU of a small clone. Whatever is not quite usual is left to git: an argument that this does not know, a tag
 * of which the files do not say what it leads to, a `HEAD` that is no branch.
 */
import type { Readable } from 'node:stream';
import {
  FEW_PACKED_BYTES,
  type RefOnDisk,
  readBranchOfHead,
  readRefFiles,
} from '../disk/ref-files.ts';
import { FLUSH, pktLine } from './pkt-line.ts';

/** Of `gitprotocol-v2`: which refs, and what is said of each. */
export type LsRefs = {
  /** Of the full names; none: all refs. */
  prefixes: string[];
  /** What an annotated tag leads to. */
  peel: boolean;
  /** What `HEAD` names, … */
  symrefs: boolean;
  /** … also while there is no such branch. */
  unborn: boolean;
};

/** Each is compared with each ref, by the thread that answers everybody. Clients send three, or those of what they ask for. */
const MAX_PREFIXES = 100;
const DELIMITER = '0001';
const HEAD = 'HEAD';
/** After which a request has begun, or will not. */
const EVENTS = ['readable', 'end', 'error', 'close'];
/** What clients say of themselves, which changes no answer. */
const OF_CLIENT = /^(?:agent=.*|object-format=sha1)$/;

/** What has come of a request, which of a short one is all. It is still there to be read. Null when `signal` aborts before. */
export async function beginningOf(input: Readable, signal: AbortSignal): Promise<Buffer | null> {
  const { promise, resolve } = Promise.withResolvers<void>();
  const go = () => resolve();
  for (const event of EVENTS) input.on(event, go);
  signal.addEventListener('abort', go);
  // What has ended already says nothing any more.
  if (signal.aborted || !input.readable || input.readableLength > 0) resolve();
  await promise;
  for (const event of EVENTS) input.off(event, go);
  // It lasts as long as the server.
  signal.removeEventListener('abort', go);
  // To read from what has come to its end without a byte would end it before git is given it.
  const chunk: Buffer | null = input.readableLength > 0 ? input.read() : null;
  if (chunk) input.unshift(chunk);
  return chunk;
}

/** Null: it is another request, is not whole, or has something in it that only git knows. */
export function lsRefsOf(request: Buffer): LsRefs | null {
  const lines = linesOf(request);
  if (lines?.[0] !== 'command=ls-refs') return null;
  const middle = lines.indexOf(DELIMITER);
  const end = middle < 0 ? lines.length : middle;
  if (!lines.slice(1, end).every((line) => OF_CLIENT.test(line))) return null;
  const asked: LsRefs = { prefixes: [], peel: false, symrefs: false, unborn: false };
  for (const line of lines.slice(end + 1)) {
    if (line === 'peel' || line === 'symrefs' || line === 'unborn') asked[line] = true;
    else if (line.startsWith('ref-prefix ')) asked.prefixes.push(line.slice('ref-prefix '.length));
    else return null;
  }
  return asked.prefixes.length > MAX_PREFIXES ? null : asked;
}

/** The lines of a whole request, without its flush; a delimiter is one. Null when it is none. */
function linesOf(request: Buffer): string[] | null {
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

/** The whole answer; null where git is to be asked. */
export async function answerLsRefs(dir: string, asked: LsRefs): Promise<string | null> {
  // Before the refs, so that a branch that becomes the default one is not said to be missing.
  const branch = readBranchOfHead(dir);
  const refs = branch && (await readRefFiles(dir, FEW_PACKED_BYTES));
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
    if (!isAsked(name)) continue;
    const peeled = asked.peel ? peeledPart(ref) : '';
    if (peeled === null) return null;
    lines.push(`${ref.id} ${name}${peeled}`);
  }
  return lines.map((line) => pktLine(`${line}\n`)).join('') + FLUSH;
}

function peeledPart({ peeled }: RefOnDisk): string | null {
  if (peeled === undefined) return null;
  return peeled === null ? '' : ` peeled:${peeled}`;
}
