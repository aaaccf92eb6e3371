/**
 * git receive-pack (push) for any transport, streamed in both directions.
 *
 * A push is over for its client only when `settle` is: what git says after the verdict is held back until
 * then, so no client gets success for a push that is not recorded, nor for refs that are not on the disk.
 */
import type { Duplex, Readable, Writable } from 'node:stream';
import type { GitExit } from '../../platform/processes/git-started.ts';
import { packRefs, storeRefs } from '../disk/ref-files.ts';
import type { StaleLocks } from '../disk/stale-locks.ts';
import { allRefs } from '../objects/refs.ts';
import type { GitProcess } from '../processes/run.ts';
import {
  type Command,
  NONE,
  type Push,
  readQuestion,
  type Verdict,
  writeVerdict,
} from './hooks.ts';
import { pktLine, reportedRefs, splitPackets } from './pkt-line.ts';
import { relay } from './relay.ts';
import { hasManyRefs } from './requests.ts';
import { feed, modeOf, type Session, start } from './service.ts';

export type PushRules = {
  /** Holds the hook. */
  hooks: string;
  locks: Pick<StaleLocks, 'waits' | 'removeOf'>;
  /** Of the pack; larger ones are refused while they arrive, and the client is told the reason. */
  limit?: { maxBytes: number; reason: string };
  /** Decides before anything takes effect. A throw refuses. */
  judge(push: Push, signal: AbortSignal): Promise<Verdict>;
  /**
   * Called after git has ended, when the judge had accepted, with the refs that were updated, which may be
   * fewer than were to be. Null: git has not said, because there were none or because it was cut off.
   */
  settle(updated: Command[] | null): Promise<void>;
};

/** Of a push of many refs, which are synced together (`disk/refs-on-disk.ts`). */
const MANY_REFS = { 'core.fsync': 'objects,derived-metadata,-reference' };

/**
 * Takes one push. A client that leaves before its pack is whole leaves nothing; one that leaves after it is
 * treated as if it had stayed.
 * @throws what `settle` throws; what git has said is then not passed on.
 */
export async function receivePack(
  session: Session,
  input: Readable,
  output: Writable,
  rules: PushRules,
): Promise<GitExit> {
  {
    using process = await startPush(session, modeOf(session), rules);
    const said = new Said(process, output, rules);
    const isOver = said.ending.then(() => false);
    if (!(await Promise.race([hasManyRefs(input), isOver])))
      return await take(process, said, { session, input, rules, hasMany: false });
    process.end();
    await said.ending;
  }
  // One that is configured for many, and goes on where a client has read the refs and says what it wants.
  using process = await startPush(session, ['--stateless-rpc'], rules, MANY_REFS);
  const said = new Said(process, output, rules);
  return await take(process, said, { session, input, rules, hasMany: true });
}

function startPush(
  { dir, protocol, signal }: Session,
  mode: string[],
  { hooks, limit }: PushRules,
  config: Record<string, string> = {},
): Promise<GitProcess> {
  return start('git-receive-pack', dir, mode, {
    protocol,
    signal,
    extraPipes: 1,
    config: {
      'core.hooksPath': hooks,
      // What git borrows is the repository itself, for the quarantine, and its refs are known: this program lists none.
      'core.alternateRefsCommand': 'true',
      // Git takes 0 for no limit.
      ...(limit && { 'receive.maxInputSize': `${Math.max(1, limit.maxBytes)}` }),
      ...config,
    },
  });
}

/** How git refuses a pack beyond `receive.maxInputSize`: without saying whose limit it is, or how much is left of it. */
const TOO_LARGE = 'pack exceeds maximum allowed size';
/** The side band for a client's terminal. */
const TERMINAL = 2;

/** What git says to its client: passed on, and from `hold` on kept until `release`. */
class Said {
  readonly ending: Promise<GitExit>;
  readonly #output: Writable;
  /** Why a pack is too large, in place of git's own words. */
  readonly #reason: string;
  /** Of a packet that is not whole yet. */
  #rest: Buffer = Buffer.alloc(0);
  /** A line for each ref, whose number `hooks.ts` bounds, and keep-alive packets. */
  readonly #held: Buffer[] = [];
  #holds = false;

  constructor(process: GitProcess, output: Writable, { limit }: PushRules) {
    this.#output = output;
    this.#reason = limit?.reason ?? TOO_LARGE;
    const ending = relay(process, output, (chunk) => this.#take(chunk));
    this.ending = ending.then(({ stderr, ...rest }) => ({
      ...rest,
      stderr: stderr.includes(TOO_LARGE) ? this.#reason : stderr,
    }));
  }

  /** @returns what is passed on now */
  #take(chunk: Buffer): Buffer {
    const { packets, rest } = splitPackets(Buffer.concat([this.#rest, chunk]));
    this.#rest = rest;
    const shown = packets.map((packet) =>
      packet[4] === TERMINAL && packet.includes(TOO_LARGE)
        ? Buffer.from(pktLine(`${String.fromCharCode(TERMINAL)}error: ${this.#reason}\n`))
        : packet,
    );
    if (!this.#holds) return Buffer.concat(shown);
    this.#held.push(...shown);
    return Buffer.alloc(0);
  }

  hold(): void {
    this.#holds = true;
  }

  get held(): Buffer {
    return Buffer.concat(this.#held);
  }

  release(): void {
    for (const chunk of this.#held) if (!this.#output.destroyed) this.#output.write(chunk);
  }
}

type Taking = { session: Session; input: Readable; rules: PushRules; hasMany: boolean };

async function take(
  process: GitProcess,
  said: Said,
  { session: { dir, signal }, input, rules, hasMany }: Taking,
): Promise<GitExit> {
  feed(input, process);
  let accepted = false;
  let asked: Command[] = [];
  const isAccepted = rules.locks.waits(process.pid);
  const converse = async () => {
    const [hook] = process.pipes as [Duplex];
    const push = await readQuestion(hook);
    if (!push) return;
    const refs = push.commands.map(({ ref }) => ref);
    await rules.locks.removeOf(dir, refs);
    if (hasMany) await packRefs(dir);
    asked = await withoutGone(dir, push.commands);
    const verdict = await rules.judge(push, signal);
    accepted = verdict.accepted;
    if (accepted) said.hold();
    isAccepted();
    writeVerdict(hook, verdict);
  };
  let failure: unknown;
  const [ending] = await Promise.all([
    said.ending,
    converse().catch((error) => {
      failure = error;
      // Without a verdict the hook would wait for ever, and git with it.
      process.end();
    }),
  ]);
  isAccepted();
  if (!accepted) {
    if (failure) throw failure;
    return ending;
  }
  const refs = asked.map(({ ref }) => ref);
  if (hasMany) await storeRefs(dir, refs);
  const reported = reportedRefs(said.held);
  await rules.settle(reported && asked.filter(({ ref }) => reported.has(ref)));
  said.release();
  return ending;
}

/** Git reports of a ref that is not there that it was deleted. */
async function withoutGone(dir: string, commands: readonly Command[]): Promise<Command[]> {
  if (!commands.some(({ after }) => after === NONE)) return [...commands];
  const refs = await allRefs(dir);
  return commands.filter(({ ref, after }) => after !== NONE || refs.has(ref));
}
