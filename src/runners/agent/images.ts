/** How a node runs a command in an image. */
import type { ImageProgram } from '../../base/config/slurm.ts';
import {
  formatImageReference,
  type ImageReference,
  parseImageReference,
} from '../../base/image-reference.ts';
import { MOUNTS, type MountedFolder } from '../runner.ts';

/** Folders on the node that the job sees at the paths of `MOUNTS`. */
type Folders = Record<keyof typeof MOUNTS, string>;

type Options = {
  folders: Folders;
  /** Further folders of the node. */
  volumes?: readonly MountedFolder[];
  /** The environment of the command, which may contain secrets. */
  env: Readonly<Record<string, string>>;
  /** Whether the job has NVIDIA GPUs. */
  hasGpus: boolean;
};

/**
 * The arguments before the command, and the environment of the program that runs them. Values of `env` are in no argument,
 * because every user of a node can read arguments. Containers use the network of the node, like jobs without an image.
 * @param image a name as Docker writes it, such as `debian:12` or `ghcr.io/acme/train@sha256:…`
 */
export function imageCommand(
  kind: ImageProgram,
  image: string,
  options: Options,
): { argv: string[]; env: Record<string, string> } {
  const reference = parseImageReference(image);
  if (!reference) throw new Error(`${JSON.stringify(image)} is not an image name`);
  return PROGRAMS[kind](reference, options);
}

const mounts = (folders: Folders, toMount: (source: string, target: string) => string) =>
  (Object.keys(MOUNTS) as (keyof Folders)[]).map((name) => toMount(folders[name], MOUNTS[name]));

const mountVolumes = (volumes: readonly MountedFolder[]) =>
  volumes.map(({ from, to, readOnly }) => `${from}:${to}${readOnly ? ':ro' : ''}`);

const PROGRAMS: Record<
  ImageProgram,
  (image: ImageReference, options: Options) => { argv: string[]; env: Record<string, string> }
> = {
  apptainer: (image, { folders: { home, ...folders }, volumes = [], env, hasGpus }) => ({
    argv: [
      ...['apptainer', '--silent', 'exec'],
      // No files, processes or variables of the node.
      '--containall',
      // HOME can be set in no other way.
      ...['--home', `${home}:${MOUNTS.home}`],
      ...['--bind', `${folders.work}:${MOUNTS.work}`, '--bind', `${folders.tmp}:${MOUNTS.tmp}`],
      ...mountVolumes(volumes).flatMap((one) => ['--bind', one]),
      ...['--pwd', MOUNTS.work],
      ...(hasGpus ? ['--nv'] : []),
      `docker://${formatImageReference(image)}`,
    ],
    env: mapKeys(env, (name) => `APPTAINERENV_${name}`),
  }),
  // Slurm's plugin pyxis adds the options to srun, and runs enroot.
  enroot: (image, { folders, volumes = [], env }) => ({
    argv: [
      ...['srun', '--ntasks=1', '--overlap', '--export=ALL'],
      `--container-image=${toEnrootName(image)}`,
      `--container-mounts=${[...mounts(folders, (source, target) => `${source}:${target}`), ...mountVolumes(volumes)].join(',')}`,
      `--container-workdir=${MOUNTS.work}`,
      // Otherwise variables of the image come before those of the job.
      `--container-env=${Object.keys(env).join(',')}`,
      ...['--no-container-mount-home', '--no-container-entrypoint', '--no-container-remap-root'],
      '--container-writable',
    ],
    env: { ...env },
  }),
  podman: (image, { folders, volumes = [], env, hasGpus }) => ({
    argv: [
      ...['podman', 'run', '--rm', '--quiet', '--pull=missing'],
      // The container stays in the control group of the Slurm job, which limits it.
      '--cgroups=disabled',
      '--network=host',
      '--security-opt=no-new-privileges',
      // Files belong to the account of the job, which has to remove them.
      '--userns=keep-id',
      ...mounts(folders, (source, target) => `--volume=${source}:${target}`),
      ...mountVolumes(volumes).map((one) => `--volume=${one}`),
      `--workdir=${MOUNTS.work}`,
      ...Object.keys(env).map((name) => `--env=${name}`),
      ...(hasGpus ? ['--device=nvidia.com/gpu=all'] : []),
      '--entrypoint=',
      formatImageReference(image),
    ],
    env: { ...env },
  }),
};

function mapKeys(
  record: Readonly<Record<string, string>>,
  toKey: (key: string) => string,
): Record<string, string> {
  return Object.fromEntries(Object.entries(record).map(([key, value]) => [toKey(key), value]));
}

/** Enroot separates the registry by `#`: `docker.io#library/debian:12`. */
function toEnrootName(image: ImageReference): string {
  return formatImageReference(image).replace('/', '#');
}
