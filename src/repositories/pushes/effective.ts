/**
 * Which pushes took effect. Git says it of a push that it has answered; of one whose server was killed it shows in where the
 * refs stand, and in what events tell of them.
 */
import { type Command, NONE } from '../../git/transport/hooks.ts';
import type { Pushed, ToldMove } from './rows.ts';

/** By name: what the ref points at. */
type Refs = ReadonlyMap<string, string>;

type Told = Command & { at: Date };

/** By the ref's name: its moves that events tell of, the latest first. */
type Moves = ReadonlyMap<string, readonly Told[]>;

export type Sorted = {
  /** Those that took effect, oldest first, each with the commands that did. */
  effective: Pushed[];
  /**
   * Those of which it cannot be said yet, and that can wait: a ref of theirs stands where no event and none of the pushes has
   * led it. So another server has let a push pass that is not recorded, perhaps one that went on from theirs.
   */
  open: ReadonlySet<Pushed>;
};

/**
 * Of a push that git said nothing of, a command took effect
 *
 * - where a later one of these pushes began to move its ref on;
 * - where an event tells of a move that began there, and none of one that led there: a client that was cut off sends its push
 *   again, hears that all is up to date, and sends its next to the server that has the repository by then;
 * - where its ref stands where it was to be moved, and neither a later push nor an event has moved it there.
 *
 * A push that is sent again may come to another server while git is still at the first: of the two one moves the ref, and one
 * event is to tell of it. When the note of the first was finished between the move and its record, that event is there: so of
 * a push that git has spoken of, a command is left out of which an event tells that is younger than the push.
 *
 * @param pushes the oldest first
 * @param told the latest first
 */
export function sortPushes(
  pushes: readonly Pushed[],
  refs: Refs,
  told: readonly ToldMove[],
): Sorted {
  const moves = movesOf(told);
  const open = openOf(pushes, refs, moves);
  const later = new Map<string, Set<string>>();
  /** Refs that a later push has moved to where they stand. */
  const explained = new Set<string>();
  /** Whether an event that is as young tells of it, and none of a later move. */
  const isLast = (command: Command, since = 0) =>
    isToldSince(moves.get(command.ref)?.slice(0, 1) ?? [], command, since);
  const isTold = (command: Command) => {
    const { ref, before } = command;
    if (!isLast(command)) return false;
    // Unless one of these has moved it back meanwhile.
    const others = pushes.flatMap(({ commands }) => commands);
    return !others.some((other) => other.ref === ref && other.after === before);
  };
  const effective: Pushed[] = [];
  for (const push of pushes.toReversed()) {
    const since = Date.parse(push.at);
    const moved =
      push.updated ??
      push.commands.filter((command) => {
        const { ref, after } = command;
        if (later.get(ref)?.has(after) || isMovedOn(command, since, moves)) return true;
        return stands(refs, command) && !explained.has(ref) && !isTold(command);
      });
    for (const command of moved) {
      const { ref, before } = command;
      later.set(ref, (later.get(ref) ?? new Set()).add(before));
      if (stands(refs, command)) explained.add(ref);
    }
    const commands = push.updated?.filter((command) => !isLast(command, since)) ?? moved;
    if (commands.length > 0 && !open.has(push)) effective.unshift({ ...push, commands });
  }
  return { effective, open };
}

function openOf(pushes: readonly Pushed[], refs: Refs, moves: Moves): ReadonlySet<Pushed> {
  const leads = new Set(pushes.flatMap(({ commands }) => commands.map(placeOf)));
  const isOpen = ({ ref, before, after }: Command) => {
    const place = refs.get(ref) ?? NONE;
    if (place === before || leads.has(placeOf({ ref, after: place }))) return false;
    // Its own event may be the last, when its note has outlived that.
    const last = moves.get(ref)?.find((move) => move.before !== before || move.after !== after);
    return last?.after !== place;
  };
  const open = pushes.filter(
    ({ canWait, updated, commands }) => canWait && updated === null && commands.some(isOpen),
  );
  return new Set(open);
}

function movesOf(told: readonly ToldMove[]): Moves {
  const moves = new Map<string, Told[]>();
  for (const { refs, at } of told)
    for (const { ref, before, after } of refs) {
      const all = moves.get(ref) ?? [];
      all.push({ ref, before: before ?? NONE, after: after ?? NONE, at });
      moves.set(ref, all);
    }
  return moves;
}

/** Whether a move that is told of, and younger, began where the command leads, and no move led there that is told of. */
function isMovedOn(command: Command, since: number, moves: Moves): boolean {
  const all = moves.get(command.ref) ?? [];
  if (isToldSince(all, command, since)) return false;
  return all.some(
    (move, i) =>
      move.before === command.after &&
      move.at.getTime() >= since &&
      all[i + 1]?.after !== move.before,
  );
}

function isToldSince(all: readonly Told[], { before, after }: Command, since: number): boolean {
  return all.some(
    (move) => move.before === before && move.after === after && move.at.getTime() >= since,
  );
}

function stands(refs: Refs, { ref, after }: Command): boolean {
  return (refs.get(ref) ?? NONE) === after;
}

function placeOf({ ref, after }: Pick<Command, 'ref' | 'after'>): string {
  return `${ref} ${after}`;
}
