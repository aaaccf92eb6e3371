/**
 * git upload-pack (fetch) and receive-pack (push) for any transport, streamed in both directions.
 *
 * A push is over for its client only when `settle` is: what git says after the verdict is held back until
 * then, so no client gets success for a push that is not recorded.
 */
import type { Socket } from 'node:net';
import type { Duplex, Readable, Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import {
  type Ending,
  type GitOptions,
  type GitProcess,
  startGit,
  startGitOn,
} from '../processes/run.ts';
import { type Command, HookReader, type Push, type Verdict, writeVerdict } from './hooks.ts';
import { FLUSH, pktLine } from './pkt-line.ts';
import { relay, relayToReader } from './relay.ts';
import { reportedRefs } from './report.ts';

export const SERVICES = ['git-upload-pack', 'git-receive-pack'] as const;
export type Service = (typeof SERVICES)[number];

export type Session = {
  dir: string;
  /** The client's `Git-Protocol`, such as `version=2`. */
  protocol?: string;
  signal: AbortSignal;
  /** Over SSH client and git talk for as long as they wish, refs first; over HTTP each request is answered by itself. */
  isConversation?: boolean;
};

const UPLOAD: Record<string, string> = {
  // Partial clones, and fetching of a commit by its id, as hosting services have them.
  'uploadpack.allowFilter': 'true',
  'uploadpack.allowAnySHA1InWant': 'true',
};

const RECEIVE: Record<string, string> = {
  // One pack per push, whatever its size: objects then cost few files, and maintenance joins the packs.
  'receive.unpackLimit': '1',
  'receive.advertisePushOptions': 'true',
  // The default branch may go unless it is protected, which the judge decides.
  'receive.denyDeleteCurrent': 'ignore',
  // Objects that would harm a checkout are refused; old histories with these harmless flaws are not.
  'receive.fsckObjects': 'true',
  'receive.fsck.badTimezone': 'ignore',
  'receive.fsck.missingSpaceBeforeDate': 'ignore',
  'receive.fsck.zeroPaddedFilemode': 'ignore',
};

/**
 * Of one allocation. 16 KB of deltas can make an object of gigabytes, which `index-pack` holds as a whole; so it does
 * with a commit, a tree or a tag of any size. Clients make deltas of objects up to 512 MiB, and 12 million objects
 * of one pack, more than the Linux kernel has, fit in this. Larger files come as they are and are streamed.
 */
const RECEIVE_ALLOCATION = '768m';

/** What a client reads first: refs and capabilities. Ends without ending `output`. */
export async function advertise(
  service: Service,
  { dir, protocol, signal }: Session,
  output: Writable,
): Promise<Ending> {
  using process = await start(service, dir, ['--http-backend-info-refs'], { protocol, signal });
  // Version 2 has no such line, and no push.
  if (service === 'git-receive-pack' || versionOf(protocol) < 2)
    output.write(pktLine(`# service=${service}\n`) + FLUSH);
  process.stdin.end();
  // Awaited here, because leaving the function ends the process.
  return await relay(process, output);
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

export type PushRules = {
  /** Holds the hook. */
  hooks: string;
  /** Of the pack; larger ones are refused while they arrive. */
  maxBytes?: number;
  /** Decides before anything takes effect. A throw refuses. */
  judge(push: Push, signal: AbortSignal): Promise<Verdict>;
  /**
   * Called after git has ended, when the judge had accepted, with the refs that were updated, which may be
   * fewer than were to be. Null: git has not said, because there were none or because it was cut off.
   */
  settle(updated: Command[] | null): Promise<void>;
};

/**
 * Takes one push. A client that leaves before its pack is whole leaves nothing; one that leaves after it is
 * treated as if it had stayed.
 * @throws what `settle` throws; what git has said is then not passed on.
 */
export async function receivePack(
  session: Session,
  input: Readable,
  output: Writable,
  { hooks, maxBytes, judge, settle }: PushRules,
): Promise<Ending> {
  const { dir, protocol, signal } = session;
  using process = await start('git-receive-pack', dir, modeOf(session), {
    protocol,
    signal,
    extraPipes: 2,
    config: {
      'core.hooksPath': hooks,
      ...(maxBytes && { 'receive.maxInputSize': `${maxBytes}` }),
    },
  });
  feed(input, process);
  // A line for each ref, whose number `hooks.ts` bounds, and keep-alive packets.
  const held: Buffer[] = [];
  let accepted = false;
  let asked: Command[] = [];
  let updated: Command[] | null = null;
  const converse = async () => {
    const [said, answer] = process.pipes as [Duplex, Duplex];
    const hooks = new HookReader(said);
    const push = await hooks.question();
    if (!push) return;
    const verdict = await judge(push, signal);
    accepted = verdict.accepted;
    asked = push.commands;
    writeVerdict(answer, verdict);
    updated = await hooks.updated();
  };
  const hold = (chunk: Buffer) => {
    if (accepted) held.push(chunk);
    return accepted;
  };
  let failure: unknown;
  const [ending] = await Promise.all([
    relay(process, output, hold),
    converse().catch((error) => {
      failure = error;
      // Without a verdict the hook would wait for ever, and git with it.
      process.end();
    }),
  ]);
  // Where none was updated, because another push was quicker, no hook runs: the report to the client says so.
  const reported = updated ? null : reportedRefs(Buffer.concat(held));
  if (accepted) await settle(updated ?? (reported && asked.filter(({ ref }) => reported.has(ref))));
  else if (failure) throw failure;
  for (const chunk of held) if (!output.destroyed) output.write(chunk);
  return ending;
}

type Settings = {
  protocol?: string;
  signal: AbortSignal;
  extraPipes?: number;
  config?: Record<string, string>;
};

function start(
  service: Service,
  dir: string,
  args: string[],
  settings: Settings,
): Promise<GitProcess> {
  return startGit(argsOf(service, dir, args), optionsOf(service, dir, settings));
}

function argsOf(service: Service, dir: string, args: string[]): string[] {
  return [service.slice('git-'.length), ...args, dir];
}

function optionsOf(
  service: Service,
  dir: string,
  { protocol, config, ...options }: Settings,
): GitOptions {
  return {
    ...options,
    cwd: dir,
    config: service === 'git-upload-pack' ? UPLOAD : { ...RECEIVE, ...config },
    env: {
      ...(versionOf(protocol) > 0 && { GIT_PROTOCOL: `version=${versionOf(protocol)}` }),
      ...(service === 'git-receive-pack' && { GIT_ALLOC_LIMIT: RECEIVE_ALLOCATION }),
    },
  };
}

function modeOf({ isConversation }: Session): string[] {
  return isConversation ? [] : ['--stateless-rpc'];
}

/** Git may end before it has read everything, and the client may leave before it has sent everything. */
function feed(input: Readable, process: Pick<GitProcess, 'stdin'>): void {
  pipeline(input, process.stdin).catch(() => process.stdin.destroy());
}

/** The highest version in a `Git-Protocol` header (`version=2:extra`), 0 without one. */
function versionOf(protocol = ''): number {
  const versions = [...protocol.matchAll(/(?:^|:)version=([0-2])(?=:|$)/g)];
  return Math.max(0, ...versions.map(([, digit]) => Number(digit)));
}
