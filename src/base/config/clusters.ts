/** The clusters that a worker drives. */
import type { KubernetesConfig } from './kubernetes.ts';
import type { SlurmConfig } from './slurm.ts';

export type ClusterConfig = {
  /** Stored with attempts, and the name of the folder of their files. */
  name: string;
  /** The regions whose jobs run there; unset: all. */
  regions?: readonly string[];
} & ({ kind: 'slurm'; options: SlurmConfig } | { kind: 'kubernetes'; options: KubernetesConfig });
