/**
 * What of this machine's files a job sees: a list of mounts, which `bubblewrap.ts` and `unshare.ts` turn into
 * the arguments of their programs. Everything that is not in it does not exist for the job.
 */
import { lstatSync, readlinkSync } from 'node:fs';
import { join } from 'node:path';
import { MOUNTS } from '../runner.ts';
import { memoizeTtl } from '../supervisor/memoize-ttl.ts';
import { copyEtc, type OwnFile, resolved } from './etc.ts';

export type Mount =
  | { kind: 'read'; from: string; to: string }
  | { kind: 'write'; from: string; to: string }
  | { kind: 'device'; from: string; to: string }
  /** Nothing is to be seen there of what lies below. */
  | { kind: 'empty'; to: string }
  | { kind: 'link'; target: string; to: string };

/** Programs and libraries; on most machines all but the first are links into /usr. */
const PROGRAMS = ['usr', 'bin', 'sbin', 'lib', 'lib32', 'lib64', 'libx32', 'opt'];

/** The code of this server: nothing that a job needs, and perhaps settings with secrets beside it. */
const OWN_CODE = join(import.meta.dirname, '../../..');

/**
 * The machine's part.
 * @param etc a folder of ours, for what jobs see of /etc
 * @param hidden folders that a job must not see, wherever they lie
 */
function machineView(etc: string, hidden: readonly string[]): Mount[] {
  const all = [...hidden, OWN_CODE].map((path) => resolved(path) ?? path);
  const places = all.filter((place) => !all.some((other) => isBelow(place, other)));
  copyEtc(etc, (path) => places.some((place) => path === place || isBelow(path, place)));
  const mounts: Mount[] = [];
  for (const path of PROGRAMS.map((name) => `/${name}`)) {
    const stat = lstatSync(path, { throwIfNoEntry: false });
    if (stat?.isSymbolicLink()) mounts.push({ kind: 'link', target: readlinkSync(path), to: path });
    else if (stat) mounts.push({ kind: 'read', from: path, to: path });
  }
  const shown = mounts.flatMap((mount) => (mount.kind === 'read' ? [mount] : []));
  for (const path of places) {
    for (const { from, to } of shown)
      if (path === from || isBelow(path, from))
        mounts.push({ kind: 'empty', to: to + path.slice(from.length) });
  }
  mounts.push({ kind: 'read', from: etc, to: '/etc' });
  return mounts;
}

/** What is installed or moved meanwhile is seen by jobs that begin after it, and what changes in /etc by those that run. */
const VIEW_MS = 5_000;

/** The machine's part, for each of many jobs: to look at it takes 5 ms of this thread, and it hardly ever changes. */
export function openView(etc: string, hidden: readonly string[]): () => readonly Mount[] {
  return memoizeTtl(VIEW_MS, () => machineView(etc, hidden));
}

/** For a job in the network of the machine. */
export const RESOLVER: Mount = { kind: 'read', from: '/etc/resolv.conf', to: '/etc/resolv.conf' };

/** The attempt's part, whose folders lie in `dir`. `etc`: files of its user. */
export function attemptView(dir: string, etc: readonly OwnFile[]): Mount[] {
  return [
    ...etc.map(({ name, path }): Mount => ({ kind: 'read', from: path, to: `/etc/${name}` })),
    ...Object.entries(MOUNTS).map(
      ([name, to]): Mount => ({ kind: 'write', from: join(dir, name), to }),
    ),
  ];
}

function isBelow(path: string, folder: string): boolean {
  return path.startsWith(`${folder}/`);
}
