/**
 * Options of a Slurm cluster. One cluster is configured by variables; a file that lists several clusters has the fields of
 * `slurmOptions`.
 */
import { z } from 'zod';
import { gpuModel, integer, localPath, oneOf, refuse } from './kinds.ts';

/** A name that Slurm's administrators choose. It becomes part of an argument of `sbatch`. */
const name = z
  .string()
  .regex(
    /^\w[\w.@+-]{0,127}$/,
    'must be at most 128 letters, digits, underscores, dots, hyphens, plus and at signs',
  );

const constraint = z
  .string()
  .regex(
    /^[\w[(][\w.&|*:,()[\]-]{0,255}$/,
    'must be features of nodes as sbatch --constraint takes them, such as big|[rack1&ssd]',
  );

/** A program by its name on the PATH of the nodes, or by its path. */
const program = z
  .string()
  .regex(/^[\w/][\w./+@-]{0,1023}$/, 'must be the name or the path of a program, such as node');

/** How the nodes run images. */
const IMAGE_PROGRAMS = ['apptainer', 'enroot', 'podman'] as const;
export type ImageProgram = (typeof IMAGE_PROGRAMS)[number];
const imageProgram = oneOf(...IMAGE_PROGRAMS);

/** The generic resource of a GPU model, and the most that one job may have. */
type Gres = { gres: string; max: number };

/** `gpu:a100:4` */
const gres = z.string().transform((text, ctx): Gres => {
  const [, name, max] = /^([\w.-]+(?::[\w.-]+)?):([1-9]\d{0,2})$/.exec(text) ?? [];
  if (name === undefined)
    return refuse(
      ctx,
      `${JSON.stringify(text)} must be a generic resource and the most of it that a node has, such as gpu:a100:4`,
    );
  return { gres: name, max: Number(max) };
});

/** `A100-80GB=gpu:a100:4,T4=gpu:t4:8` */
const gpus = z.string().transform((text, ctx) => {
  const parsed: Record<string, Gres> = {};
  for (const entry of text.split(',').map((part) => part.trim())) {
    const [model = '', ...rest] = entry.split('=');
    const value = gres.safeParse(rest.join('='));
    if (!gpuModel.safeParse(model).success || model in parsed)
      return refuse(
        ctx,
        `${JSON.stringify(entry)} must begin with a GPU model such as A100-80GB, named once, and =`,
      );
    if (!value.success) return refuse(ctx, value.error.issues[0]?.message ?? 'is invalid');
    parsed[model] = value.data;
  }
  return parsed;
});

const MAX_CPUS = 4_096;
const MAX_MEMORY_GB = 65_536;
const MAX_JOBS = 10_000;

/** The options in a file that lists clusters. */
export const slurmOptions = z.strictObject({
  /** Slurm's configuration file; unset: Slurm's own default. */
  conf: localPath.optional(),
  partition: name.optional(),
  account: name.optional(),
  qos: name.optional(),
  constraint: constraint.optional(),
  /** GPU model → generic resource and the most of it that one job may have, such as `gpu:a100:4`. */
  gpus: z.record(gpuModel, gres).default({}),
  /** Node.js on the nodes. */
  node: program.default('node'),
  /** Folder that the nodes and this machine share; unset: the temporary folder of each node. */
  dir: localPath.optional(),
  /** How the nodes run images; unset: jobs with an image are refused. */
  images: imageProgram.optional(),
  /** The most that one job may have; unset: what the largest node has. */
  maxCpus: z.int().min(1).max(MAX_CPUS).optional(),
  maxMemoryGb: z.int().min(1).max(MAX_MEMORY_GB).optional(),
  /** How many jobs this worker has in Slurm at once, waiting or running. */
  maxJobs: z.int().min(1).max(MAX_JOBS).default(100),
  /** File that maps namespaces to accounts of the cluster; unset: jobs run as the user of this worker. */
  users: localPath.optional(),
});

export type SlurmConfig = z.output<typeof slurmOptions>;

/** The variable of Slurm's own commands. Same form as `VARIABLES` in config.ts. */
export const SLURM_OWN_VARIABLES = {
  SLURM_CONF: ['', "Slurm's configuration file; unset: Slurm's own default", localPath],
} as const;

/** Part of `VARIABLES` in config.ts. */
export const SLURM_VARIABLES = {
  LOAM_SLURM_PARTITION: ['', "partition of jobs; unset: the cluster's default", name],
  LOAM_SLURM_ACCOUNT: ['', 'Slurm account that is charged; unset: the default of the user', name],
  LOAM_SLURM_QOS: ['', 'quality of service of jobs; unset: the default', name],
  LOAM_SLURM_CONSTRAINT: [
    '',
    'features that the nodes must have, as sbatch --constraint takes them; unset: none',
    constraint,
  ],
  LOAM_SLURM_GPUS: [
    '',
    'generic resource of each GPU model, with the most that one node has: A100-80GB=gpu:a100:4,T4=gpu:t4:8; unset: no GPUs',
    gpus,
  ],
  LOAM_SLURM_NODE: ['node', 'name or path of Node.js (22 or later) on the nodes', program],
  LOAM_SLURM_DIR: [
    '',
    'folder of running jobs that the nodes and this machine share; unset: TMPDIR or /tmp of each node',
    localPath,
  ],
  LOAM_SLURM_IMAGES: [
    '',
    'how the nodes run images: apptainer, enroot (by its Slurm plugin pyxis) or podman; unset: jobs with an image are refused',
    imageProgram,
  ],
  LOAM_SLURM_MAX_CPUS: [
    '',
    'maximum number of CPUs of a job; unset: those of the largest node',
    integer(1, MAX_CPUS),
  ],
  LOAM_SLURM_MAX_MEMORY_GB: [
    '',
    'maximum memory of a job in GB; unset: that of the largest node',
    integer(1, MAX_MEMORY_GB),
  ],
  LOAM_SLURM_MAX_JOBS: [
    '100',
    'maximum number of jobs of this worker that are in Slurm at the same time, waiting or running',
    integer(1, MAX_JOBS),
  ],
  LOAM_SLURM_USERS: [
    '',
    'file that maps namespaces to accounts of the cluster, one pair per line; needs root; unset: jobs run as the user of Loam',
    localPath,
  ],
} as const satisfies Record<string, readonly [fallback: string, meaning: string, kind: z.ZodType]>;

type Table = typeof SLURM_VARIABLES & typeof SLURM_OWN_VARIABLES;
type Values = {
  [N in keyof Table]: z.output<Table[N][2]> | (Table[N][0] extends '' ? undefined : never);
};

export function readSlurmConfig(values: Values): SlurmConfig {
  return {
    conf: values.SLURM_CONF,
    partition: values.LOAM_SLURM_PARTITION,
    account: values.LOAM_SLURM_ACCOUNT,
    qos: values.LOAM_SLURM_QOS,
    constraint: values.LOAM_SLURM_CONSTRAINT,
    gpus: values.LOAM_SLURM_GPUS ?? {},
    node: values.LOAM_SLURM_NODE,
    dir: values.LOAM_SLURM_DIR,
    images: values.LOAM_SLURM_IMAGES,
    maxCpus: values.LOAM_SLURM_MAX_CPUS,
    maxMemoryGb: values.LOAM_SLURM_MAX_MEMORY_GB,
    maxJobs: values.LOAM_SLURM_MAX_JOBS,
    users: values.LOAM_SLURM_USERS,
  };
}
