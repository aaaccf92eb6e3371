/** The record of a push: what the database knows of a repository, brought up to what is on disk. */
import type { Prisma } from '../../prisma/generated/client.ts';
import { inTransaction } from '../db.ts';
import { publish } from '../events.ts';
import { type Command, NONE } from '../git/hooks.ts';
import { setHead } from '../git/refs.ts';
import type { Services } from '../services.ts';
import { type Measures, measure } from './measure.ts';

/** The note of a push that was let pass and is not recorded yet. */
export type BegunPush = { kind: 'push'; pusher: string; commands: Command[] };

/** Refs named in the event; of those beyond, only the number is. */
const MAX_NAMED = 50;

/**
 * Measures the repository and tells of the push, in one transaction. The row stays locked meanwhile, so that
 * of two pushes the later one writes last. Does nothing when no command took effect, or the repository is gone.
 */
export async function recordPush(
  services: Pick<Services, 'db' | 'git' | 'log'>,
  { id, pusher, commands }: { id: string } & Omit<BegunPush, 'kind'>,
): Promise<void> {
  const { db, git } = services;
  const row = await db.repository.findUnique({ where: { id }, select: { defaultBranch: true } });
  if (!row) return;
  // Once without the lock: what it finds out is kept by commit, so that little is left to do under it.
  const { refs } = await measure(services, { id, ...row });
  const effective = commands.filter(({ ref, after }) => (refs.get(ref) ?? NONE) === after);
  if (effective.length === 0) return;

  await inTransaction(db, async (tx) => {
    const now = new Date();
    const locked = await lock(tx, id);
    if (!locked) return;
    const defaultBranch = adopted(locked, effective, refs) ?? locked.defaultBranch;
    const { refs: _, ...measures } = await measure(services, { id, defaultBranch });
    if (defaultBranch !== locked.defaultBranch) await setHead(git.disk.pathOf(id), defaultBranch);
    await tx.repository.update({
      where: { id },
      data: { ...measures, defaultBranch, pushedAt: now, updatedAt: now },
      select: { id: true },
    });
    const { name, namespaceId, namespace } = locked;
    await publish(tx, {
      type: 'repository.pushed',
      namespaceId,
      subject: id,
      data: {
        id,
        name,
        namespace: namespace.name,
        fullName: `${namespace.name}/${name}`,
        pusher,
        refCount: effective.length,
        refs: effective.slice(0, MAX_NAMED),
      },
    });
  });
}

async function lock(tx: Prisma.TransactionClient, id: string) {
  const count = await tx.$executeRaw`
    select from repositories where id = ${id} for no key update`;
  if (count === 0) return null;
  return tx.repository.findUniqueOrThrow({
    where: { id },
    select: {
      name: true,
      namespaceId: true,
      defaultBranch: true,
      branchCount: true,
      namespace: { select: { name: true } },
    },
    relationLoadStrategy: 'join',
  });
}

/** The first branch of an empty repository becomes its default when the one it was to have was not pushed. */
function adopted(
  { branchCount, defaultBranch }: { branchCount: number; defaultBranch: string },
  commands: Command[],
  refs: Measures['refs'],
): string | undefined {
  if (branchCount > 0 || refs.has(`refs/heads/${defaultBranch}`)) return undefined;
  const first = commands.find(({ ref, after }) => ref.startsWith('refs/heads/') && after !== NONE);
  return first?.ref.slice('refs/heads/'.length);
}
