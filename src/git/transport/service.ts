/** Starts git's two services, and connects their input and output with the client. */
import type { Readable, Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import type { GitExit } from '../../platform/processes/git-started.ts';
import { type GitProcess, startGit } from '../processes/run.ts';

export const SERVICES = ['git-upload-pack', 'git-receive-pack'] as const;
export type Service = (typeof SERVICES)[number];

export type Session = {
  dir: string;
  /** The client's `Git-Protocol` header, such as `version=2`. */
  protocol?: string;
  signal: AbortSignal;
  /** Over SSH, client and git exchange any number of messages, refs first. Over HTTP, each request is independent. */
  isStateful?: boolean;
};

const UPLOAD_CONFIG: Record<string, string> = {
  // Partial clones and fetching a commit by its id, as on other hosting services.
  'uploadpack.allowFilter': 'true',
  'uploadpack.allowAnySHA1InWant': 'true',
};

const RECEIVE_CONFIG: Record<string, string> = {
  // Keep one pack per push, whatever its size: objects then cost few files, and maintenance joins the packs.
  'receive.unpackLimit': '1',
  'receive.advertisePushOptions': 'true',
  // Deleting the default branch is allowed unless it is protected, which `PushRules.judge` decides.
  'receive.denyDeleteCurrent': 'ignore',
  // Objects that would harm a checkout are refused. Harmless flaws of old histories are accepted.
  'receive.fsckObjects': 'true',
  'receive.fsck.badTimezone': 'ignore',
  'receive.fsck.missingSpaceBeforeDate': 'ignore',
  'receive.fsck.zeroPaddedFilemode': 'ignore',
};

/**
 * Limit for one allocation. 16 KB of deltas can expand to an object of gigabytes, which `index-pack` holds whole, as it
 * does with commits, trees and tags of any size. Clients make deltas of objects up to 512 MiB, and this limit fits 12
 * million objects in one pack, more than the Linux kernel has. Larger files arrive without deltas and are streamed.
 */
const RECEIVE_MAX_ALLOCATION = '768m';

type Settings = {
  protocol?: string;
  signal: AbortSignal;
  extraPipes?: number;
  config?: Record<string, string>;
};

/** Starts the git program of a service. */
export function startService(
  service: Service,
  dir: string,
  args: string[],
  { protocol, config, ...options }: Settings,
): Promise<GitProcess> {
  return startGit([service.slice('git-'.length), ...args, dir], {
    ...options,
    cwd: dir,
    config: service === 'git-upload-pack' ? UPLOAD_CONFIG : { ...RECEIVE_CONFIG, ...config },
    env: {
      ...(protocolVersion(protocol) > 0 && {
        GIT_PROTOCOL: `version=${protocolVersion(protocol)}`,
      }),
      ...(service === 'git-receive-pack' && { GIT_ALLOC_LIMIT: RECEIVE_MAX_ALLOCATION }),
    },
  });
}

export function modeArgs({ isStateful: isConversation }: Session): string[] {
  return isConversation ? [] : ['--stateless-rpc'];
}

/** Git may end before it has read all input, and the client may disconnect before it has sent all of it. */
export function feed(input: Readable, process: GitProcess): void {
  pipeline(input, process.stdin).catch(() => process.stdin.destroy());
}

/** The highest version in a `Git-Protocol` header (`version=2:extra`), 0 without one. */
export function protocolVersion(protocol = ''): number {
  const versions = [...protocol.matchAll(/(?:^|:)version=([0-2])(?=:|$)/g)];
  return Math.max(0, ...versions.map(([, digit]) => Number(digit)));
}

/* Output of git, passed on as it arrives */

/**
 * Passes output on until git has ended. A client that disconnects is not an error; the returned exit shows whether git
 * completed its output.
 * @param shown returns the part of a chunk to pass on
 */
export async function relay(
  process: GitProcess,
  output: Writable,
  shown: (chunk: Buffer) => Buffer = (chunk) => chunk,
): Promise<GitExit> {
  try {
    for await (const chunk of process.stdout as AsyncIterable<Buffer>) {
      const bytes = shown(chunk);
      if (bytes.length === 0 || output.destroyed) continue;
      if (!output.write(bytes)) await waitForDrain(output);
    }
  } catch {
    process.end();
  }
  return process.ended;
}

/** Resolves when `output` accepts more data, and when it is closed. */
export function waitForDrain(output: Writable): Promise<void> {
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

/** Like `relay`, but ends git when the reader disconnects, because reading has nothing to finish. */
export async function relayToReader(process: GitProcess, output: Writable): Promise<GitExit> {
  const gone = () => process.end();
  output.once('close', gone);
  try {
    return await relay(process, output);
  } finally {
    output.off('close', gone);
  }
}
