/**
 * One command of a client whose key was shown to be its own: read, allowed and run. What it may do is decided by the
 * functions that decide it over HTTP, and git runs under the same limits.
 */

import type { Duplex, Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { busy, invalid } from '../base/errors.ts';
import type { Urls } from '../base/urls.ts';
import { reportUnavailable, runAtOwner } from '../cluster/cluster.ts';
import { openTunnel } from '../cluster/tunnels.ts';
import { GitError } from '../git/processes/run.ts';
import { RequestLimit, RequestTooLong } from '../git/transport/requests.ts';
import type { Service, Session } from '../git/transport/service.ts';
import { uploadPack } from '../git/transport/transport.ts';
import { readAccountByCredentialId } from '../identity/authenticate.ts';
import type { LastUsedRecorder } from '../identity/last-used.ts';
import type { Account } from '../identity/permissions.ts';
import type { Rechecks } from '../identity/rechecks.ts';
import { GIT_TRANSFERS, withTransferSlot } from '../platform/limits/fair-semaphore.ts';
import type { GitExit } from '../platform/processes/git-started.ts';
import { shouldLog, toClientError } from '../platform/web/error-response.ts';
import { withRepositoryFolder } from '../repositories/folder.ts';
import type { Lfs } from '../repositories/lfs/lfs.ts';
import { lfsUrl, authorizeLfs } from '../repositories/lfs/lfs.ts';
import { authorizeGit } from '../repositories/repositories.ts';
import {
  gitActionOf,
  prepareReceive,
  type Deps as TransferDeps,
  watchTransferPermission,
} from '../repositories/transfers.ts';
import { type SshCommand, parseCommand } from './command.ts';
import { type ExecSession, openExecSession } from './exec-session.ts';
import type { ExecRequest } from './frames.ts';

export type Deps = TransferDeps & {
  usage: LastUsedRecorder;
  rechecks: Rechecks;
  lfs: Lfs;
  urls: Urls;
};

/** With it git ends when it fails. */
const EXIT_FAILED = 128;
const EXIT_REFUSED = 1;

/**
 * How long nothing may move. A client that fetches answers at once, and git gives a sign of life while it works; one that
 * pushes may need minutes to make its pack, and sends nothing meanwhile.
 */
const IDLE_MS = { 'git-upload-pack': 120_000, 'git-receive-pack': 600_000 };

/** After it git-lfs asks anew. */
const LFS_TOKEN_SECONDS = 3_600;

/** What one server tells another of a command. */
export type ForwardedCommand = { opening: ExecRequest; requestId: string };
export type Command = ForwardedCommand & {
  /** By another server, which found that this one has the repository. It is not sent on again. */
  isForwarded: boolean;
};

/** Who tests a key with `ssh -T` looks for it. */
export function formatGreeting({ credential, username }: Account): string {
  const who = credential.kind === 'deploy' ? `deploy key of ${username}` : username;
  return `Hi ${who}! You've authenticated, but Loam gives no shell.\n`;
}

/**
 * Runs the command that a client asks for over `socket`, which is at the first byte of its input. Never rejects.
 */
export async function serveCommand(services: Deps, asked: Command, socket: Duplex): Promise<void> {
  const { credential, command, address } = asked.opening;
  const { requestId: id } = asked;
  const about = { req: { id }, ssh: { credential, command, address } };
  const began = performance.now();
  let talk: ExecSession | undefined;
  const conversation = () => {
    talk ??= openExecSession(socket);
    return talk;
  };
  try {
    await run(services, asked, socket, conversation);
    const ms = Math.round(performance.now() - began);
    services.log.debug({ ...about, ms }, 'a command over SSH has ended');
  } catch (error) {
    const { gone, writeError: say, exit } = conversation();
    const shown = toClientError(error);
    if (!gone.aborted && shouldLog(error))
      services.log.error({ ...about, err: error }, 'git over SSH failed');
    else services.log.debug({ ...about, code: shown.code }, 'a command over SSH was refused');
    say(`loam: ${shown.message}${shown.status >= 500 ? ` (request id ${id})` : ''}\n`);
    exit(EXIT_FAILED);
  }
}

async function run(
  services: Deps,
  { opening, requestId, isForwarded }: Command,
  socket: Duplex,
  conversation: () => ExecSession,
): Promise<void> {
  const { credential, command, address } = opening;
  const viewer = {
    ...(await readAccountByCredentialId(services, credential)),
    from: { address, requestId },
  };
  const asked = parseCommand(command);
  if (asked.kind === 'greeting') return refuse(conversation(), formatGreeting(viewer));
  if (asked.kind === 'refused') return refuse(conversation(), `loam: ${asked.why}\n`);
  if (asked.kind === 'lfs') return answerLfsAuthenticate(services, asked, viewer, conversation());
  const id = await authorizeGit(services, viewer, asked.place, gitActionOf(asked.service));
  const here = () => runGit(services, { id, asked, viewer, opening, requestId }, conversation());
  if (isForwarded) return here();
  await runAtOwner(services, id, {
    here,
    async there(member) {
      const closed = new AbortController();
      socket.once('close', () => closed.abort());
      const head: ForwardedCommand = { opening, requestId };
      const about = { repositoryId: id, head, signal: closed.signal };
      const other = await openTunnel(services, member, about);
      // The first byte is on its way, so this is not tried again.
      const isWhole = await relaySockets(socket, other);
      if (!isWhole) reportUnavailable(services.log, member, new Error('it has broken off'));
    },
  });
}

type GitCommand = SshCommand & { kind: 'git' };
type GitRun = {
  id: string;
  asked: GitCommand;
  viewer: Account;
  opening: ExecRequest;
  requestId: string;
};

async function runGit(
  services: Deps,
  { id, asked: { service }, viewer, opening, requestId }: GitRun,
  { input: raw, output, gone, endWhenIdle: endAfterSilence, exit }: ExecSession,
): Promise<void> {
  using right = watchTransferPermission(
    services,
    { viewer },
    { id, action: gitActionOf(service), output },
  );
  const { protocol } = opening;
  const input = limitInput(raw, service);
  const talk =
    service === 'git-upload-pack'
      ? (session: Session) => uploadPack(session, input, output)
      : await prepareReceive(services, { viewer }, { id, requestId, right, input, output });
  const work = (dir: string) =>
    services.git.tasks.run(async (stopping) => {
      endAfterSilence(IDLE_MS[service], 'loam: nothing has come for too long\n');
      // A client that is gone shows in the streams; a push of it that is whole takes effect all the same.
      const ending = await talk({ dir, protocol, signal: stopping, isConversation: true });
      if (right.refused.aborted) throw right.refused.reason;
      if (input.errored instanceof RequestTooLong) throw invalid(null, input.errored.message);
      if (stopping.aborted) throw busy('The server is being stopped');
      if (ending.code !== 0 && !gone.aborted) throw toGitFailure(ending, dir);
    });
  const caller = { key: viewer.credential.id, isAnonymous: false, signal: gone };
  const fetchOrPush = () => withRepositoryFolder(services, id, work);
  await withTransferSlot(services.git, GIT_TRANSFERS, caller, fetchOrPush);
  exit(0);
}

/** The input for as long as it is within its limit. */
function limitInput(input: Readable, service: Service): Readable {
  const limit = new RequestLimit(service);
  pipeline(input, limit).catch(() => {});
  return limit;
}

/** A client that git cannot read is at fault; what names the server's folder, or was cut off, is the server's. */
function toGitFailure(ending: GitExit, dir: string): Error {
  const { signal, stderr } = ending;
  const isOurs = (signal && signal !== 'SIGABRT') || stderr.includes(dir);
  if (isOurs) return new GitError('over SSH', ending);
  return invalid(null, stderr.replace(/^fatal: /, '') || 'The client does not speak as git does');
}

function refuse({ writeError: say, exit }: ExecSession, why: string): void {
  say(why);
  exit(EXIT_REFUSED);
}

/** Tells git-lfs where large files are served and gives it a token for that, in its own form. */
async function answerLfsAuthenticate(
  services: Deps,
  { operation, place }: SshCommand & { kind: 'lfs' },
  viewer: Account,
  { output, exit }: ExecSession,
): Promise<void> {
  const repositoryId = await authorizeLfs(services, viewer, place, operation);
  const grant = { repositoryId, credentialId: viewer.credential.id, operation };
  const token = services.lfs.tokens.issue(grant, LFS_TOKEN_SECONDS);
  const answer = {
    href: lfsUrl(services, place),
    header: { Authorization: `Bearer ${token}` },
    expires_in: LFS_TOKEN_SECONDS,
  };
  output.write(`${JSON.stringify(answer)}\n`);
  exit(0);
}

/** Carries bytes in both directions until both sockets are closed. @returns whether `other` ended before `own` left */
async function relaySockets(own: Duplex, other: Duplex): Promise<boolean> {
  const { promise, resolve } = Promise.withResolvers<boolean>();
  other.on('error', () => {});
  own.once('close', () => {
    resolve(true);
    other.destroy();
  });
  const left = () => {
    resolve(other.readableEnded);
    if (!other.readableEnded) own.destroy();
  };
  other.once('close', left);
  if (other.closed) left();
  if (own.destroyed) other.destroy();
  own.pipe(other).pipe(own);
  return promise;
}
