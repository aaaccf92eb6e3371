/**
 * What of this machine's files a job sees: a list of mounts, which `bubblewrap.ts` and `unshare.ts` turn into
 * the arguments of their programs. Everything that is not in it does not exist for the job.
 */
import { lstatSync, readlinkSync, realpathSync } from 'node:fs';
import { join } from 'node:path';

/** Where the folders of an attempt are seen from inside. */
export const MOUNTS = { work: '/work', tmp: '/tmp', home: '/home/job' } as const;

export type Mount =
  | { kind: 'read'; from: string; to: string }
  | { kind: 'write'; from: string; to: string }
  | { kind: 'device'; from: string; to: string }
  /** Nothing is to be seen there of what lies below. */
  | { kind: 'empty'; to: string }
  | { kind: 'link'; target: string; to: string };

/**
 * The parts of /etc that programs read. Not all of it, and not whole folders where private keys lie beside
 * certificates: an ordinary server's user may read more of them than the people who send it jobs should.
 */
const ETC = [
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

/** Programs and libraries; on most machines all but the first are links into /usr. */
const PROGRAMS = ['usr', 'bin', 'sbin', 'lib', 'lib32', 'lib64', 'libx32', 'opt'];

/** The code of this server: nothing that a job needs, and perhaps settings with secrets beside it. */
const OWN_CODE = join(import.meta.dirname, '../../../..');

/** The machine's part. `hidden`: folders that a job must not see, wherever they lie. */
export function machineView(hidden: readonly string[]): Mount[] {
  const mounts: Mount[] = [];
  for (const path of PROGRAMS.map((name) => `/${name}`)) {
    const stat = lstatSync(path, { throwIfNoEntry: false });
    if (stat?.isSymbolicLink()) mounts.push({ kind: 'link', target: readlinkSync(path), to: path });
    else if (stat) mounts.push({ kind: 'read', from: path, to: path });
  }
  for (const path of ETC.map((name) => `/etc/${name}`)) {
    const from = resolved(path);
    if (from) mounts.push({ kind: 'read', from, to: path });
  }
  const shown = mounts.flatMap((mount) => (mount.kind === 'read' ? [mount] : []));
  const places = [...hidden, OWN_CODE].map((path) => resolved(path) ?? path);
  for (const path of places.filter((place) => !places.some((other) => isBelow(place, other)))) {
    for (const { from, to } of shown)
      if (path === from || isBelow(path, from))
        mounts.push({ kind: 'empty', to: to + path.slice(from.length) });
  }
  return mounts;
}

/** What is installed or moved meanwhile is seen by jobs that begin after it. */
const VIEW_MS = 1_000;

/** The machine's part, for each of many jobs: to look at it takes 2 ms of this thread, and it hardly ever changes. */
export function openView(hidden: readonly string[]): () => readonly Mount[] {
  let seen: { mounts: Mount[]; at: number } | undefined;
  return () => {
    const at = performance.now();
    if (!seen || at - seen.at > VIEW_MS) seen = { mounts: machineView(hidden), at };
    return seen.mounts;
  };
}

/** For a job in the network of the machine. */
export const RESOLVER: Mount = { kind: 'read', from: '/etc/resolv.conf', to: '/etc/resolv.conf' };

/** The attempt's part, whose folders lie in `dir`. `etc`: files that were written for it. */
export function attemptView(dir: string, etc: readonly string[]): Mount[] {
  return [
    ...etc.map(
      (name): Mount => ({ kind: 'read', from: join(dir, 'etc', name), to: `/etc/${name}` }),
    ),
    ...Object.entries(MOUNTS).map(
      ([name, to]): Mount => ({ kind: 'write', from: join(dir, name), to }),
    ),
  ];
}

function isBelow(path: string, folder: string): boolean {
  return path.startsWith(`${folder}/`);
}

/** Without links, which would lead nowhere inside; undefined when nothing is there. */
function resolved(path: string): string | undefined {
  try {
    return realpathSync(path);
  } catch {
    return undefined;
  }
}
