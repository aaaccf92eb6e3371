/**
 * What machines report: it is stored, with the end of a silence, and decides which worker drives them. One worker gives a machine
 * its jobs at a time, because it counts what is free there. Another one takes over when that worker is dead and nothing of its
 * attempts is left on the machine: until then they may still run for it.
 */
import { isDeepStrictEqual } from 'node:util';
import type { JoinedMachine } from '../../../prisma/generated/client.ts';
import { busy } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import { SERVER } from '../../identity/audit.ts';
import { type Db, inTransaction } from '../../platform/database/client.ts';
import { startLoop } from '../../platform/loop.ts';
import type { MachineSettings } from '../../runners/machines/engine.ts';
import {
  type MachineFacts,
  type MachineReport,
  type MachineSample,
  SILENCE_MS,
} from '../../runners/machines/protocol.ts';
import { WORKER_SILENCE_S } from '../queue/worker-capacity.ts';
import { type MachineChange, recordedColumns, recordMachineChange } from './events.ts';

/** A report is stored when the last stored one is older than this, or says something new. */
const STORE_MS = 15_000;
/** The same for new facts. They change at a start of the program only, unless the machine wants to cost writes. */
const NEW_FACTS_MS = 1_000;
/** Interval of the samples of the history, and how many are kept: an hour. */
const SAMPLE_MS = 60_000;
const MAX_SAMPLES = 60;
/** Interval of the search for machines that have become silent. */
const SILENCE_CHECK_MS = 15_000;

/**
 * Finds the worker that drives the machine, and makes it this process if there is none.
 * @param worker id of this process; null: it runs no jobs
 * @param isEmpty whether nothing of an attempt is left on the machine
 * @throws AppError 503 while no worker can drive it
 */
export async function findDriver(
  { db }: { db: Db },
  machine: Pick<JoinedMachine, 'id' | 'workerId'>,
  worker: string | null,
  isEmpty: boolean,
): Promise<string> {
  if (machine.workerId !== null && machine.workerId === worker) return worker;
  const live = await db.$queryRaw<{ id: string }[]>`
    select id from workers where heartbeat_at > now() - make_interval(secs => ${WORKER_SILENCE_S})
    order by id`;
  const { workerId } = machine;
  if (live.some(({ id }) => id === workerId)) return workerId as string;
  if (workerId !== null && !isEmpty)
    throw busy('The worker that has the jobs of this machine does not answer');
  if (worker === null) {
    const [first] = live;
    if (!first) throw busy('No worker is running');
    return first.id;
  }
  const where = { id: machine.id, workerId };
  const { count } = await db.joinedMachine.updateMany({ where, data: { workerId: worker } });
  if (count === 0) throw busy('Another worker has just begun to drive this machine');
  return worker;
}

/**
 * Refuses a copy of the machine's folder while the machine itself reports: what it has says nothing about the attempts of the
 * machine. After a restart, the machine is accepted a minute after its last report.
 * @param instance of the program that reports
 * @throws AppError 503
 */
export async function requireInstance(
  { db }: { db: Db },
  machine: Pick<JoinedMachine, 'id' | 'instance' | 'lastSeenAt'>,
  instance: string,
): Promise<void> {
  if (machine.instance === instance) return;
  const silentSince = new Date(Date.now() - SILENCE_MS);
  const where = {
    id: machine.id,
    OR: [{ instance: null }, { lastSeenAt: { lt: silentSince } }],
  };
  const { count } = await db.joinedMachine.updateMany({
    where,
    data: { instance, lastSeenAt: new Date() },
  });
  if (count === 0)
    throw busy(
      'Another program reports with the secret of this machine. After a restart of the machine, this ends within a minute; on a copy of it, remove machine.json and join again',
    );
}

/** Stores what the machine reports, unless that was done a moment ago. */
export async function storeReport(
  { db }: { db: Db },
  machine: JoinedMachine,
  { facts, load, attempts }: MachineReport,
): Promise<void> {
  const now = new Date();
  // The database has them as JSON, whose names have another order.
  const hasNewFacts = !isDeepStrictEqual(JSON.parse(JSON.stringify(facts)), machine.facts);
  const storeMs = hasNewFacts ? NEW_FACTS_MS : STORE_MS;
  const isRecent = now.getTime() - machine.lastSeenAt.getTime() < storeMs;
  if (isRecent && machine.silentSince === null) return;
  const history = machine.history as MachineSample[];
  const isDue = now.getTime() - (history.at(-1)?.at ?? 0) >= SAMPLE_MS - STORE_MS;
  const sample: MachineSample = { at: now.getTime(), ...load, jobs: attempts.length };
  const data = {
    lastSeenAt: now,
    silentSince: null,
    ...(hasNewFacts && { facts }),
    ...(isDue && { history: [...history, sample].slice(-MAX_SAMPLES) }),
  };
  if (machine.silentSince === null) {
    await db.joinedMachine.updateMany({ where: { id: machine.id }, data });
    return;
  }
  await inTransaction(db, async (tx) => {
    const where = { id: machine.id, silentSince: { not: null } };
    const { count } = await tx.joinedMachine.updateMany({ where, data });
    if (count > 0) await recordByServer(tx, 'machine.online', [machine.id]);
  });
}

/** Records, on every server, which machines have become silent. */
export function startSilenceLoop({ db, log }: { db: Db; log: Logger }): AsyncDisposable {
  const options = { name: 'Looking for silent machines', every: SILENCE_CHECK_MS, log };
  return startLoop({ ...options, waitsFirst: true }, () => recordSilence({ db }));
}

/** Servers that do it at the same time wait for the lock of the row, and then find nothing. */
export async function recordSilence({ db }: { db: Db }): Promise<void> {
  await inTransaction(db, async (tx) => {
    const silent = await tx.$queryRaw<{ id: string }[]>`
      update machines set silent_since = now()
      where silent_since is null and last_seen_at < now() - make_interval(secs => ${SILENCE_MS / 1_000}::float8)
      returning id`;
    await recordByServer(
      tx,
      'machine.silent',
      silent.map(({ id }) => id),
    );
  });
}

/** Records a change of machines that was made in the same transaction. */
async function recordByServer(
  tx: Db,
  action: MachineChange['action'],
  ids: readonly string[],
): Promise<void> {
  if (ids.length === 0) return;
  const machines = await tx.joinedMachine.findMany({
    where: { id: { in: [...ids] } },
    select: recordedColumns,
  });
  for (const machine of machines) await recordMachineChange(tx, SERVER, machine, { action });
}

export function toSettings(machine: JoinedMachine): MachineSettings {
  const { id, name, namespaceId, regions, instance, facts, drainSince, drainDeadline } = machine;
  return {
    id,
    name,
    namespaceId,
    regions,
    instance: instance ?? '',
    facts: facts as MachineFacts,
    drainSince,
    drainDeadline,
  };
}

/** Reads the settings of the machines that the worker drives. */
export async function readDrivenMachines(
  { db }: { db: Db },
  workerId: string,
): Promise<MachineSettings[]> {
  const rows = await db.joinedMachine.findMany({ where: { workerId } });
  return rows.map(toSettings);
}
