/** A cluster for the chaos tests. */
import type { Victim } from '../kills/killer.ts';
import type { Loss } from './compare.ts';
import type { Say } from './jobs.ts';

/** `to`: when the victim was back. In milliseconds since the epoch. */
export type Kill = { name: string; from: number; to: number };

export type ChaosCluster = AsyncDisposable & {
  /** Name of the cluster in Loam. */
  name: string;
  /** Variables of the server. */
  env: Record<string, string>;
  /** Fields of jobs, such as an image. */
  fields: Record<string, unknown>;
  say: Say;
  /** Address of this machine at which nodes reach servers on it. */
  hostAddress: string;
  victims: readonly Victim[];
  /** Whether one of the kills has certainly ended the attempt, or made its end unknowable. */
  isExplained(loss: Loss, kills: readonly Kill[]): boolean;
  /** What the engine and its nodes still have of jobs. */
  listLeftovers(): Promise<string[]>;
};
