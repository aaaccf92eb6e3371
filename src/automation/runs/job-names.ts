/** Names of the jobs of a run: `test-12`, or `train-12-1` for a combination of a matrix. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import type { PlannedJob } from '../plan.ts';

const MAX_NAME = 100;

/** Chooses names that are free in the namespace. If one is taken, the name of the repository is put in front, then a number at the end. */
export async function chooseNames(
  tx: Prisma.TransactionClient,
  repository: { name: string; namespace: { id: string } },
  run: number,
  planned: readonly PlannedJob[],
): Promise<string[]> {
  const prefix = repository.name.replaceAll(/[^A-Za-z0-9_-]/g, '-');
  const plain = planned.map(({ key, number }) =>
    [key, run, ...(number === null ? [] : [number])].join('-'),
  );
  const chosen: (string | null)[] = plain.map(() => null);
  for (let tries = 0; chosen.includes(null); tries++) {
    const candidates = plain.map((name, i) => chosen[i] ?? variant(name, prefix, tries));
    const rows = await tx.job.findMany({
      where: { namespaceId: repository.namespace.id, name: { in: candidates } },
      select: { name: true },
    });
    const taken = new Set(rows.map(({ name }) => name));
    const used = new Set(chosen.filter((name) => name !== null));
    for (const [i, name] of candidates.entries()) {
      if (chosen[i] !== null || taken.has(name) || used.has(name)) continue;
      used.add(name);
      chosen[i] = name;
    }
  }
  return chosen as string[];
}

function variant(name: string, prefix: string, tries: number): string {
  if (tries === 0) return name;
  const end = tries === 1 ? `-${name}` : `-${name}-${tries}`;
  return prefix.slice(0, MAX_NAME - end.length) + end;
}
