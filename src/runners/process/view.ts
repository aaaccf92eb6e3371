/**
 * Lists the mounts that a job sees. `bubblewrap.ts` and `unshare.ts` turn them into the arguments of their programs.
 * Files of this machine that are not in the list do not exist for the job.
 */
import { lstatSync, readlinkSync } from 'node:fs';
import { join } from 'node:path';
import { MOUNTS } from '../runner.ts';
import { memoizeTtl } from '../supervisor/memoize-ttl.ts';
import { copyEtc, resolvePath, type UserFile } from './etc.ts';

export type Mount =
  | { kind: 'read'; from: string; to: string }
  | { kind: 'write'; from: string; to: string }
  | { kind: 'device'; from: string; to: string }
  /** Without device files and rights of setuid programs. */
  | { kind: 'volume'; from: string; to: string; readOnly: boolean }
  /** Hides the files at this path behind an empty folder. */
  | { kind: 'empty'; to: string }
  | { kind: 'link'; target: string; to: string };

/** Folders of programs and libraries; on most machines all except `usr` and `opt` are links into /usr. */
const PROGRAMS = ['usr', 'bin', 'sbin', 'lib', 'lib32', 'lib64', 'libx32', 'opt'];

/** The code of this server is hidden: no job needs it, and a settings file with secrets may be in the same folder. */
const OWN_CODE = import.meta.filename.endsWith('.ts')
  ? join(import.meta.dirname, '../../..')
  : import.meta.dirname;

/**
 * Lists the mounts that all jobs share.
 * @param etc a folder for the copy of /etc
 * @param hidden folders that a job must not see, wherever they are mounted
 */
function listMachineMounts(etc: string, hidden: readonly string[]): Mount[] {
  const all = [...hidden, OWN_CODE].map((path) => resolvePath(path) ?? path);
  const outermost = all.filter((path) => !all.some((other) => isBelow(path, other)));
  copyEtc(etc, (path) => outermost.some((folder) => path === folder || isBelow(path, folder)));
  const mounts: Mount[] = [];
  for (const path of PROGRAMS.map((name) => `/${name}`)) {
    const stat = lstatSync(path, { throwIfNoEntry: false });
    if (stat?.isSymbolicLink()) mounts.push({ kind: 'link', target: readlinkSync(path), to: path });
    else if (stat) mounts.push({ kind: 'read', from: path, to: path });
  }
  const shown = mounts.flatMap((mount) => (mount.kind === 'read' ? [mount] : []));
  for (const path of outermost) {
    for (const { from, to } of shown)
      if (path === from || isBelow(path, from))
        mounts.push({ kind: 'empty', to: to + path.slice(from.length) });
  }
  mounts.push({ kind: 'read', from: etc, to: '/etc' });
  return mounts;
}

/** Jobs that start this much later see changes of installed programs. Changes in /etc also reach running jobs. */
const VIEW_TTL_MS = 5_000;

/** Caches the shared mounts, because listing them blocks this thread for 5 ms and they rarely change. */
export function openView(etc: string, hidden: readonly string[]): () => readonly Mount[] {
  return memoizeTtl(VIEW_TTL_MS, () => listMachineMounts(etc, hidden));
}

/** The mount of a job that shares the network of the machine. */
export const RESOLV_CONF_MOUNT: Mount = {
  kind: 'read',
  from: '/etc/resolv.conf',
  to: '/etc/resolv.conf',
};

/**
 * Lists the mounts of an attempt.
 * @param dir contains the attempt's folders
 * @param etc files of its user
 */
export function listAttemptMounts(dir: string, etc: readonly UserFile[]): Mount[] {
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
