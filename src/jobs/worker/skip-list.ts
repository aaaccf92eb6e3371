/** Jobs that had their turn and could not be taken, because somebody else has locked them: who cancels one, for example. */
import type { Waiting } from './claim.ts';

/** Whom one look at the queue passes over from then on, by their ids: else whoever comes next would wait for them. */
export type Locked = {
  jobs: ReadonlySet<string>;
  namespaces: ReadonlySet<string>;
  /** Those of `admitted` that were not claimed. */
  add(admitted: readonly Waiting[], claims: readonly { jobId: string }[]): void;
};

/** Of one namespace, whose jobs may all be locked, as those of a repository that is being deleted. */
const MOST_OF_NAMESPACE = 8;

export function openSkipList(): Locked {
  const jobs = new Set<string>();
  const namespaces = new Set<string>();
  const counts = new Map<string, number>();
  return {
    jobs,
    namespaces,
    add(admitted, claims) {
      const claimed = new Set(claims.map(({ jobId }) => jobId));
      for (const { id, namespaceId } of admitted) {
        if (claimed.has(id)) continue;
        jobs.add(id);
        const count = (counts.get(namespaceId) ?? 0) + 1;
        counts.set(namespaceId, count);
        if (count >= MOST_OF_NAMESPACE) namespaces.add(namespaceId);
      }
    },
  };
}
