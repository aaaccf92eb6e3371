/**
 * The two programs behind fetch and push, for any transport: bytes in, bytes out, streamed both ways.
 *
 * A push is over for its client only when `settle` is: what git says after the verdict is held back until
 * then, so nobody is told of a push that the rest of the system does not know.
 */
import type { Readable, Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { type Push, readQuestion, type Verdict, writeVerdict } from './hooks.ts';
import { FLUSH, pktLine } from './pktline.ts';
import { collectStderr, ended, type GitProcess, spawnGit, terminate } from './run.ts';

export const SERVICES = ['git-upload-pack', 'git-receive-pack'] as const;
export type Service = (typeof SERVICES)[number];

export type Session = {
  dir: string;
  /** The client's `Git-Protocol`, such as `version=2`. */
  protocol?: string;
  signal: AbortSignal;
};

/** `code` other than 0: git refused or failed, and says why in its output when it could, else in `stderr`. */
export type Outcome = { code: number | null; stderr: string };

const UPLOAD: Record<string, string> = {
  // Partial clones, and fetching of a commit by its id, as hosting services have them.
  'uploadpack.allowFilter': 'true',
  'uploadpack.allowAnySHA1InWant': 'true',
};

const RECEIVE: Record<string, string> = {
  // One pack per push, whatever its size: objects then cost few files, and maintenance joins the packs.
  'receive.unpackLimit': '1',
  'receive.advertisePushOptions': 'false',
  // The default branch may go unless it is protected, which the judge decides.
  'receive.denyDeleteCurrent': 'ignore',
  // Objects that would harm a checkout are refused; old histories with these harmless flaws are not.
  'receive.fsckObjects': 'true',
  'receive.fsck.badTimezone': 'ignore',
  'receive.fsck.missingSpaceBeforeDate': 'ignore',
  'receive.fsck.zeroPaddedFilemode': 'ignore',
};

/** What a client reads first: refs and capabilities. Ends without ending `output`. */
export async function advertise(
  service: Service,
  { dir, protocol, signal }: Session,
  output: Writable,
): Promise<Outcome> {
  // Version 2 knows no such line, and no push.
  if (service === 'git-receive-pack' || versionOf(protocol) < 2)
    output.write(pktLine(`# service=${service}\n`) + FLUSH);
  const child = start(service, dir, ['--http-backend-info-refs'], { protocol, signal });
  child.stdin.end();
  return finish(child, output);
}

/** Answers one request of a fetch. */
export async function uploadPack(
  { dir, protocol, signal }: Session,
  input: Readable,
  output: Writable,
): Promise<Outcome> {
  const child = start('git-upload-pack', dir, ['--stateless-rpc'], { protocol, signal });
  feed(input, child);
  // Nobody reads any more: there is nothing to finish.
  const gone = () => terminate(child);
  output.once('close', gone);
  return finish(child, output).finally(() => output.off('close', gone));
}

export type PushRules = {
  /** Holds the hook. */
  hooks: string;
  /** Of the pack; larger ones are refused while they arrive. */
  maxBytes?: number;
  /** Decides before anything takes effect. A throw refuses. */
  judge(push: Push, signal: AbortSignal): Promise<Verdict>;
  /** Called after git has ended, when the judge had accepted; refs may have been updated, or some of them. */
  settle(push: Push): Promise<void>;
};

/**
 * Takes one push. A client that leaves before its pack is whole leaves nothing; one that leaves after it is
 * treated as if it had stayed.
 * @throws what `settle` throws; what git has said is then not passed on.
 */
export async function receivePack(
  { dir, protocol, signal }: Session,
  input: Readable,
  output: Writable,
  { hooks, maxBytes, judge, settle }: PushRules,
): Promise<Outcome> {
  const child = start('git-receive-pack', dir, ['--stateless-rpc'], {
    protocol,
    signal,
    extraPipes: 2,
    config: {
      ...RECEIVE,
      'core.hooksPath': hooks,
      ...(maxBytes && { 'receive.maxInputSize': `${maxBytes}` }),
    },
  });
  feed(input, child);
  // A line per ref, whose number the question bounds, and now and then a sign of life.
  const held: Buffer[] = [];
  let accepted: Push | undefined;
  const asked = (async () => {
    const [question, answer] = child.stdio.slice(3) as [Readable, Writable];
    const push = await readQuestion(question);
    if (!push) return;
    const verdict = await judge(push, signal);
    if (verdict.accepted) accepted = push;
    writeVerdict(answer, verdict);
  })().catch((error) => {
    // Without a verdict the hook would wait for ever, and git with it.
    terminate(child);
    throw error;
  });
  const [outcome] = await Promise.all([
    finish(child, output, (chunk) => {
      if (accepted) held.push(chunk);
      return accepted !== undefined;
    }),
    asked,
  ]);
  if (accepted) await settle(accepted);
  for (const chunk of held) if (!output.destroyed) output.write(chunk);
  return outcome;
}

function start(
  service: Service,
  dir: string,
  args: string[],
  {
    protocol,
    config,
    ...options
  }: {
    protocol?: string;
    signal: AbortSignal;
    extraPipes?: number;
    config?: Record<string, string>;
  },
): GitProcess {
  return spawnGit([service.slice('git-'.length), ...args, dir], {
    ...options,
    cwd: dir,
    config: service === 'git-upload-pack' ? UPLOAD : config,
    env: versionOf(protocol) > 0 ? { GIT_PROTOCOL: `version=${versionOf(protocol)}` } : undefined,
  });
}

/** Git may end before it has read everything, and the client may leave before it has sent everything. */
function feed(input: Readable, child: GitProcess): void {
  pipeline(input, child.stdin).catch(() => child.stdin.destroy());
}

/** Passes output on, unless `hold` takes it, until git has ended. A client that left is no failure. */
async function finish(
  child: GitProcess,
  output: Writable,
  hold: (chunk: Buffer) => boolean = () => false,
): Promise<Outcome> {
  const stderr = collectStderr(child);
  const end = ended(child);
  for await (const chunk of child.stdout as AsyncIterable<Buffer>) {
    if (hold(chunk) || output.destroyed) continue;
    if (!output.write(chunk)) await drained(output);
  }
  const { code } = await end;
  return { code, stderr: stderr() };
}

function drained(output: Writable): Promise<void> {
  return new Promise((resolve) => {
    const go = () => {
      output.off('drain', go);
      output.off('close', go);
      resolve();
    };
    output.once('drain', go);
    output.once('close', go);
  });
}

/** The highest version in a `Git-Protocol` header (`version=2:extra`), 0 without one. */
function versionOf(protocol = ''): number {
  const versions = [...protocol.matchAll(/(?:^|:)version=([0-2])(?=:|$)/g)];
  return Math.max(0, ...versions.map(([, digit]) => Number(digit)));
}
