/**
 * Decides which pushes took effect. Git reports this for a push that it finished. For a push whose server was killed,
 * it is inferred from the current refs and from the recorded events.
 */
import { type ReceivedRefUpdate, ZERO_ID } from '../../git/transport/hooks.ts';
import type { PushToRecord, RecordedPush } from './rows.ts';

/** Ref name → object id. */
type Refs = ReadonlyMap<string, string>;

type RecordedUpdate = ReceivedRefUpdate & { at: Date };

/** Ref name → its recorded updates, latest first. */
type RecordedUpdates = ReadonlyMap<string, readonly RecordedUpdate[]>;

type ClassifiedPushes = {
  /** Pushes that took effect, oldest first, each with only the commands that did. */
  effective: PushToRecord[];
  /**
   * Pushes that cannot be decided yet and can wait: one of their refs has a value that no event and none of these
   * pushes explains. So a different server accepted a push that is not recorded yet, perhaps one based on these.
   */
  undecided: ReadonlySet<PushToRecord>;
};

/**
 * For a push without a report from git, a command took effect
 *
 * - if a later push of this list started from its result;
 * - if an event records an update that starts from its result, and no event records the update that leads to it: a
 *   client whose connection broke retries its push, is told that everything is up to date, and sends its next push to
 *   the server that has the repository by then;
 * - if its ref has the value that the command set, and neither a later push nor an event set it.
 *
 * A retried push may reach a different server while git still runs the first request. Only one of the two updates the
 * ref, and only one event may record it. If the first request was recorded by recovery, its event exists already. So
 * for a push that git has reported on, commands are left out that an event younger than the push records.
 *
 * @param pushes the oldest first
 * @param recorded the latest first
 */
export function classifyPushes(
  pushes: readonly PushToRecord[],
  refs: Refs,
  recorded: readonly RecordedPush[],
): ClassifiedPushes {
  const updates = groupByRef(recorded);
  const undecided = findUndecided(pushes, refs, updates);
  const later = new Map<string, Set<string>>();
  /** Refs whose current value is the result of a later push. */
  const explained = new Set<string>();
  /** Whether the latest recorded update of the ref is this command, no older than `since`. */
  const isLatestRecorded = (command: ReceivedRefUpdate, since = 0) =>
    isRecordedSince(updates.get(command.ref)?.slice(0, 1) ?? [], command, since);
  const isRecorded = (command: ReceivedRefUpdate) => {
    const { ref, before } = command;
    if (!isLatestRecorded(command)) return false;
    // Unless one of these pushes moved the ref back in between.
    const allCommands = pushes.flatMap(({ commands }) => commands);
    return !allCommands.some((other) => other.ref === ref && other.after === before);
  };
  const effective: PushToRecord[] = [];
  for (const push of pushes.toReversed()) {
    const since = Date.parse(push.at);
    const applied =
      push.updated ??
      push.commands.filter((command) => {
        const { ref, after } = command;
        if (later.get(ref)?.has(after) || isContinued(command, since, updates)) return true;
        return isCurrent(refs, command) && !explained.has(ref) && !isRecorded(command);
      });
    for (const command of applied) {
      const { ref, before } = command;
      later.set(ref, (later.get(ref) ?? new Set()).add(before));
      if (isCurrent(refs, command)) explained.add(ref);
    }
    const commands =
      push.updated?.filter((command) => !isLatestRecorded(command, since)) ?? applied;
    if (commands.length > 0 && !undecided.has(push)) effective.unshift({ ...push, commands });
  }
  return { effective, undecided };
}

function findUndecided(
  pushes: readonly PushToRecord[],
  refs: Refs,
  updates: RecordedUpdates,
): ReadonlySet<PushToRecord> {
  const explained = new Set(pushes.flatMap(({ commands }) => commands.map(refValueKey)));
  const isUndecided = ({ ref, before, after }: ReceivedRefUpdate) => {
    const value = refs.get(ref) ?? ZERO_ID;
    if (value === before || explained.has(refValueKey({ ref, after: value }))) return false;
    // The latest event may be the push's own, if its note outlived the record.
    const last = updates.get(ref)?.find((move) => move.before !== before || move.after !== after);
    return last?.after !== value;
  };
  const undecided = pushes.filter(
    ({ canWait, updated, commands }) => canWait && updated === null && commands.some(isUndecided),
  );
  return new Set(undecided);
}

function groupByRef(recorded: readonly RecordedPush[]): RecordedUpdates {
  const updates = new Map<string, RecordedUpdate[]>();
  for (const { refs, at } of recorded)
    for (const { ref, before, after } of refs) {
      const update = { ref, before: before ?? ZERO_ID, after: after ?? ZERO_ID, at };
      updates.getOrInsert(ref, []).push(update);
    }
  return updates;
}

/**
 * Whether a younger recorded update starts from the result of the command, while no recorded update leads to that
 * value.
 */
function isContinued(command: ReceivedRefUpdate, since: number, updates: RecordedUpdates): boolean {
  const all = updates.get(command.ref) ?? [];
  if (isRecordedSince(all, command, since)) return false;
  return all.some(
    (move, i) =>
      move.before === command.after &&
      move.at.getTime() >= since &&
      all[i + 1]?.after !== move.before,
  );
}

function isRecordedSince(
  all: readonly RecordedUpdate[],
  { before, after }: ReceivedRefUpdate,
  since: number,
): boolean {
  return all.some(
    (move) => move.before === before && move.after === after && move.at.getTime() >= since,
  );
}

function isCurrent(refs: Refs, { ref, after }: ReceivedRefUpdate): boolean {
  return (refs.get(ref) ?? ZERO_ID) === after;
}

function refValueKey({ ref, after }: Pick<ReceivedRefUpdate, 'ref' | 'after'>): string {
  return `${ref} ${after}`;
}
