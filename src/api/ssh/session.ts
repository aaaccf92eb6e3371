/**
 * Runs one command of a client whose key was verified. Permissions and limits are the same as over HTTP, checked by the
 * same functions.
 */

import type { Duplex, Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import type { Config } from '../../base/config/config.ts';
import { busy, invalid } from '../../base/errors.ts';
import type { Urls } from '../../base/urls.ts';
import { logOwnerUnavailable, runAtOwner } from '../../cluster/cluster.ts';
import { openTunnel, relaySockets } from '../../cluster/tunnels.ts';
import { GitError } from '../../git/processes/run.ts';
import type { GitRun, GitService } from '../../git/transport/git-services.ts';
import { RequestLimit, RequestTooLong } from '../../git/transport/requests.ts';
import { uploadPack } from '../../git/transport/transport.ts';
import { readAccountByCredentialId } from '../../identity/authenticate.ts';
import type { LastUsedRecorder } from '../../identity/last-used.ts';
import type { Account } from '../../identity/permissions.ts';
import type { Rechecks } from '../../identity/rechecks.ts';
import { authorizeShell } from '../../jobs/shells/access.ts';
import { openShell } from '../../jobs/shells/open.ts';
import type { Shells } from '../../jobs/shells/run.ts';
import { parseSessionRequest } from '../../jobs/shells/session-request.ts';
import type { Db } from '../../platform/database/client.ts';
import { GIT_TRANSFERS, withTransferSlot } from '../../platform/limits/fair-semaphore.ts';
import type { GitExit } from '../../platform/processes/git-started.ts';
import { shouldLog, toClientError } from '../../platform/web/error-response.ts';
import { withRepositoryFolder } from '../../repositories/folder.ts';
import { authorizeLfs, type Lfs, lfsUrl } from '../../repositories/lfs/lfs.ts';
import { authorizeGit } from '../../repositories/repositories.ts';
import {
  gitActionOf,
  prepareReceive,
  type Deps as TransferDeps,
  watchTransferPermission,
} from '../../repositories/transfers.ts';
import { parseCommand, type SshCommand } from './command.ts';
import { ExecSession } from './exec-session.ts';
import type { ExecRequest } from './requests.ts';

export type Deps = TransferDeps & {
  usage: LastUsedRecorder;
  rechecks: Rechecks;
  lfs: Lfs;
  urls: Urls;
  config: Config;
  db: Db;
  /** Of the attempts of this process; null: it runs no jobs. */
  shells: Shells | null;
};

/** The exit code of a failed git. */
const EXIT_FAILED = 128;
const EXIT_REFUSED = 1;

/**
 * Maximum time without traffic. During a fetch, clients answer immediately and git sends progress. During a push, a
 * client may need minutes to create its pack and sends nothing in that time.
 */
const IDLE_MS = { 'git-upload-pack': 120_000, 'git-receive-pack': 600_000 };

/** After this time, git-lfs requests a new token. */
const LFS_TOKEN_SECONDS = 3_600;

/** The head of a tunnel between servers. */
export type ForwardedCommand = { opening: ExecRequest; requestId: string };
export type Command = ForwardedCommand & {
  /** Whether another server forwarded the command. It is not forwarded again. */
  isForwarded: boolean;
};

/** The reply to `ssh -T`, with which users test a key. */
function formatGreeting({ credential, username }: Account): string {
  const who = credential.kind === 'deploy' ? `deploy key of ${username}` : username;
  return `Hi ${who}! You've authenticated, but Loam gives no shell.\n`;
}

/** @param socket at the first byte of the command's input. Never rejects. */
export async function serveCommand(
  services: Deps,
  command: Command,
  socket: Duplex,
): Promise<void> {
  const { credential, command: text, address } = command.opening;
  const { requestId: id } = command;
  const about = { req: { id }, ssh: { credential, command: text, address } };
  const began = performance.now();
  let opened: ExecSession | undefined;
  // Opened when first needed, because a forwarded command needs the raw socket.
  const execSession = () => {
    opened ??= new ExecSession(socket);
    return opened;
  };
  try {
    await dispatchCommand(services, command, socket, execSession);
    const ms = Math.round(performance.now() - began);
    services.log.debug({ ...about, ms }, 'an SSH command has ended');
  } catch (error) {
    const session = execSession();
    const clientError = toClientError(error);
    if (!session.gone.aborted && shouldLog(error))
      services.log.error({ ...about, err: error }, 'an SSH command failed');
    else services.log.debug({ ...about, code: clientError.code }, 'an SSH command was refused');
    session.writeError(
      `loam: ${clientError.message}${clientError.status >= 500 ? ` (request id ${id})` : ''}\n`,
    );
    session.exit(EXIT_FAILED);
  }
}

async function dispatchCommand(
  services: Deps,
  { opening, requestId, isForwarded }: Command,
  socket: Duplex,
  execSession: () => ExecSession,
): Promise<void> {
  const { credential, command, address } = opening;
  const viewer = {
    ...(await readAccountByCredentialId(services, credential)),
    from: { address, requestId },
  };
  if (opening.shell) return serveShell(services, viewer, opening, socket);
  const parsed = parseCommand(command);
  if (parsed.kind === 'greeting') return refuse(execSession(), formatGreeting(viewer));
  if (parsed.kind === 'refused') return refuse(execSession(), `loam: ${parsed.why}\n`);
  if (parsed.kind === 'lfs') return answerLfsAuthenticate(services, parsed, viewer, execSession());
  const id = await authorizeGit(services, viewer, parsed.repository, gitActionOf(parsed.service));
  const runLocally = () =>
    runGit(services, { id, parsed, viewer, opening, requestId }, execSession());
  if (isForwarded) return runLocally();
  await runAtOwner(services, id, {
    runLocally,
    async runRemotely(member) {
      const closed = new AbortController();
      socket.once('close', () => closed.abort());
      const head: ForwardedCommand = { opening, requestId };
      const about = { target: id, head, signal: closed.signal };
      const other = await openTunnel(services, member, about);
      // Not retried: the first bytes may have been sent.
      const isWhole = await relaySockets(socket, other);
      if (!isWhole)
        logOwnerUnavailable(
          services.log,
          member,
          new Error('The tunnel of an SSH command closed early'),
        );
    },
  });
}

/** Opens a shell, or runs a command, in a job. */
async function serveShell(
  services: Deps,
  viewer: Account,
  { command, shell }: ExecRequest,
  socket: Duplex,
): Promise<void> {
  const { namespace = '', name = '', port, subsystem, env = {}, terminal = null } = shell ?? {};
  if (subsystem !== undefined && subsystem !== 'sftp')
    throw invalid(null, `The subsystem ${subsystem} is not supported; sftp is`);
  const target = await authorizeShell(services, viewer, { namespace, name });
  const request = parseSessionRequest(
    port === undefined ? { command: subsystem ? SFTP_SERVER : command, env, terminal } : { port },
  );
  const cutOff = () => socket.destroy();
  await openShell(services, { viewer, target, ...request, connection: socket, cutOff });
}

/** The program of OpenSSH, where distributions have it. */
const SFTP_SERVER = `for folder in /usr/lib/openssh /usr/libexec/openssh /usr/lib/ssh /usr/libexec; do
  [ -x $folder/sftp-server ] && exec $folder/sftp-server
done
echo "loam: sftp and scp need sftp-server of OpenSSH, which this job lacks; scp -O needs only scp" >&2
exit 127`;

type GitCommand = SshCommand & { kind: 'git' };
type GitRequest = {
  id: string;
  parsed: GitCommand;
  viewer: Account;
  opening: ExecRequest;
  requestId: string;
};

async function runGit(
  services: Deps,
  { id, parsed: { service }, viewer, opening, requestId }: GitRequest,
  session: ExecSession,
): Promise<void> {
  const { output, gone } = session;
  using permissionWatch = watchTransferPermission(
    services,
    { viewer },
    { id, action: gitActionOf(service), cutOff: () => output.destroy() },
  );
  const { protocol } = opening;
  const input = limitInput(session.input, service);
  const transfer =
    service === 'git-upload-pack'
      ? (git: GitRun) => uploadPack(git, input, output)
      : await prepareReceive(
          services,
          { viewer },
          { id, requestId, permissionWatch, input, output },
        );
  const runTransfer = (dir: string) =>
    services.git.tasks.run(async (stopping) => {
      session.endWhenIdle(
        IDLE_MS[service],
        `loam: no data was transferred for ${IDLE_MS[service] / 1_000} seconds\n`,
      );
      // A disconnected client closes the streams. Its push still takes effect if it arrived completely.
      const ending = await transfer({ dir, protocol, signal: stopping, isStateful: true });
      if (permissionWatch.refused.aborted) throw permissionWatch.refused.reason;
      if (input.errored instanceof RequestTooLong) throw invalid(null, input.errored.message);
      if (stopping.aborted) throw busy('The server is stopping; try again');
      if (ending.code !== 0 && !gone.aborted) throw toGitFailure(ending, dir);
    });
  const caller = { key: viewer.credential.id, isAnonymous: false, signal: gone };
  const fetchOrPush = () => withRepositoryFolder(services, id, runTransfer);
  await withTransferSlot(services.git, GIT_TRANSFERS, caller, fetchOrPush);
  session.exit(0);
}

/** Fails when the input exceeds the limit of the service. */
function limitInput(input: Readable, service: GitService): Readable {
  const limit = new RequestLimit(service);
  pipeline(input, limit).catch(() => {});
  return limit;
}

/** Errors about the server's folder, and killed processes, are server errors. All others are invalid client input. */
function toGitFailure(ending: GitExit, dir: string): Error {
  const { signal, stderr } = ending;
  const isOurs = (signal && signal !== 'SIGABRT') || stderr.includes(dir);
  if (isOurs) return new GitError('over SSH', ending);
  const message = stderr.replace(/^fatal: /, '');
  return invalid(null, message || 'The client does not follow the git protocol');
}

function refuse(session: ExecSession, why: string): void {
  session.writeError(why);
  session.exit(EXIT_REFUSED);
}

/** Writes the URL of the large files and a token for them, in the format of git-lfs. */
async function answerLfsAuthenticate(
  services: Deps,
  { operation, repository }: SshCommand & { kind: 'lfs' },
  viewer: Account,
  session: ExecSession,
): Promise<void> {
  const repositoryId = await authorizeLfs(services, viewer, repository, operation);
  const grant = { repositoryId, credentialId: viewer.credential.id, operation };
  const token = services.lfs.tokens.issue(grant, LFS_TOKEN_SECONDS);
  const answer = {
    href: lfsUrl(services, repository),
    header: { Authorization: `Bearer ${token}` },
    expires_in: LFS_TOKEN_SECONDS,
  };
  session.output.write(`${JSON.stringify(answer)}\n`);
  session.exit(0);
}
