type Event = { id: string; type: string; timestamp: string; payload: unknown };

/** The events of an array of jobs in one row, at the place of the newest one. */
export type FoldedEvents = {
  id: string;
  timestamp: string;
  /** The name of the array. */
  array: string;
  /** How many jobs had an event of each type, in the order of their newest events. */
  counts: Map<string, number>;
};

/**
 * Folds the events of each array of jobs. The jobs of an array have one name with an index, and were created at the same
 * time; payloads have no other mark of an array.
 */
export function foldArrays<E extends Event>(events: readonly E[]): (E | FoldedEvents)[] {
  const jobs = new Map<string, Set<string>>();
  for (const event of events) {
    const { key, name } = arrayOf(event) ?? {};
    if (key && name) jobs.set(key, (jobs.get(key) ?? new Set()).add(name));
  }
  const folded = new Map<string, FoldedEvents>();
  return events.flatMap((event): (E | FoldedEvents)[] => {
    const { key, base } = arrayOf(event) ?? {};
    if (!key || !base || (jobs.get(key)?.size ?? 0) < 2) return [event];
    const row = folded.get(key);
    if (row) {
      row.counts.set(event.type, (row.counts.get(event.type) ?? 0) + 1);
      return [];
    }
    const { id, timestamp, type } = event;
    const first = { id, timestamp, array: base, counts: new Map([[type, 1]]) };
    folded.set(key, first);
    return [first];
  });
}

/** Null for events that are not of a job with an index. */
function arrayOf({ type, payload }: Event) {
  if (!type.startsWith('JOB_')) return null;
  const { name, created_at: createdAt } = (payload ?? {}) as Record<string, unknown>;
  const [, base] = /^(.+)-\d+$/.exec(String(name)) ?? [];
  return base === undefined ? null : { base, name: String(name), key: `${base} ${createdAt}` };
}
