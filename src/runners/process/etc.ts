/**
 * The parts of /etc that programs read, as a copy for jobs: one mount, where the parts themselves were 17. Bubblewrap reads
 * the list of all mounts again after each, which made 1.4 of the 8 ms that it takes.
 *
 * Jobs that run have the copy mounted, across starts of this server, so it is changed in place, and as a package manager does
 * it: a file is replaced by a whole one.
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

/**
 * Not all of it, and not whole folders where private keys lie beside certificates: an ordinary server's user may read more
 * of them than the people who send it jobs should.
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

/** Where an attempt's own files are mounted. */
const PLACES = ['passwd', 'group', 'resolv.conf'];

const NEW = '.new';

/**
 * Makes `copy` what /etc is now. What cannot be read or copied is left out: a job may run without it.
 * @param isHidden whether jobs must not see what lies there
 * @param from in place of /etc
 */
export function copyEtc(copy: string, isHidden: (path: string) => boolean, from = '/etc'): void {
  makeFolder(copy, 0o755);
  copyParts(from, PARTS, copy, isHidden);
  for (const name of PLACES) {
    const path = join(copy, name);
    if (!lstatSync(path, { throwIfNoEntry: false })) writeReadable(path, '');
  }
}

/** A file of /etc that a user of jobs has for itself. */
export type OwnFile = { name: string; path: string };

/**
 * Files of /etc for each user of jobs, who they are and where they ask for names: written once for each, because those of every
 * job were a folder and three files more to make and to remove.
 * @param home of the user, as jobs see it
 */
export function openOwnFiles(
  folder: string,
  home: string,
): (uid: number, nameserver?: string) => OwnFile[] {
  const known = new Map<string, OwnFile[]>();
  makeFolder(folder, 0o700);
  return (uid, nameserver) => {
    const key = `${uid}-${nameserver ?? 'unnamed'}`;
    const files = known.get(key) ?? writeOwnFiles(join(folder, key), { uid, home, nameserver });
    known.set(key, files);
    return files;
  };
}

type Owner = { uid: number; home: string; nameserver?: string };

function writeOwnFiles(folder: string, { uid, home, nameserver }: Owner): OwnFile[] {
  makeFolder(folder, 0o755);
  const texts = [
    ['passwd', `job:x:${uid}:${uid}:job:${home}:/bin/sh\n`],
    ['group', `job:x:${uid}:\n`],
    ...(nameserver ? [['resolv.conf', `nameserver ${nameserver}\n`]] : []),
  ] as const;
  return texts.map(([name, text]) => {
    const path = join(folder, name);
    // Jobs of an earlier start may have the file mounted.
    writeReadable(`${path}${NEW}`, text);
    renameSync(`${path}${NEW}`, path);
    return { name, path };
  });
}

/** Users of jobs read it, whatever the umask of this server is. */
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
  removeOthers(to, [...byFirst.keys(), ...PLACES]);
  for (const [name, paths] of byFirst) {
    const source = join(from, name);
    const target = join(to, name);
    // A part may be a link to somewhere that a job does not see.
    if (paths[0] === name) copyEntry(resolved(source), target, isHidden);
    else if (lstatSync(source, { throwIfNoEntry: false })) {
      makeFolder(target, 0o755);
      const inner = paths.map((path) => path.slice(name.length + 1));
      copyParts(source, inner, target, isHidden);
    }
  }
}

/** A link within a part stays one, wherever it leads. */
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
      removeOthers(to, names);
      for (const name of names) copyEntry(join(from as string, name), join(to, name), isHidden);
    } else if (stats?.isSymbolicLink()) copyLink(from as string, to);
    else if (stats?.isFile()) copyFile(from as string, stats, to);
    else rmSync(to, { recursive: true, force: true });
  } catch {
    // It is being replaced, or the disk is full: the next look finds it.
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
  const fresh = `${to}${NEW}`;
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

function removeOthers(folder: string, names: readonly string[]): void {
  const kept = new Set(names);
  for (const name of readdirSync(folder))
    if (!kept.has(name)) rmSync(join(folder, name), { recursive: true, force: true });
}

/** Without links; undefined when nothing is there. */
export function resolved(path: string): string | undefined {
  try {
    return realpathSync(path);
  } catch {
    return undefined;
  }
}
