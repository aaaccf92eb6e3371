/** What jobs may request: the catalogue, and the GPU models of machines that it does not have. */
import type pg from 'pg';
import type { Config } from '../../base/config/config.ts';
import { type Catalogue, gpuNames, withModels } from '../../base/hardware.ts';
import { readLiveMachines, readMachines, type WorkerCapacity } from './worker-capacity.ts';

export type OfferDeps = { pool: pg.Pool; config: Pick<Config, 'hardware'> };

/** Adds the models of machines to the catalogue. */
export function offerOf(
  { config }: Pick<OfferDeps, 'config'>,
  machines: readonly Pick<WorkerCapacity, 'gpus'>[],
): Catalogue {
  const found = new Map<string, number>();
  for (const { gpus } of machines)
    for (const [model, count] of Object.entries(gpus))
      found.set(model, Math.max(found.get(model) ?? 0, count));
  return withModels(config.hardware.current, found);
}

/**
 * What a new job may request: only models of the catalogue or of live machines.
 * @param gpu the model of the request: the machines are read only if the catalogue does not have it
 */
export async function readOffer(
  services: OfferDeps,
  gpu: string,
  namespaceId: string,
): Promise<Catalogue> {
  const catalogue = services.config.hardware.current;
  if (gpuNames(catalogue).includes(gpu)) return catalogue;
  return offerOf(services, await readLiveMachines(services, namespaceId));
}

/** What jobs of every namespace may request. */
export async function readPublicOffer(services: OfferDeps): Promise<Catalogue> {
  return offerOf(services, await readLiveMachines(services));
}

/** Also with the models of machines of single namespaces, and of machines that are silent, so that a file of jobs does not become invalid while they restart. */
export async function readLastingOffer(services: OfferDeps): Promise<Catalogue> {
  return offerOf(services, await readMachines(services));
}
