/** What a client of git reads first, and git upload-pack (fetch) for any transport, streamed in both directions. */
import type { Readable, Writable } from 'node:stream';
import type { Ending } from '../../platform/processes/git-started.ts';
import { headOf, knownAdvertisement, learn } from './advertisement.ts';
import { answerLsRefs, beginningOf, lsRefsOf } from './ls-refs.ts';
import { relay, relayToReader } from './relay.ts';
import { feed, modeOf, type Service, type Session, start, versionOf } from './service.ts';

const FINE: Ending = { code: 0, signal: null, stderr: '' };

/** What a client reads first: refs and capabilities. Ends without ending `output`. */
export async function advertise(
  service: Service,
  { dir, protocol, signal }: Session,
  output: Writable,
): Promise<Ending> {
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
): Promise<Ending> {
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
