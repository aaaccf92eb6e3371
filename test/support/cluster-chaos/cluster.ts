/** A cluster for the chaos tests. */
import type { Victim } from '../kills/killer.ts';
import type { Loss } from './compare.ts';
import type { Say } from './jobs.ts';
import type { ServerUnderChaos } from './server.ts';

/** `to`: when the victim was back. In milliseconds since the epoch. */
export type Kill = { name: string; from: number; to: number };

export type ChaosCluster = AsyncDisposable & {
  /** Its folder below the data folder of Loam. */
  folder: string;
  /** Variables of the server. */
  env: Record<string, string>;
  /** Fields of the job with this number, such as an image. */
  fieldsOf?(at: number): Record<string, unknown>;
  say: Say;
  /** Address of this machine at which nodes reach servers on it. */
  hostAddress: string;
  victims: readonly Victim[];
  /** Called when Loam runs. */
  join?(loam: ServerUnderChaos): Promise<void>;
  /** Whether one of the kills has certainly ended the attempt, or made its end unknowable. */
  isExplained(loss: Loss, kills: readonly Kill[]): boolean;
  /** How often a supervisor of the attempt was killed of which a restart loses lines; unset: never. */
  countTears?(attempt: string): number;
  /** What the engine and its nodes still have of jobs. */
  listLeftovers(): Promise<string[]>;
};
