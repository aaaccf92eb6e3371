/** Starts git's two services, and connects their input and output to the client. */
import type { Readable, Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { waitForDrain } from '../../platform/frames.ts';
import type { GitExit } from '../../platform/processes/git-started.ts';
import { HIDDEN_PREFIX } from '../objects/refs.ts';
import { type GitProcess, startGit } from '../processes/run.ts';

export const GIT_SERVICES = ['git-upload-pack', 'git-receive-pack'] as const;
export type GitService = (typeof GIT_SERVICES)[number];

/** One run of a git service on a repository. */
export type GitRun = {
  /** The repository's folder. */
  dir: string;
  /** The client's protocol version, such as `version=2`: the `Git-Protocol` header or, over SSH, `GIT_PROTOCOL`. */
  protocol?: string;
  signal: AbortSignal;
  /**
   * Over SSH, client and git exchange any number of messages, beginning with the ref advertisement. Over HTTP, each
   * request is independent.
   */
  isStateful?: boolean;
};

const UPLOAD_CONFIG: Record<string, string> = {
  // Partial clones, and fetching any object by its id, as on other hosting services.
  'uploadpack.allowFilter': 'true',
  'uploadpack.allowAnySHA1InWant': 'true',
  'uploadpack.hideRefs': HIDDEN_PREFIX,
};

const RECEIVE_CONFIG: Record<string, string> = {
  // Store each push as one pack instead of loose objects, so that it adds few files. Maintenance joins the packs.
  'receive.unpackLimit': '1',
  'receive.advertisePushOptions': 'true',
  // Whether the default branch may be deleted is decided by the pre-receive check (`PushRules.judge`).
  'receive.denyDeleteCurrent': 'ignore',
  // Objects that would harm a checkout are rejected. Harmless flaws of old histories are accepted.
  'receive.fsckObjects': 'true',
  'receive.fsck.badTimezone': 'ignore',
  'receive.fsck.missingSpaceBeforeDate': 'ignore',
  'receive.fsck.zeroPaddedFilemode': 'ignore',
};

/**
 * Limit for each allocation of `index-pack`, which keeps the result of each delta and each commit, tree and tag in
 * memory: 16 KB of deltas can expand to gigabytes. The limit allows objects of 512 MiB, the largest that clients send
 * as deltas (larger files are streamed), and 12 million objects in one pack; the Linux kernel has fewer.
 */
const RECEIVE_MAX_ALLOCATION = '768m';

type Settings = Pick<GitRun, 'protocol' | 'signal'> & {
  extraPipes?: number;
  /** Additional configuration of git-receive-pack; unused for git-upload-pack. */
  config?: Record<string, string>;
};

/** Starts the git program of a service. */
export function startGitService(
  service: GitService,
  dir: string,
  args: string[],
  { protocol, config, ...options }: Settings,
): Promise<GitProcess> {
  const version = protocolVersion(protocol);
  return startGit([service.slice('git-'.length), ...args, dir], {
    ...options,
    cwd: dir,
    config: service === 'git-upload-pack' ? UPLOAD_CONFIG : { ...RECEIVE_CONFIG, ...config },
    env: {
      ...(version > 0 && { GIT_PROTOCOL: `version=${version}` }),
      ...(service === 'git-receive-pack' && { GIT_ALLOC_LIMIT: RECEIVE_MAX_ALLOCATION }),
    },
  });
}

export function statelessArgs({ isStateful }: GitRun): string[] {
  return isStateful ? [] : ['--stateless-rpc'];
}

/**
 * Copies the client's input to git. Ignores errors, because git may end before it has read all input, and the client
 * may disconnect before it has sent all of it.
 */
export function sendInput(input: Readable, process: GitProcess): void {
  pipeline(input, process.stdin).catch(() => process.stdin.destroy());
}

/** The highest version in a `Git-Protocol` header (`version=2:extra`), 0 without one. */
export function protocolVersion(protocol = ''): number {
  const versions = [...protocol.matchAll(/(?:^|:)version=([0-2])(?=:|$)/g)];
  return Math.max(0, ...versions.map(([, digit]) => Number(digit)));
}

/**
 * Copies git's output to the client until git has ended. A client that disconnects is not an error; the returned exit
 * shows whether git completed its output. If reading or `transform` fails, git is ended.
 * @param transform returns the bytes to send for a chunk
 */
export async function relayOutput(
  process: GitProcess,
  output: Writable,
  transform: (chunk: Buffer) => Buffer = (chunk) => chunk,
): Promise<GitExit> {
  try {
    for await (const chunk of process.stdout as AsyncIterable<Buffer>) {
      const bytes = transform(chunk);
      if (bytes.length === 0 || output.destroyed) continue;
      if (!output.write(bytes)) await waitForDrain(output);
    }
  } catch {
    process.end();
  }
  return process.ended;
}

/** Like `relayOutput`, but ends git when the client disconnects: a fetch, unlike a push, has no effect to complete. */
export async function relayFetchOutput(process: GitProcess, output: Writable): Promise<GitExit> {
  const endGit = () => process.end();
  output.once('close', endGit);
  try {
    return await relayOutput(process, output);
  } finally {
    output.off('close', endGit);
  }
}
