/** What a client of git reads first, and git upload-pack (fetch) for any transport, streamed in both directions. */
import { stat } from 'node:fs/promises';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import { type Ending, startGitOn } from '../processes/run.ts';
import { FLUSH, pktLine } from './pkt-line.ts';
import { relay, relayToReader } from './relay.ts';
import {
  argsOf,
  feed,
  modeOf,
  optionsOf,
  type Service,
  type Session,
  start,
  versionOf,
} from './service.ts';

/**
 * What git said to a client of version 2: what the program can do, and nothing of the repository. So it is asked seldom, as
 * often as a new git may be installed under a server that runs.
 */
let capabilities: { bytes: Buffer; until: number } | undefined;
const CAPABILITIES_MS = 10 * 60_000;
const FINE: Ending = { code: 0, signal: null, stderr: '' };

/** What a client reads first: refs and capabilities. Ends without ending `output`. */
export async function advertise(
  service: Service,
  { dir, protocol, signal }: Session,
  output: Writable,
): Promise<Ending> {
  const isConstant = service === 'git-upload-pack' && versionOf(protocol) === 2;
  if (isConstant && capabilities && capabilities.until > Date.now() && (await isThere(dir))) {
    output.write(capabilities.bytes);
    return FINE;
  }
  using process = await start(service, dir, ['--http-backend-info-refs'], { protocol, signal });
  // Version 2 has no such line, and no push.
  if (service === 'git-receive-pack' || versionOf(protocol) < 2)
    output.write(pktLine(`# service=${service}\n`) + FLUSH);
  process.stdin.end();
  // Awaited here, because leaving the function ends the process.
  const said: Buffer[] = [];
  const ending = await relay(process, output, (chunk) => {
    if (isConstant) said.push(chunk);
    return false;
  });
  if (isConstant && ending.code === 0)
    capabilities = { bytes: Buffer.concat(said), until: Date.now() + CAPABILITIES_MS };
  return ending;
}

/** What is not there git says itself. */
function isThere(dir: string): Promise<boolean> {
  return stat(join(dir, 'HEAD')).then(
    () => true,
    () => false,
  );
}

/** Answers one request of a fetch, or the whole of it. */
export async function uploadPack(
  session: Session,
  input: Readable,
  output: Writable,
): Promise<Ending> {
  const { dir, protocol, signal } = session;
  using process = await start('git-upload-pack', dir, modeOf(session), { protocol, signal });
  feed(input, process);
  return await relayToReader(process, output);
}

/** As `uploadPack`. What git sends goes over `line` without passing this process; git is ended when nobody reads it. */
export async function uploadPackOn(
  line: Socket,
  session: Session,
  input: Readable,
): Promise<Ending> {
  const { dir, protocol, signal } = session;
  const options = optionsOf('git-upload-pack', dir, { protocol, signal });
  using process = await startGitOn(line, argsOf('git-upload-pack', dir, modeOf(session)), options);
  feed(input, process);
  return await process.ended;
}
