/**
 * Writing events, and waking their readers.
 *
 * A state change writes its event in its own transaction (`publish`), so neither exists without the other.
 * Readers keep a cursor and read the table (`read.ts`); NOTIFY only says when to look again, so a notification that
 * is lost delays a reader by one idle period, and no event is lost.
 */
import type { Prisma } from '../../../prisma/generated/client.ts';
import { newId } from '../../base/ids.ts';
import { eventNotification, type Notification } from './bus.ts';

/** Every transition of a job, and what happens to repositories. Webhooks send some of them under other names. */
export type EventType =
  | `job.${'queued' | 'running' | 'succeeded' | 'failed' | 'cancelled' | 'timed_out' | 'deleted'}`
  | `repository.${'created' | 'renamed' | 'transferred' | 'updated' | 'pushed' | 'deleted'}`;

export type NewEvent = {
  /** Chosen beforehand by a writer that may try twice: the second is refused, as ids are unique. Default: a new one. */
  id?: string;
  type: EventType;
  namespaceId: string;
  /** The id of the job or repository. */
  subject: string;
  /** The subject at that moment, whole, so that readers load nothing; under 20 kB, never a secret or a job's `env`. */
  data: Prisma.InputJsonObject;
};

type Tx = Pick<Prisma.TransactionClient, 'event' | '$executeRaw'>;

/** Writes the event and wakes its readers when the transaction commits. */
export async function publish(tx: Tx, event: NewEvent): Promise<void> {
  await tx.event.create({ data: { id: newId('evt'), ...event }, select: { seq: true } });
  await wake(tx, eventNotification(event.namespaceId, event.subject));
}

/** Wakes the readers of a topic, on every server, when the transaction commits. */
export async function wake(tx: Pick<Tx, '$executeRaw'>, what: Notification): Promise<void> {
  await tx.$executeRaw`select pg_notify('loam', ${what})`;
}
