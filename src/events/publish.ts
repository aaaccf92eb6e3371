/**
 * Writing events, and waking who reads them.
 *
 * A state change writes its event in its own transaction (`publish`), so neither exists without the other.
 * Readers keep a cursor and read the table (`read.ts`); NOTIFY only tells them when to look again, so a lost call
 * delays a reader by one idle period and loses nothing.
 */
import type { Prisma } from '../../prisma/generated/client.ts';
import { newId } from '../ids.ts';
import type { Topic } from './bus.ts';

/** Every transition of a job, and what happens to repositories. Webhooks send some of them under other names. */
export type EventType =
  | `job.${'queued' | 'running' | 'succeeded' | 'failed' | 'cancelled' | 'timed_out' | 'deleted'}`
  | `repository.${'created' | 'renamed' | 'transferred' | 'updated' | 'pushed' | 'deleted'}`;

export type NewEvent = {
  /** Chosen beforehand by who may come to write it twice: ids are unique. Default: a new one. */
  id?: string;
  type: EventType;
  namespaceId: string;
  /** The id of the job or repository. */
  subject: string;
  /** What readers need of the state at that moment; never a secret or a job's `env`. */
  data: Prisma.InputJsonObject;
};

type Tx = Pick<Prisma.TransactionClient, 'event' | '$executeRaw'>;

/** Writes the event and wakes its readers when the transaction commits. */
export async function publish(tx: Tx, event: NewEvent): Promise<void> {
  await tx.event.create({ data: { id: newId('evt'), ...event }, select: { seq: true } });
  await wake(tx, `namespace:${event.namespaceId}`);
}

/** Wakes who waits for the topic, on every server, when the transaction commits. */
export async function wake(tx: Pick<Tx, '$executeRaw'>, topic: Topic): Promise<void> {
  await tx.$executeRaw`select pg_notify('loam', ${topic})`;
}
