/**
 * Records changes of machines: an entry in the audit log, and for a machine of a namespace an event. Machines of all namespaces
 * have no events, because an event belongs to a namespace, and only operators may see these machines.
 */
import type { Prisma } from '../../../prisma/generated/client.ts';
import { type Actor, type AuditAction, recordAudit } from '../../identity/audit.ts';
import type { Db } from '../../platform/database/client.ts';
import { type EventType, publish } from '../../platform/events/outbox.ts';
import type { MachineFacts } from '../../runners/machines/protocol.ts';

/** The data of an event of a machine, at the time of the event. */
export type MachineEventData = {
  machine: {
    id: string;
    name: string;
    namespace: string;
    hostname: string;
    /** When the jobs that still run are queued again; null while it is not drained, and without a deadline. */
    drain_deadline: string | null;
  };
};

/** Audit action → event that the change publishes. */
const EVENT_OF = {
  'machine.join': 'machine.joined',
  'machine.silent': 'machine.silent',
  'machine.online': 'machine.online',
  'machine.drain': 'machine.draining',
  'machine.resume': 'machine.resumed',
  'machine.remove': 'machine.removed',
} as const satisfies Partial<Record<AuditAction, EventType>>;

/** The columns of a machine that a record of its changes needs. */
export const recordedColumns = {
  id: true,
  name: true,
  namespaceId: true,
  namespace: { select: { name: true } },
  facts: true,
  drainDeadline: true,
  token: { select: { auditNamespaceId: true } },
} as const satisfies Prisma.JoinedMachineSelect;
type RecordedMachine = Prisma.JoinedMachineGetPayload<{ select: typeof recordedColumns }>;

export type MachineChange = {
  action: keyof typeof EVENT_OF;
  details?: Prisma.InputJsonObject;
};

/** @param machine after the change, or as it was when it was removed. `tx` is the transaction of the change. */
export async function recordMachineChange(
  tx: Db,
  by: Actor,
  machine: RecordedMachine,
  change: MachineChange,
): Promise<void> {
  await recordAudit(tx, by, {
    ...change,
    namespaceIds: [machine.token.auditNamespaceId],
    subject: machine.id,
    name: machine.name,
  });
  await publishMachineEvent(tx, machine, change.action);
}

/** Publishes the event of a change that has its audit entry; nothing for a machine of all namespaces. */
export async function publishMachineEvent(
  tx: Db,
  { id, name, namespaceId, namespace, facts, drainDeadline }: Omit<RecordedMachine, 'token'>,
  action: keyof typeof EVENT_OF,
): Promise<void> {
  if (namespaceId === null || !namespace) return;
  const data: MachineEventData = {
    machine: {
      id,
      name,
      namespace: namespace.name,
      hostname: (facts as MachineFacts).hostname,
      drain_deadline: drainDeadline?.toISOString() ?? null,
    },
  };
  await publish(tx, { type: EVENT_OF[action], namespaceId, subject: id, data });
}
