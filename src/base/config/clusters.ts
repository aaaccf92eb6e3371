/**
 * The clusters that a worker drives: the one of `LOAM_RUNNER`, or the engines in the YAML file of `LOAM_CLUSTERS`:
 *
 *   engines:
 *     - name: hpc
 *       kind: slurm
 *       regions: [eu-west-1]
 *       options: { partition: gpu, gpus: { A100-80GB: "gpu:a100:4" }, maxJobs: 50 }
 *     - kind: process
 */
import { readFileSync } from 'node:fs';
import { parse as parseYaml } from 'yaml';
import { z } from 'zod';
import { type KubernetesConfig, kubernetesOptions } from './kubernetes.ts';
import { type SlurmConfig, slurmOptions } from './slurm.ts';

export type ClusterConfig = {
  /** Stored with attempts, and the name of the folder of their files. */
  name: string;
  /** The regions whose jobs run there; unset: all. */
  regions?: readonly string[] | undefined;
} & ({ kind: 'slurm'; options: SlurmConfig } | { kind: 'kubernetes'; options: KubernetesConfig });

/** The machines that Loam manages itself, between the clusters. */
export type OwnMachines = {
  runner: 'auto' | 'docker' | 'process';
  regions?: readonly string[] | undefined;
  /** How many clusters come before them: a job goes to the first engine that can run it. */
  position: number;
};

export type Engines = { clusters: ClusterConfig[]; own: OwnMachines | null };

/** Runners have these names already. */
const RESERVED = ['local', 'auto', 'docker', 'process', 'joined', 'none'];

const name = z
  .string()
  .regex(/^[a-z0-9][a-z0-9-]{0,30}$/, 'must have lower-case letters, digits and hyphens only')
  .refine((text) => !RESERVED.includes(text), `must not be ${RESERVED.join(', ')}`);
const regions = z.array(z.string()).min(1).optional();

const engine = z.discriminatedUnion('kind', [
  z.strictObject({ kind: z.literal('process'), regions }),
  z.strictObject({ kind: z.literal('docker'), regions }),
  z.strictObject({ kind: z.literal('slurm'), name, regions, options: slurmOptions.prefault({}) }),
  z.strictObject({
    kind: z.literal('kubernetes'),
    name,
    regions,
    options: kubernetesOptions.prefault({}),
  }),
]);

const file = z.strictObject({ engines: z.array(engine).min(1) }).superRefine(({ engines }, ctx) => {
  const refuse = (index: number, field: string, message: string) =>
    ctx.addIssue({ code: 'custom', path: ['engines', index, field], message });
  const seen = new Set<string>();
  for (const [index, one] of engines.entries()) {
    const id = 'name' in one ? one.name : one.kind;
    if (seen.has(id)) refuse(index, 'name' in one ? 'name' : 'kind', `${id} is listed twice`);
    seen.add(id);
  }
  const own = engines.filter(({ kind }) => kind === 'process' || kind === 'docker');
  if (new Set(own.map((one) => JSON.stringify(one.regions))).size > 1)
    refuse(
      engines.indexOf(own[1] as (typeof own)[0]),
      'regions',
      'must be the same for process and docker, which run on the same machines',
    );
});

/** @param known the regions of the catalogue @throws Error that names the place in the file */
export function readEnginesFile(path: string, known: readonly string[]): Engines {
  const { data, error } = file.safeParse(parseYaml(readFileSync(path, 'utf8')));
  if (error) {
    const [issue] = error.issues;
    const at = issue?.path.map((part) =>
      typeof part === 'number' ? `[${part}]` : `.${String(part)}`,
    );
    throw new Error(`${path}: ${at?.join('').slice(1) || 'the file'}: ${issue?.message}`);
  }
  const { engines } = data;
  for (const [index, { regions = [] }] of engines.entries())
    for (const [i, region] of regions.entries())
      if (!known.includes(region))
        throw new Error(
          `${path}: engines[${index}].regions[${i}]: must be one of ${known.join(', ')}`,
        );
  const isOwn = ({ kind }: (typeof engines)[0]) => kind === 'process' || kind === 'docker';
  const own = engines.filter(isOwn);
  const [first] = own;
  return {
    clusters: engines.filter((one): one is Extract<typeof one, { name: string }> => !isOwn(one)),
    own: first
      ? {
          runner: own.length === 2 ? 'auto' : (first.kind as 'docker' | 'process'),
          regions: first.regions,
          position: engines.indexOf(first),
        }
      : null,
  };
}
