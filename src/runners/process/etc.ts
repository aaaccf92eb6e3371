/**
 * Copies the parts of /etc that programs of jobs read. A copy is one mount; the parts themselves would be 17 mounts, and
 * bubblewrap reads the list of all mounts again after each mount (1.4 of its 8 ms).
 *
 * Running jobs have the copy mounted, even across restarts of this server. So the copy is updated in place, and each changed
 * file is replaced atomically, as a package manager does.
 */
import {
  chmodSync,
  copyFileSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readlinkSync,
  realpathSync,
  renameSync,
  rmSync,
  type Stats,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { accountFiles } from '../account-files.ts';

/**
 * Only parts of /etc, and no folders that contain private keys together with certificates: the server's user may be able to
 * read more files than people who submit jobs should.
 */
const PARTS = [
  'alternatives',
  'ca-certificates',
  'ca-certificates.conf',
  'crypto-policies',
  'fonts',
  'hosts',
  'ld.so.cache',
  'ld.so.conf',
  'ld.so.conf.d',
  'localtime',
  'mime.types',
  'nsswitch.conf',
  'pki/ca-trust/extracted',
  'pki/tls/cert.pem',
  'pki/tls/certs',
  'pki/tls/openssl.cnf',
  'protocols',
  'services',
  'ssl/cert.pem',
  'ssl/certs',
  'ssl/openssl.cnf',
];

/** Files that are mounted per attempt. */
const MOUNT_POINTS = ['passwd', 'group', 'resolv.conf'];

const NEW_SUFFIX = '.new';

/**
 * Updates `copy` from /etc. Files that cannot be read or copied are left out: a job may run without them.
 * @param isHidden whether jobs must not see this path
 * @param from replaces /etc in tests
 */
export function copyEtc(copy: string, isHidden: (path: string) => boolean, from = '/etc'): void {
  makeFolder(copy, 0o755);
  copyParts(from, PARTS, copy, isHidden);
  for (const name of MOUNT_POINTS) {
    const path = join(copy, name);
    if (!lstatSync(path, { throwIfNoEntry: false })) writeReadable(path, '');
  }
}

/** A file of /etc that belongs to one user of jobs. */
export type UserFile = { name: string; path: string };

/**
 * Writes files of /etc for each user of jobs: its account and its DNS server. They are written once per user, because every
 * job would otherwise create and remove a folder and three files.
 */
export function openUserFiles(folder: string): (uid: number, nameserver?: string) => UserFile[] {
  const known = new Map<string, UserFile[]>();
  makeFolder(folder, 0o700);
  return (uid, nameserver) => {
    const key = `${uid}-${nameserver ?? 'unnamed'}`;
    const write = () => writeUserFiles(join(folder, key), uid, nameserver);
    return known.getOrInsertComputed(key, write);
  };
}

function writeUserFiles(folder: string, uid: number, nameserver?: string): UserFile[] {
  makeFolder(folder, 0o755);
  const texts = {
    ...accountFiles(uid),
    ...(nameserver && { 'resolv.conf': `nameserver ${nameserver}\n` }),
  };
  return Object.entries(texts).map(([name, text]) => {
    const path = join(folder, name);
    // Jobs that started before this server may have the file mounted.
    writeReadable(`${path}${NEW_SUFFIX}`, text);
    renameSync(`${path}${NEW_SUFFIX}`, path);
    return { name, path };
  });
}

/** Sets the mode explicitly: users of jobs must be able to read the file, whatever the umask of this server is. */
function writeReadable(path: string, text: string): void {
  writeFileSync(path, text);
  chmodSync(path, 0o644);
}

function copyParts(
  from: string,
  parts: readonly string[],
  to: string,
  isHidden: (path: string) => boolean,
): void {
  const byFirst = Map.groupBy(parts, (part) => part.split('/')[0] as string);
  removeExcept(to, [...byFirst.keys(), ...MOUNT_POINTS]);
  for (const [name, paths] of byFirst) {
    const source = join(from, name);
    const target = join(to, name);
    // A part may be a link to a path that jobs do not see, so its target is copied.
    if (paths[0] === name) copyEntry(resolvePath(source), target, isHidden);
    else if (lstatSync(source, { throwIfNoEntry: false })) {
      makeFolder(target, 0o755);
      const inner = paths.map((path) => path.slice(name.length + 1));
      copyParts(source, inner, target, isHidden);
    }
  }
}

/** Copies a file, link or folder. A link within a part is copied as a link. */
function copyEntry(
  from: string | undefined,
  to: string,
  isHidden: (path: string) => boolean,
): void {
  try {
    const stats = from === undefined || isHidden(from) ? undefined : lstatSync(from);
    if (stats?.isDirectory()) {
      makeFolder(to, stats.mode);
      const names = readdirSync(from as string);
      removeExcept(to, names);
      for (const name of names) copyEntry(join(from as string, name), join(to, name), isHidden);
    } else if (stats?.isSymbolicLink()) copyLink(from as string, to);
    else if (stats?.isFile()) copyFile(from as string, stats, to);
    else rmSync(to, { recursive: true, force: true });
  } catch {
    // The file is being replaced, or the disk is full. The next update copies it.
  }
}

function copyLink(from: string, to: string): void {
  const target = readlinkSync(from);
  const before = lstatSync(to, { throwIfNoEntry: false });
  if (before?.isSymbolicLink() && readlinkSync(to) === target) return;
  replace(to, before, (path) => symlinkSync(target, path));
}

function copyFile(from: string, stats: Stats, to: string): void {
  const before = lstatSync(to, { throwIfNoEntry: false });
  const isSame =
    before?.isFile() &&
    before.size === stats.size &&
    before.mode === stats.mode &&
    Math.floor(before.mtimeMs) === Math.floor(stats.mtimeMs);
  if (isSame) return;
  replace(to, before, (path) => {
    copyFileSync(from, path);
    chmodSync(path, stats.mode & 0o7777);
    utimesSync(path, stats.atime, stats.mtime);
  });
}

function replace(to: string, before: Stats | undefined, make: (path: string) => void): void {
  const fresh = `${to}${NEW_SUFFIX}`;
  rmSync(fresh, { force: true });
  if (before?.isDirectory()) rmSync(to, { recursive: true });
  make(fresh);
  renameSync(fresh, to);
}

function makeFolder(path: string, mode: number): void {
  const before = lstatSync(path, { throwIfNoEntry: false });
  if (before && !before.isDirectory()) rmSync(path);
  if (!before?.isDirectory()) mkdirSync(path);
  chmodSync(path, mode & 0o7777);
}

function removeExcept(folder: string, names: readonly string[]): void {
  const kept = new Set(names);
  for (const name of readdirSync(folder))
    if (!kept.has(name)) rmSync(join(folder, name), { recursive: true, force: true });
}

/** The path with all links resolved; undefined when nothing exists there. */
export function resolvePath(path: string): string | undefined {
  try {
    return realpathSync(path);
  } catch {
    return undefined;
  }
}
