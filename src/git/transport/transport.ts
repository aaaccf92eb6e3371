/** What a client of git reads first, and git upload-pack (fetch) for any transport, streamed in both directions. */

import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import type { GitExit } from '../../platform/processes/git-started.ts';
import { FEW_PACKED_BYTES, readRefFiles } from '../disk/ref-files.ts';
import { NONE } from './hooks.ts';
import { answerLsRefs, beginningOf, lsRefsOf } from './ls-refs.ts';
import { FLUSH, pktLine } from './pkt-line.ts';
import { relay, relayToReader } from './relay.ts';
import { feed, modeOf, type Service, type Session, start, versionOf } from './service.ts';

const FINE: GitExit = { code: 0, signal: null, stderr: '' };

/** What a client reads first: refs and capabilities. Ends without ending `output`. */
export async function advertise(
  service: Service,
  { dir, protocol, signal }: Session,
  output: Writable,
): Promise<GitExit> {
  const version = versionOf(protocol);
  const known = await knownAdvertisement(service, version, dir);
  if (known) {
    output.write(known);
    return FINE;
  }
  using process = await start(service, dir, ['--http-backend-info-refs'], { protocol, signal });
  // Version 2 has no such line, and no push.
  if (service === 'git-receive-pack' || version < 2) output.write(headOf(service));
  process.stdin.end();
  // Awaited here, because leaving the function ends the process.
  const said: Buffer[] = [];
  const ending = await relay(process, output, (chunk) => {
    if (said.length === 0 || version === 2) said.push(chunk);
    return chunk;
  });
  if (ending.code === 0) learn(service, version, Buffer.concat(said));
  return ending;
}

/** Answers one request of a fetch, or the whole of it. That for the refs is answered without git where that can be. */
export async function uploadPack(
  session: Session,
  input: Readable,
  output: Writable,
): Promise<GitExit> {
  const { dir, protocol, signal } = session;
  const refs = await refsAskedFor(session, input);
  if (refs) {
    output.write(refs);
    input.resume();
    return FINE;
  }
  using process = await start('git-upload-pack', dir, modeOf(session), { protocol, signal });
  feed(input, process);
  return await relayToReader(process, output);
}

/** Null: the request is another one, or git is to answer it. */
async function refsAskedFor(
  { dir, protocol, signal, isConversation }: Session,
  input: Readable,
): Promise<string | null> {
  if (isConversation || versionOf(protocol) !== 2) return null;
  const request = await beginningOf(input, signal);
  const asked = request && lsRefsOf(request);
  return asked && answerLsRefs(dir, asked);
}

/*
 * What a client reads first, without a program: what git can do is asked of it seldom, as often as a new one may be
 * installed under a server that runs, and the refs that a push reads with it come from their files.
 */

/** What git said of itself: to a client of version 2 its whole answer, which has nothing of the repository, else a list in a line. */
type Known = { text: Buffer; until: number };
let fetches: Known | undefined;
let pushes: Known | undefined;
const KNOWN_MS = 10 * 60_000;
/** In place of a ref, in a repository that has none. */
const NO_REFS = 'capabilities^{}';
/** The first line of refs: what it points at, its name, what git can do. */
const FIRST_REF = /^[0-9a-f]{4}[0-9a-f]{40} [^\0\n]+\0([^\n]+)\n/;

/** What comes before the refs over HTTP. */
function headOf(service: Service): string {
  return pktLine(`# service=${service}\n`) + FLUSH;
}

/** Null: git is to be asked, and then `learn` told what it said. */
async function knownAdvertisement(
  service: Service,
  version: number,
  dir: string,
): Promise<Buffer | string | null> {
  if (service === 'git-upload-pack')
    return version === 2 && isFresh(fetches) && (await isThere(dir, 'HEAD')) ? fetches.text : null;
  // Version 1 says its number first. Pushes know no version 2, and take it for 0.
  if (version === 1 || !isFresh(pushes)) return null;
  // What they bring is told to the client too, by git.
  if ((await isThere(dir, 'shallow')) || (await isThere(dir, 'objects/info/alternates')))
    return null;
  if (!(await isThere(dir, 'HEAD'))) return null;
  const refs = await readRefFiles(dir, FEW_PACKED_BYTES);
  if (!refs) return null;
  const lines = [...refs].map(([name, { id }]) => `${id} ${name}`);
  const [first = `${NONE} ${NO_REFS}`, ...others] = lines;
  const all = [`${first}\0${pushes.text.toString()}`, ...others];
  return headOf(service) + all.map((line) => pktLine(`${line}\n`)).join('') + FLUSH;
}

/** @param said the beginning of it at least; to a client of version 2 all of it */
function learn(service: Service, version: number, said: Buffer): void {
  const until = Date.now() + KNOWN_MS;
  if (service === 'git-upload-pack') {
    if (version === 2) fetches = { text: said, until };
  } else if (version !== 1) {
    const can = FIRST_REF.exec(said.toString())?.[1];
    if (can) pushes = { text: Buffer.from(can), until };
  }
}

function isFresh(known: Known | undefined): known is Known {
  return known !== undefined && known.until > Date.now();
}

function isThere(dir: string, file: string): Promise<boolean> {
  return stat(join(dir, file)).then(
    () => true,
    () => false,
  );
}
