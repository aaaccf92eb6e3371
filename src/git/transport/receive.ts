/**
 * git receive-pack (push) for any transport, streamed in both directions.
 *
 * A client sees the end of its push only after `settle` resolves, because git's output after the verdict is held back
 * until then. So no client sees success for a push that is not recorded, or for refs that are not on disk.
 */
import type { Duplex, Readable, Writable } from 'node:stream';
import type { GitExit } from '../../platform/processes/git-started.ts';
import { packRefs, syncRefs } from '../disk/ref-files.ts';
import type { StaleLocks } from '../disk/stale-locks.ts';
import { readAllRefs } from '../objects/refs.ts';
import type { GitProcess } from '../processes/run.ts';
import {
  type GitRun,
  relayOutput,
  sendInput,
  startGitService,
  statelessArgs,
} from './git-services.ts';
import {
  type Push,
  type ReceivedRefUpdate,
  readPush,
  type Verdict,
  writeVerdict,
  ZERO_ID,
} from './hooks.ts';
import { pktLine, reportedRefs, splitPackets } from './pkt-line.ts';
import { hasManyRefs } from './requests.ts';

export type PushRules = {
  /** Folder of the hooks. */
  hooks: string;
  locks: Pick<StaleLocks, 'trackUndecidedPush' | 'removeBlocking'>;
  /** Limit for the pack. A larger pack is rejected while it arrives, and the client sees the reason. */
  limit?: { maxBytes: number; reason: string };
  /** Decides before the push takes effect. If it throws, the push is rejected. */
  judge(push: Push, signal: AbortSignal): Promise<Verdict>;
  /**
   * Called after git has ended if `judge` accepted, with the updated refs, which may be fewer than requested. Null if
   * git has not reported, because the push had no refs or git was ended early.
   */
  settle(updated: ReceivedRefUpdate[] | null): Promise<void>;
};

/** For a push of many refs, which are synced together (`disk/ref-files.ts`). */
const MANY_REFS_CONFIG = { 'core.fsync': 'objects,derived-metadata,-reference' };

/**
 * Runs one push. A client that disconnects before its pack is complete changes nothing; a push whose client disconnects
 * later goes on.
 * @throws errors of `settle`; git's held output is then not sent to the client
 */
export async function receivePack(
  gitRun: GitRun,
  input: Readable,
  output: Writable,
  rules: PushRules,
): Promise<GitExit> {
  {
    using process = await startPush(gitRun, statelessArgs(gitRun), rules);
    const pushOutput = new PushOutput(process, output, rules);
    const isOver = pushOutput.ending.then(() => false);
    if (!(await Promise.race([hasManyRefs(input), isOver])))
      return await handlePush(process, pushOutput, { gitRun, input, rules, hasMany: false });
    process.end();
    await pushOutput.ending;
  }
  // Starts git again with the settings for many refs. The client has read the refs already and sends its commands.
  using process = await startPush(gitRun, ['--stateless-rpc'], rules, MANY_REFS_CONFIG);
  const pushOutput = new PushOutput(process, output, rules);
  return await handlePush(process, pushOutput, { gitRun, input, rules, hasMany: true });
}

function startPush(
  { dir, protocol, signal }: GitRun,
  mode: string[],
  { hooks, limit }: PushRules,
  config: Record<string, string> = {},
): Promise<GitProcess> {
  return startGitService('git-receive-pack', dir, mode, {
    protocol,
    signal,
    extraPipes: 1,
    config: {
      'core.hooksPath': hooks,
      // The only alternate is the repository itself, for the quarantine. Its refs are known, so `true` lists no refs.
      'core.alternateRefsCommand': 'true',
      // Git treats 0 as no limit.
      ...(limit && { 'receive.maxInputSize': `${Math.max(1, limit.maxBytes)}` }),
      ...config,
    },
  });
}

/** Git's message for a pack beyond `receive.maxInputSize`. It names neither the limit nor the space that is left. */
const TOO_LARGE = 'pack exceeds maximum allowed size';
/** The side band for the client's terminal. */
const TERMINAL = 2;

/** Output of git to its client. Passes output on; from `startBuffering` on, keeps output until `release`. */
class PushOutput {
  readonly ending: Promise<GitExit>;
  readonly #output: Writable;
  /** Why a pack is too large; replaces git's own message. */
  readonly #reason: string;
  /** Start of a packet that is not complete yet. */
  #rest: Buffer = Buffer.alloc(0);
  /** One line per ref, whose number `hooks.ts` limits, and keep-alive packets. */
  readonly #buffered: Buffer[] = [];
  #isBuffering = false;

  constructor(process: GitProcess, output: Writable, { limit }: PushRules) {
    this.#output = output;
    this.#reason = limit?.reason ?? TOO_LARGE;
    const ending = relayOutput(process, output, (chunk) => this.#take(chunk));
    this.ending = ending.then(({ stderr, ...rest }) => ({
      ...rest,
      stderr: stderr.includes(TOO_LARGE) ? this.#reason : stderr,
    }));
  }

  /** @returns the output to pass on now */
  #take(chunk: Buffer): Buffer {
    const { packets, rest } = splitPackets(Buffer.concat([this.#rest, chunk]));
    this.#rest = rest;
    const output = packets.map((packet) =>
      packet[4] === TERMINAL && packet.includes(TOO_LARGE)
        ? Buffer.from(pktLine(`${String.fromCharCode(TERMINAL)}error: ${this.#reason}\n`))
        : packet,
    );
    if (!this.#isBuffering) return Buffer.concat(output);
    this.#buffered.push(...output);
    return Buffer.alloc(0);
  }

  startBuffering(): void {
    this.#isBuffering = true;
  }

  get buffered(): Buffer {
    return Buffer.concat(this.#buffered);
  }

  release(): void {
    for (const chunk of this.#buffered) if (!this.#output.destroyed) this.#output.write(chunk);
  }
}

type PushContext = { gitRun: GitRun; input: Readable; rules: PushRules; hasMany: boolean };

/** Runs a push in a started process: feeds git, answers the hook, and settles the push before it releases output. */
async function handlePush(
  process: GitProcess,
  output: PushOutput,
  { gitRun: { dir, signal }, input, rules, hasMany }: PushContext,
): Promise<GitExit> {
  sendInput(input, process);
  let accepted = false;
  let updates: ReceivedRefUpdate[] = [];
  const endTracking = rules.locks.trackUndecidedPush(process.pid);
  const answerHook = async () => {
    const [hook] = process.pipes as [Duplex];
    const push = await readPush(hook);
    if (!push) return;
    const refs = push.commands.map(({ ref }) => ref);
    await rules.locks.removeBlocking(dir, refs);
    if (hasMany) await packRefs(dir);
    updates = await withoutMissingRefs(dir, push.commands);
    const verdict = await rules.judge(push, signal);
    accepted = verdict.accepted;
    if (accepted) output.startBuffering();
    endTracking();
    writeVerdict(hook, verdict);
  };
  let failure: unknown;
  const [ending] = await Promise.all([
    output.ending,
    answerHook().catch((error) => {
      failure = error;
      // Without a verdict the hook would wait forever, and so would git.
      process.end();
    }),
  ]);
  endTracking();
  if (!accepted) {
    if (failure) throw failure;
    return ending;
  }
  const refs = updates.map(({ ref }) => ref);
  if (hasMany) await syncRefs(dir, refs);
  const reported = reportedRefs(output.buffered);
  await rules.settle(reported && updates.filter(({ ref }) => reported.has(ref)));
  output.release();
  return ending;
}

/** Git reports a deletion of a ref that does not exist as successful. */
async function withoutMissingRefs(
  dir: string,
  commands: readonly ReceivedRefUpdate[],
): Promise<ReceivedRefUpdate[]> {
  if (!commands.some(({ after }) => after === ZERO_ID)) return [...commands];
  const refs = await readAllRefs(dir);
  return commands.filter(({ ref, after }) => after !== ZERO_ID || refs.has(ref));
}
