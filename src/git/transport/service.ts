/** How git's two services are started: the session they serve, their arguments, their configuration. */
import type { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { type GitProcess, startGit } from '../processes/run.ts';

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

type Settings = {
  protocol?: string;
  signal: AbortSignal;
  extraPipes?: number;
  config?: Record<string, string>;
};

export function start(
  service: Service,
  dir: string,
  args: string[],
  { protocol, config, ...options }: Settings,
): Promise<GitProcess> {
  return startGit([service.slice('git-'.length), ...args, dir], {
    ...options,
    cwd: dir,
    config: service === 'git-upload-pack' ? UPLOAD : { ...RECEIVE, ...config },
    env: {
      ...(versionOf(protocol) > 0 && { GIT_PROTOCOL: `version=${versionOf(protocol)}` }),
      ...(service === 'git-receive-pack' && { GIT_ALLOC_LIMIT: RECEIVE_ALLOCATION }),
    },
  });
}

export function modeOf({ isConversation }: Session): string[] {
  return isConversation ? [] : ['--stateless-rpc'];
}

/** Git may end before it has read everything, and the client may leave before it has sent everything. */
export function feed(input: Readable, process: GitProcess): void {
  pipeline(input, process.stdin).catch(() => process.stdin.destroy());
}

/** The highest version in a `Git-Protocol` header (`version=2:extra`), 0 without one. */
export function versionOf(protocol = ''): number {
  const versions = [...protocol.matchAll(/(?:^|:)version=([0-2])(?=:|$)/g)];
  return Math.max(0, ...versions.map(([, digit]) => Number(digit)));
}
