/** Names of the jobs of a run: `test-12`, or `train-12-1` for a combination of a matrix, whose array is `train-12`. */
import type { Db } from '../../platform/database/client.ts';
import type { PlannedJob } from '../plan.ts';

const MAX_NAME = 100;

export type ChosenNames = {
  /** The name of each job, in the order of the plan. */
  names: string[];
  /** The names of jobs without a matrix and of the arrays of the others, by the name in the file. */
  byKey: Map<string, string>;
};

/**
 * Chooses names that are free in the namespace. If a name of a job or of one of its combinations is taken, the name of the
 * repository is put in front, then a number behind.
 */
export async function chooseNames(
  tx: Db,
  repository: { name: string; namespace: { id: string } },
  run: number,
  planned: readonly PlannedJob[],
): Promise<ChosenNames> {
  const prefix = repository.name.replaceAll(/[^A-Za-z0-9_-]/g, '-');
  const namespaceId = repository.namespace.id;
  const open = new Map(Map.groupBy(planned, ({ key }) => key));
  const byKey = new Map<string, string>();
  const used = new Set<string>();
  for (let tries = 0; open.size > 0; tries++) {
    const candidates = [...open].map(([key, jobs]) => {
      const name = variant(`${key}-${run}`, prefix, tries);
      return { key, name, all: [name, ...jobs.map((job) => nameOf(job, name))] };
    });
    const names = candidates.flatMap(({ all }) => all);
    const where = { namespaceId, name: { in: names } };
    const select = { name: true } as const;
    const rows = [
      ...(await tx.job.findMany({ where, select })),
      ...(await tx.jobArray.findMany({ where, select })),
    ];
    const taken = new Set(rows.map(({ name }) => name));
    for (const { key, name, all } of candidates) {
      if (all.some((one) => taken.has(one) || used.has(one))) continue;
      for (const one of all) used.add(one);
      byKey.set(key, name);
      open.delete(key);
    }
  }
  return { names: planned.map((job) => nameOf(job, byKey.get(job.key) ?? '')), byKey };
}

function nameOf({ number }: PlannedJob, name: string): string {
  return number === null ? name : `${name}-${number}`;
}

/** Leaves room for the number of a combination. */
const MAX_BASE = MAX_NAME - '-256'.length;

function variant(name: string, prefix: string, tries: number): string {
  if (tries === 0) return name;
  const end = tries === 1 ? `-${name}` : `-${name}-${tries}`;
  return prefix.slice(0, Math.max(0, MAX_BASE - end.length)) + end;
}
