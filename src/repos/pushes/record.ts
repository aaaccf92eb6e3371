/** The record of pushes: the repository's row, brought up to what is on disk. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import { type Actor, recordAll } from '../../audit/record.ts';
import { type Db, inTransaction } from '../../database/client.ts';
import { publish } from '../../events/publish.ts';
import { PREFIX, setHead } from '../../git/objects/refs.ts';
import { type Command, NONE } from '../../git/transport/hooks.ts';
import { newId } from '../../ids.ts';
import type { Services } from '../../services.ts';
import { payloadColumns, payloadOf, pushPayloadOf, type RefPayload } from '../payload.ts';
import { lockRepository } from '../repos.ts';
import { type Measures, measure } from './measure.ts';

/** The note of a push that was let pass and is not recorded yet. */
export type BegunPush = {
  kind: 'push';
  /**
   * The id of its event: a note that outlived its record, because the server was killed before
   * it was removed, is known by it. Notes of earlier versions have none.
   */
  event?: string;
  pusher: string;
  /** For the audit log. Notes of earlier versions have none. */
  by?: Actor;
  commands: Command[];
  /** When it was let pass, as ISO 8601. */
  at: string;
};

/** A push to record. `updated` is what git said took effect; null when it could not say. */
export type Pushed = BegunPush & { updated: Command[] | null };

/** Of measuring again because another server has recorded meanwhile. */
const TRIES = 5;

/**
 * Measures the repository once and writes an event for each push, oldest first, in one transaction. Git runs before the
 * transaction, which is short, because events of others wait for its end (`events/read.ts`). So another server,
 * which had the repository before or has it next, may record pushes between the two; what was measured is old then,
 * and is measured again.
 *
 * Does nothing when no push took effect, or the repository is gone. A push that is recorded again gets no second
 * event.
 */
export async function recordPushes(
  services: Pick<Services, 'db' | 'git' | 'log'>,
  id: string,
  pushes: readonly Pushed[],
): Promise<void> {
  for (let tries = 1; !(await recordMeasured(services, id, pushes)); tries++)
    if (tries === TRIES) throw new Error('other servers record pushes again and again');
}

/** @returns whether it is done: not, when another record was written meanwhile */
async function recordMeasured(
  services: Pick<Services, 'db' | 'git' | 'log'>,
  id: string,
  pushes: readonly Pushed[],
): Promise<boolean> {
  const { db, git } = services;
  const row = await db.repository.findUnique({
    where: { id },
    select: { defaultBranch: true, branchCount: true, records: true },
  });
  if (!row) return true;
  const dir = git.disk.pathOf(id);
  const told = await lastMoves(db, id, pushes);
  const { refs, ...measures } = await measure(services, id, (refs) =>
    defaultBranchOf(row, effectiveOf(pushes, refs, told), refs),
  );
  const effective = effectiveOf(pushes, refs, told);
  if (effective.length === 0) return true;
  if (measures.defaultBranch !== row.defaultBranch) await setHead(dir, measures.defaultBranch);

  return inTransaction(db, async (tx) => {
    const locked = await lock(tx, id);
    if (!locked) return true;
    if (locked.records !== row.records) return false;
    // A record that was late must not turn these back.
    const at = new Date(effective.at(-1)?.at ?? Date.now());
    const pushedAt = latest(at, locked.pushedAt);
    const updatedAt = latest(pushedAt, locked.updatedAt);
    const sizeBytes = BigInt(measures.sizeBytes) + locked.largeBytes;
    const updated = await tx.repository.update({
      where: { id },
      data: { ...measures, sizeBytes, pushedAt, updatedAt, records: { increment: 1 } },
      select: payloadColumns,
    });
    const { namespaceId, namespace } = locked;
    const repository = payloadOf(updated, namespace.name);
    const written = await eventsAmong(tx, effective);
    const fresh = effective
      .filter(({ event }) => !event || !written.has(event))
      .map((one) => ({ ...one, push: pushPayloadOf(one.pusher, one.commands) }));
    for (const { event, push } of fresh) {
      await publish(tx, {
        id: event ?? newId('evt'),
        type: 'repository.pushed',
        namespaceId,
        subject: id,
        data: { repository, push },
      });
    }
    await recordAll(
      tx,
      fresh.map(({ pusher, by, push: { ref_count, refs } }) => ({
        by: by ?? { userId: null, username: pusher, credential: null },
        action: 'repository.push',
        namespaceIds: [namespaceId],
        subject: id,
        name: updated.name,
        details: { ref_count, refs },
      })),
    );
    return true;
  });
}

/** The events of these pushes that are there already. The lock on the repository keeps others from adding to them. */
async function eventsAmong(
  tx: Prisma.TransactionClient,
  pushes: readonly Pushed[],
): Promise<Set<string>> {
  const ids = pushes.flatMap(({ event }) => event ?? []);
  const found = await tx.event.findMany({ where: { id: { in: ids } }, select: { id: true } });
  return new Set(found.map(({ id }) => id));
}

async function lock(tx: Prisma.TransactionClient, id: string) {
  if (!(await lockRepository(tx, id))) return null;
  return tx.repository.findUniqueOrThrow({
    where: { id },
    select: {
      namespaceId: true,
      records: true,
      largeBytes: true,
      pushedAt: true,
      updatedAt: true,
      namespace: { select: { name: true } },
    },
    relationLoadStrategy: 'join',
  });
}

function latest(one: Date, other: Date | null): Date {
  return other && other > one ? other : one;
}

/** As many events are looked through for those that moved a ref last. */
const EVENTS_READ = 100;
const YOUNG_EVENTS_READ = 20;

type Told = Command & { at: Date };

/**
 * The last move of each ref that an event tells of, by the ref's name. Where git said what all of the pushes did, only
 * events matter that are younger than they: seldom one, so the data of no other is read.
 */
async function lastMoves(
  db: Db,
  id: string,
  pushes: readonly Pushed[],
): Promise<Map<string, Told>> {
  const isKnown = pushes.every(({ updated }) => updated !== null);
  const since = isKnown
    ? new Date(Math.min(...pushes.map(({ at }) => Date.parse(at))))
    : new Date(0);
  const rows = await db.$queryRaw<{ refs: RefPayload[] | null; at: Date }[]>`
    select coalesce(data -> 'push' -> 'refs', data -> 'refs') as refs, timestamp as at
    from (
      select * from events where subject = ${id} and type = 'repository.pushed'
      order by xid desc, seq desc limit ${isKnown ? YOUNG_EVENTS_READ : EVENTS_READ}
    ) latest
    where timestamp >= ${since} order by xid desc, seq desc`;
  const moves = new Map<string, Told>();
  for (const { refs, at } of rows)
    for (const { ref, before, after } of refs ?? [])
      if (!moves.has(ref))
        moves.set(ref, { ref, before: before ?? NONE, after: after ?? NONE, at });
  return moves;
}

/**
 * The pushes that took effect, each with the commands that did. Of one that git said nothing of, a command did
 * where a later one of these pushes began to move its ref on; or when its ref stands where it was to be moved, and
 * neither a later push nor an event has moved it there. A client that was cut off sends its push again, perhaps to
 * another server while git is still at the first: of the two one moves the ref, and one event is to tell of it. When the
 * note of the first was finished between the move and its record, that event is there: so of a push that git has spoken
 * of, a command is left out of which an event tells that is younger than the push.
 */
function effectiveOf(
  pushes: readonly Pushed[],
  refs: Measures['refs'],
  told: ReadonlyMap<string, Told>,
): Pushed[] {
  const later = new Map<string, Set<string>>();
  /** Refs that a later push has moved to where they stand. */
  const explained = new Set<string>();
  const standsAt = ({ ref, after }: Command) => (refs.get(ref) ?? NONE) === after;
  const toldOf = ({ ref, before, after }: Command) => {
    const last = told.get(ref);
    return last?.before === before && last.after === after ? last : undefined;
  };
  const isToldSince = (command: Command, at: string) =>
    (toldOf(command)?.at.getTime() ?? 0) >= Date.parse(at);
  const isTold = (command: Command) => {
    const { ref, before } = command;
    if (!toldOf(command)) return false;
    // Unless one of these has moved it back meanwhile.
    const moves = pushes.flatMap(({ commands }) => commands);
    return !moves.some((other) => other.ref === ref && other.after === before);
  };
  const effective: Pushed[] = [];
  for (const push of pushes.toReversed()) {
    const moved =
      push.updated ??
      push.commands.filter(
        (command) =>
          (standsAt(command) && !explained.has(command.ref) && !isTold(command)) ||
          later.get(command.ref)?.has(command.after),
      );
    for (const command of moved) {
      const { ref, before } = command;
      later.set(ref, (later.get(ref) ?? new Set()).add(before));
      if (standsAt(command)) explained.add(ref);
    }
    const commands = push.updated?.filter((command) => !isToldSince(command, push.at)) ?? moved;
    if (commands.length > 0) effective.unshift({ ...push, commands });
  }
  return effective;
}

/** Where there is a choice, for an empty repository that was to have another default branch. */
const USUAL = ['main', 'master'];

/**
 * The default branch stays, unless the repository was empty and what was pushed to it lacks that branch: then
 * it is the usual one of the branches of the first push, else the first.
 */
function defaultBranchOf(
  { branchCount, defaultBranch }: { branchCount: number; defaultBranch: string },
  effective: readonly Pushed[],
  refs: Measures['refs'],
): string {
  if (branchCount > 0 || refs.has(PREFIX.branch + defaultBranch)) return defaultBranch;
  for (const { commands } of effective) {
    const pushed = commands
      .filter(({ ref, after }) => after !== NONE && ref.startsWith(PREFIX.branch) && refs.has(ref))
      .map(({ ref }) => ref.slice(PREFIX.branch.length));
    const chosen = USUAL.find((name) => pushed.includes(name)) ?? pushed[0];
    if (chosen !== undefined) return chosen;
  }
  return defaultBranch;
}
