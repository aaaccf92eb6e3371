/**
 * The volumes that a job mounts: data of `LOAM_VOLUMES` on the machines. They are checked when the job is created, and again
 * when an attempt starts, because the operator may have changed the file meanwhile.
 */
import { posix } from 'node:path';
import {
  type CurrentVolumes,
  mayMount,
  VOLUME_NAME,
  type Volume,
} from '../../base/config/volumes-file.ts';
import { invalid, unprocessable } from '../../base/errors.ts';
import { entersGitFolder } from '../../git/names.ts';
import {
  MOUNTS,
  RESULTS_DIR,
  Unstartable,
  type VolumeMount,
  WORKING_DIR,
} from '../../runners/runner.ts';

export type VolumeRequest = {
  name: string;
  /** A path below the working directory, or an absolute one. */
  to: string;
  /** Null: as the volume permits. */
  readOnly?: boolean | null;
};

/** A request whose path was checked and is absolute. */
export type CheckedVolume = { name: string; to: string; readOnly: boolean | null };

/** As stored with the job. */
export type JobVolume = { name: string; to: string; readOnly: boolean };

export const VOLUME_RULES = { maxEntries: 16, pathBytes: 1_024, nameBytes: 255 } as const;

/** A volume there would hide the programs of the machine or the image, the system, or files of Loam. */
const RESERVED_FOLDERS = [
  ...['/usr', '/bin', '/sbin', '/lib', '/lib32', '/lib64', '/libx32', '/opt', '/boot'],
  ...['/etc', '/proc', '/sys', '/dev', '/run', '/var/run', `${MOUNTS.home}/.loam`, RESULTS_DIR],
];
/** They may have volumes in them, and cannot be one. */
const JOB_FOLDERS: readonly string[] = Object.values(MOUNTS);

export function readVolumes({ volumes }: { volumes: unknown }): JobVolume[] {
  return volumes as JobVolume[];
}

/** @throws AppError 400, 422 naming the field `volumes` and the index */
export function checkVolumes(requests: readonly VolumeRequest[]): CheckedVolume[] {
  const { maxEntries } = VOLUME_RULES;
  if (requests.length > maxEntries)
    throw invalid('volumes', `must not have more than ${maxEntries} entries`);
  const volumes = requests.map(({ name, to, readOnly }, index) => {
    if (!VOLUME_NAME.test(name))
      throw invalid('volumes', `[${index}].name must be the name of a volume`);
    return { name, to: checkTarget(to, index), readOnly: readOnly ?? null };
  });
  for (const [index, { to }] of volumes.entries()) {
    const other = volumes.findIndex((one, i) => i < index && overlaps(one.to, to));
    if (other >= 0)
      throw unprocessable(
        'volumes',
        `[${index}].to is the same as [${other}].to, or one is inside the other: ${to}`,
      );
  }
  return volumes;
}

/** Whether a path is the same as another, or one is inside the other. */
export function overlaps(a: string, b: string): boolean {
  return a === b || a.startsWith(`${b}/`) || b.startsWith(`${a}/`);
}

/** @returns the absolute path */
function checkTarget(to: string, index: number): string {
  const refuse = (problem: string) => invalid('volumes', `[${index}].to ${problem}`);
  const { pathBytes, nameBytes } = VOLUME_RULES;
  if (!to) throw refuse('must not be empty');
  // Kubernetes allows no colon.
  if (!to.isWellFormed() || /[\p{Cc}:]/u.test(to))
    throw refuse('must be well-formed Unicode without control characters and colons');
  if (Buffer.byteLength(to) > pathBytes) throw refuse(`must not be longer than ${pathBytes} bytes`);
  const parts = to.split('/');
  if (parts.includes('..')) throw refuse('must not contain ".."');
  if (parts.some((part) => Buffer.byteLength(part) > nameBytes))
    throw refuse(`must not have names of more than ${nameBytes} bytes`);
  const path = posix.resolve(WORKING_DIR, to);
  if (path === '/' || JOB_FOLDERS.some((folder) => `${folder}/`.startsWith(`${path}/`)))
    throw refuse(`must be a folder of its own, such as data or /data, and not ${path}`);
  const reserved = RESERVED_FOLDERS.find((folder) => `${path}/`.startsWith(`${folder}/`));
  if (reserved !== undefined || path.startsWith('/.'))
    throw refuse(
      `must not be in ${reserved ?? 'a folder of Loam'}: choose a path such as data or /data`,
    );
  if (entersGitFolder(posix.relative(WORKING_DIR, path))) throw refuse('must not be inside .git');
  return path;
}

/**
 * Checks that jobs of the namespace may mount the volumes, and fills in what the requests leave out.
 * @throws AppError 400, 422 naming the field `volumes` and the index
 */
export function resolveVolumes(
  declared: CurrentVolumes,
  namespace: string,
  requests: readonly CheckedVolume[],
): JobVolume[] {
  return requests.map(({ name, to, readOnly }, index) => {
    const volume = findPermitted(declared, namespace, name);
    if (!volume) throw invalid('volumes', `[${index}].name: ${describeMissing(name, namespace)}`);
    if (readOnly === false && volume.access === 'read')
      throw unprocessable('volumes', `[${index}].readOnly: ${describeReadOnly(name)}`);
    return { name, to, readOnly: readOnly ?? volume.access === 'read' };
  });
}

/**
 * Fills in what the requests leave out, for requests that `resolveVolumes` has accepted. Checks nothing and never throws, because
 * the operator may have removed a volume from the file since then.
 */
export function assumeAccess(
  declared: CurrentVolumes,
  requests: readonly CheckedVolume[],
): JobVolume[] {
  return requests.map(({ readOnly, ...volume }) => ({
    ...volume,
    readOnly: readOnly ?? declared.find(volume.name)?.access !== 'write',
  }));
}

/** The same text whether or not there is such a volume for others. */
function describeMissing(name: string, namespace: string): string {
  return `there is no volume ${name} for jobs of ${namespace}`;
}

function describeReadOnly(name: string): string {
  return `the volume ${name} can only be read`;
}

function findPermitted(
  declared: CurrentVolumes,
  namespace: string,
  name: string,
): Volume | undefined {
  const volume = declared.find(name);
  return volume && mayMount(volume, namespace) ? volume : undefined;
}

/**
 * The mounts of an attempt.
 * @throws Unstartable if the job may no longer have one of them
 */
export function toMounts(
  declared: CurrentVolumes,
  job: { volumes: unknown; namespaceId: string; namespace: { name: string } },
): VolumeMount[] {
  const { namespaceId, namespace } = job;
  return readVolumes(job).map(({ name, to, readOnly }) => {
    const volume = findPermitted(declared, namespace.name, name);
    const problem = !volume
      ? describeMissing(name, namespace.name)
      : !readOnly && volume.access === 'read'
        ? describeReadOnly(name)
        : null;
    if (!volume || problem !== null)
      throw new Unstartable(`The volumes of the job cannot be mounted: ${problem}.`);
    // By id, because a name can be given to another namespace when this one was deleted.
    return { volume: name, to, readOnly, folder: volume.perNamespace ? namespaceId : null };
  });
}
