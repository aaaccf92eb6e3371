/** Ref advertisement, fetch (git upload-pack) and archives, streamed, for HTTP and SSH. */
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import type { GitExit } from '../../platform/processes/git-started.ts';
import { MAX_SERVED_PACKED_BYTES, readRefFiles } from '../disk/ref-files.ts';
import { HIDDEN_PREFIX } from '../objects/refs.ts';
import { startGit } from '../processes/run.ts';
import {
  type GitRun,
  type GitService,
  protocolVersion,
  relayFetchOutput,
  relayOutput,
  sendInput,
  startGitService,
  statelessArgs,
} from './git-services.ts';
import { ZERO_ID } from './hooks.ts';
import { answerLsRefs, parseLsRefs, peekRequest } from './ls-refs.ts';
import { FLUSH, pktLine } from './pkt-line.ts';

const SUCCESS: GitExit = { code: 0, signal: null, stderr: '' };

/** Sends the ref advertisement, which a client reads first: refs and capabilities. Does not end `output`. */
export async function advertise(
  service: GitService,
  { dir, protocol, signal }: GitRun,
  output: Writable,
): Promise<GitExit> {
  const version = protocolVersion(protocol);
  const cached = await cachedAdvertisement(service, version, dir);
  if (cached) {
    output.write(cached);
    return SUCCESS;
  }
  const args = ['--http-backend-info-refs'];
  // Not set for the push itself: git rejects updates of hidden refs.
  const config = { 'receive.hideRefs': HIDDEN_PREFIX };
  using process = await startGitService(service, dir, args, { protocol, signal, config });
  // Version 2 has no such line and does not support pushes.
  if (service === 'git-receive-pack' || version < 2) output.write(serviceHeader(service));
  process.stdin.end();
  // Awaited here, because leaving the function ends the process.
  const answer: Buffer[] = [];
  const ending = await relayOutput(process, output, (chunk) => {
    if (answer.length === 0 || version === 2) answer.push(chunk);
    return chunk;
  });
  if (ending.code === 0) cacheCapabilities(service, version, Buffer.concat(answer));
  return ending;
}

/** Answers one request of a fetch, or a whole SSH fetch. Requests for refs are answered without git where possible. */
export async function uploadPack(
  gitRun: GitRun,
  input: Readable,
  output: Writable,
): Promise<GitExit> {
  const { dir, protocol, signal } = gitRun;
  const refs = await answerRefsRequest(gitRun, input);
  if (refs) {
    output.write(refs);
    input.resume();
    return SUCCESS;
  }
  const args = statelessArgs(gitRun);
  using process = await startGitService('git-upload-pack', dir, args, { protocol, signal });
  sendInput(input, process);
  return await relayFetchOutput(process, output);
}

/** Null if this is not a request for refs, or git must answer it. */
async function answerRefsRequest(
  { dir, protocol, signal, isStateful }: GitRun,
  input: Readable,
): Promise<string | null> {
  if (isStateful || protocolVersion(protocol) !== 2) return null;
  const request = await peekRequest(input, signal);
  const query = request && parseLsRefs(request);
  return query && answerLsRefs(dir, query);
}

/**
 * Git's capabilities, cached to advertise refs without starting git: for version 2 the whole answer, which does not
 * depend on the repository, else the capability list of the first line. The refs of a push are read from their files.
 */
type CachedCapabilities = { text: Buffer; until: number };
let fetchCapabilities: CachedCapabilities | undefined;
let pushCapabilities: CachedCapabilities | undefined;
/** Limited, because an upgrade may replace git under a running server. */
const CAPABILITIES_TTL_MS = 10 * 60_000;
/** Stands in for a ref in an empty repository. */
const NO_REFS = 'capabilities^{}';
/** The first ref line: object id, name, capabilities. */
const FIRST_REF = /^[0-9a-f]{4}[0-9a-f]{40} [^\0\n]+\0([^\n]+)\n/;

/** Lines that precede the refs over HTTP. */
function serviceHeader(service: GitService): string {
  return pktLine(`# service=${service}\n`) + FLUSH;
}

/** Null if git must answer; `cacheCapabilities` then receives git's answer. */
async function cachedAdvertisement(
  service: GitService,
  version: number,
  dir: string,
): Promise<Buffer | string | null> {
  if (service === 'git-upload-pack')
    return version === 2 && isFresh(fetchCapabilities) && (await fileExists(dir, 'HEAD'))
      ? fetchCapabilities.text
      : null;
  // Version 1 sends its number first. Pushes do not support version 2 and treat it as 0.
  if (version === 1 || !isFresh(pushCapabilities)) return null;
  // Git also reports shallow commits and refs of alternates to the client.
  if ((await fileExists(dir, 'shallow')) || (await fileExists(dir, 'objects/info/alternates')))
    return null;
  if (!(await fileExists(dir, 'HEAD'))) return null;
  const refs = await readRefFiles(dir, MAX_SERVED_PACKED_BYTES);
  if (!refs) return null;
  const shown = [...refs].filter(([name]) => !name.startsWith(HIDDEN_PREFIX));
  const lines = shown.map(([name, { id }]) => `${id} ${name}`);
  const [first = `${ZERO_ID} ${NO_REFS}`, ...others] = lines;
  const all = [`${first}\0${pushCapabilities.text.toString()}`, ...others];
  return serviceHeader(service) + all.map((line) => pktLine(`${line}\n`)).join('') + FLUSH;
}

/** @param answer the beginning of git's answer; for version 2 all of it */
function cacheCapabilities(service: GitService, version: number, answer: Buffer): void {
  const until = Date.now() + CAPABILITIES_TTL_MS;
  if (service === 'git-upload-pack') {
    if (version === 2) fetchCapabilities = { text: answer, until };
  } else if (version !== 1) {
    const capabilities = FIRST_REF.exec(answer.toString())?.[1];
    if (capabilities) pushCapabilities = { text: Buffer.from(capabilities), until };
  }
}

function isFresh(known: CachedCapabilities | undefined): known is CachedCapabilities {
  return known !== undefined && known.until > Date.now();
}

function fileExists(dir: string, file: string): Promise<boolean> {
  return stat(join(dir, file)).then(
    () => true,
    () => false,
  );
}

export type ArchiveRequest = {
  dir: string;
  commit: string;
  format: 'tar.gz' | 'zip';
  /** Folder in the archive that contains all files. */
  folder: string;
  signal: AbortSignal;
};

/** Streams an archive of all files of a commit. Does not end `output`. */
export async function writeArchive(
  { dir, commit, format, folder, signal }: ArchiveRequest,
  output: Writable,
): Promise<GitExit> {
  const args = ['archive', `--format=${format}`, `--prefix=${folder}/`, commit];
  using process = await startGit(args, { dir, signal });
  process.stdin.end();
  return await relayFetchOutput(process, output);
}
