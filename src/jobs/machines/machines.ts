/**
 * Machines that joined by a worker token: who they are, how they are, and how they are drained and removed. They have no access
 * to the database; `worker_id` names the worker that gives them jobs (`src/runners/machines/`).
 *
 * Each change notifies the topic `machines`, so that the worker reads the rows again.
 */
import type pg from 'pg';
import type { JoinedMachine, Prisma } from '../../../prisma/generated/client.ts';
import { AppError, busy, invalid, notFound, unauthenticated } from '../../base/errors.ts';
import { isId, newId } from '../../base/ids.ts';
import { type Origin, SERVER } from '../../identity/audit.ts';
import { hashSecret, matchesHash, newToken, toTakenError } from '../../identity/credentials.ts';
import type { Account, Viewer } from '../../identity/permissions.ts';
import { type Db, inTransaction } from '../../platform/database/client.ts';
import { notifyReaders } from '../../platform/events/outbox.ts';
import type { MachineLoad } from '../../platform/metrics/scrape-metrics.ts';
import {
  JOINED_KIND,
  type MachineFacts,
  type MachineSample,
  SILENCE_MS,
} from '../../runners/machines/protocol.ts';
import { WORKER_SILENCE_S } from '../queue/worker-capacity.ts';
import type { Label } from '../record/labels.ts';
import { canReach, demandAdministration, whereReachable } from './access.ts';
import { type MachineChange, recordedColumns, recordMachineChange } from './events.ts';
import { takeWorkerToken } from './tokens.ts';

export type { MachineEventData } from './events.ts';

const MACHINE_SECRET_PREFIX = 'loam_machine_';

/** Machines that can join with one token, so that a stolen token cannot fill the database. */
const MAX_MACHINES_PER_TOKEN = 1_000;

const NAME = /^[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?$/;

/** Ids of machines that are no joined machine in any configuration. */
const RESERVED_NAMES: ReadonlySet<string> = new Set(['local', 'away']);

type MachineStatus = 'online' | 'silent' | 'draining' | 'drained';

export type MachineJob = {
  attemptId: string;
  jobId: string;
  name: string;
  namespace: string;
  /** Null while it is prepared. */
  startedAt: Date | null;
  cpus: number;
  memoryBytes: number;
  /** Indices of its GPUs; null if unknown. */
  gpus: number[] | null;
};

export type MachineState = {
  id: string;
  name: string;
  /** Name of the namespace whose jobs alone it runs; null: all. */
  namespace: string | null;
  /** Empty: all. */
  regions: string[];
  labels: Label[];
  facts: MachineFacts;
  status: MachineStatus;
  jobs: MachineJob[];
  /** Id of the worker that gives it jobs. */
  workerId: string | null;
  joinedAt: Date;
  lastSeenAt: Date;
  drainSince: Date | null;
  drainDeadline: Date | null;
  history: MachineSample[];
};

type Deps = { db: Db };

/**
 * Lists the machines that the viewer may see, by name. @param namespace name of the only namespace
 * @throws AppError 401, and with `namespace` 403 and 404
 */
export async function listMachines(
  { db }: Deps,
  viewer: Viewer,
  namespace?: string | null,
): Promise<MachineState[]> {
  const where = await whereReachable(db, viewer, 'machine.read', namespace);
  return readMachines(db, where);
}

/** @throws AppError 401, 404 also if the viewer may not see it */
export async function getMachine(
  { db }: Deps,
  viewer: Viewer,
  name: string,
): Promise<MachineState> {
  const where = await whereReachable(db, viewer, 'machine.read');
  const [machine] = isMachineName(name) ? await readMachines(db, { ...where, name }) : [];
  if (!machine) throw notFound('Machine', name);
  return machine;
}

/**
 * The joined machine that an attempt was placed on. Null for other machines, if the viewer may not see it, and after it was
 * removed, also when another machine has joined with its name.
 */
export async function findMachineOfAttempt(
  { db }: Deps,
  viewer: Viewer,
  attempt: { runner: string; machine: string; createdAt: Date },
): Promise<MachineState | null> {
  if (attempt.runner !== JOINED_KIND || viewer.kind === 'anonymous') return null;
  const where = await whereReachable(db, viewer, 'machine.read');
  const joinedAt = { lte: attempt.createdAt };
  const [machine] = await readMachines(db, { ...where, name: attempt.machine, joinedAt });
  return machine ?? null;
}

/**
 * The machine takes no new job. Jobs that still run at the deadline are queued again; without one, they run to their end.
 * @param input.deadlineMinutes 0 to 10,080 (a week) from now
 * @throws AppError 400, 401, 403, 404
 */
export async function drainMachine(
  services: Deps,
  viewer: Viewer,
  { name, deadlineMinutes }: { name: string; deadlineMinutes?: number | null },
): Promise<MachineState> {
  const minutes = deadlineMinutes ?? null;
  if (minutes !== null && (!Number.isInteger(minutes) || minutes < 0 || minutes > 10_080))
    throw invalid('deadlineMinutes', 'must be from 0 to 10080, a week');
  const now = new Date();
  const drainDeadline = minutes === null ? null : new Date(now.getTime() + minutes * 60_000);
  await changeMachine(services, viewer, name, async (tx, { id, drainSince }) => {
    const data = { drainSince: drainSince ?? now, drainDeadline };
    await tx.joinedMachine.update({ where: { id }, data, select: { id: true } });
    return {
      action: 'machine.drain',
      details: { deadline: drainDeadline?.toISOString() ?? null },
      changed: { drainDeadline },
    };
  });
  return getMachine(services, viewer, name);
}

/** The machine takes jobs again. @throws AppError 401, 403, 404 */
export async function resumeMachine(
  services: Deps,
  viewer: Viewer,
  name: string,
): Promise<MachineState> {
  await changeMachine(services, viewer, name, async (tx, { id, drainSince }) => {
    if (drainSince === null) return null;
    const data = { drainSince: null, drainDeadline: null };
    await tx.joinedMachine.update({ where: { id }, data, select: { id: true } });
    return { action: 'machine.resume', changed: { drainDeadline: null } };
  });
  return getMachine(services, viewer, name);
}

/**
 * The machine is refused from now on, and can join again with a worker token.
 * @param input.force also if it runs jobs, which are then lost and queued again
 * @returns its id
 * @throws AppError 401, 403, 404, 409 while it runs jobs
 */
export async function removeMachine(
  services: Deps,
  viewer: Viewer,
  { name, force = false }: { name: string; force?: boolean | null },
): Promise<string> {
  const { id } = await changeMachine(services, viewer, name, async (tx, { id }) => {
    const where = { machine: name, endedAt: null };
    const jobs = await tx.jobAttempt.count({ where });
    if (jobs > 0 && !force)
      throw new AppError(
        'conflict',
        `The machine runs ${jobs} ${jobs === 1 ? 'job' : 'jobs'}: drain it first, or remove it with force`,
      );
    await tx.joinedMachine.delete({ where: { id }, select: { id: true } });
    return { action: 'machine.remove', details: { jobs } };
  });
  return id;
}

/**
 * Adds a machine. It belongs to the namespace of the token, and has its regions and labels.
 * @param input.name 1 to 63 of `a-z0-9._-`, beginning and ending with a letter or digit, unique on the server
 * @returns its id and its secret, which is not stored
 * @throws AppError 400, 401 for a token that is unknown or has expired, 409 for a taken name, 503 while jobs of a machine that was
 *   removed have not ended there
 */
export async function joinMachine(
  { db }: Deps,
  token: string,
  { name, facts }: { name: string; facts: MachineFacts },
  from?: Origin,
): Promise<{ id: string; secret: string }> {
  checkMachineName(name);
  const secret = newToken(MACHINE_SECRET_PREFIX);
  const taken = `name: a machine ${name} exists; remove it, or choose another name with --name`;
  const id = await inTransaction(db, async (tx) => {
    const given = await takeWorkerToken(tx, token);
    if (!given)
      throw unauthenticated('The worker token does not exist, was revoked, or has expired');
    if ((await tx.joinedMachine.count({ where: { tokenId: given.id } })) >= MAX_MACHINES_PER_TOKEN)
      throw new AppError(
        'conflict',
        `At most ${MAX_MACHINES_PER_TOKEN} machines can join with one token`,
      );
    if (await isOtherMachine(tx, name))
      throw new AppError('already_exists', taken, { field: 'name' });
    // Attempts know their machine by its name.
    if ((await tx.jobAttempt.count({ where: { machine: name, endedAt: null } })) > 0)
      throw busy(`Jobs of the machine ${name} that was removed are being ended`);
    const created = await tx.joinedMachine.create({
      data: {
        id: newId('mch'),
        name,
        tokenId: given.id,
        namespaceId: given.namespaceId,
        regions: given.regions,
        labels: given.labels as Label[],
        secretHash: hashSecret(secret),
        facts,
      },
      select: recordedColumns,
    });
    await recordMachineChange(tx, from ? { ...SERVER, from } : SERVER, created, {
      action: 'machine.join',
      details: { hostname: facts.hostname, token: given.id, tokenName: given.name },
    });
    await notifyReaders(tx, 'machines');
    return created.id;
  }).catch((error) => {
    throw toTakenError(error, taken);
  });
  return { id, secret };
}

/** The machine with this id and secret; undefined if it was removed, or its worker token revoked. */
export async function authenticateMachine(
  { db }: Deps,
  id: string,
  secret: string,
): Promise<JoinedMachine | undefined> {
  const row = isId('mch', id) ? await db.joinedMachine.findUnique({ where: { id } }) : null;
  return row && matchesHash(secret, row.secretHash) ? row : undefined;
}

function isMachineName(name: string): boolean {
  return NAME.test(name) && !RESERVED_NAMES.has(name);
}

function checkMachineName(name: string): void {
  if (!NAME.test(name))
    throw invalid(
      'name',
      'must be 1 to 63 of a-z, 0-9, ".", "_" and "-", beginning and ending with a letter or digit',
    );
  if (RESERVED_NAMES.has(name)) throw invalid('name', `"${name}" is reserved; choose another name`);
}

/** Whether a cluster, a container engine or another machine that did not join has the name, on a live worker. */
async function isOtherMachine(tx: Db, name: string): Promise<boolean> {
  const [found] = await tx.$queryRaw<unknown[]>`
    select from workers w, jsonb_array_elements(w.machines) machine
    where machine ->> 'id' = ${name} and not machine ? 'slots'
      and w.heartbeat_at > now() - make_interval(secs => ${WORKER_SILENCE_S})
    limit 1`;
  return found !== undefined;
}

type Change = MachineChange & { changed?: { drainDeadline: Date | null } };

/** @param change returns null if there is nothing to change. @throws AppError 401, 403, 404 */
async function changeMachine(
  { db }: Deps,
  viewer: Viewer,
  name: string,
  change: (tx: Db, machine: { id: string; drainSince: Date | null }) => Promise<Change | null>,
): Promise<{ id: string }> {
  return inTransaction(db, async (tx) => {
    if (isMachineName(name))
      await tx.$queryRaw`select from machines where name = ${name} for update`;
    const machine = isMachineName(name)
      ? await tx.joinedMachine.findUnique({
          where: { name },
          select: { ...recordedColumns, drainSince: true },
        })
      : null;
    if (!machine || !canReach(viewer, 'machine.read', machine)) {
      // Anonymous viewers are told to sign in, as everywhere.
      await whereReachable(tx, viewer, 'machine.read');
      throw notFound('Machine', name);
    }
    const author: Account = demandAdministration(viewer, machine);
    const done = await change(tx, machine);
    if (!done) return machine;
    const { changed, ...made } = done;
    await recordMachineChange(tx, author, { ...machine, ...changed }, made);
    await notifyReaders(tx, 'machines');
    return machine;
  });
}

const machineColumns = {
  id: true,
  name: true,
  namespace: { select: { name: true } },
  regions: true,
  labels: true,
  facts: true,
  workerId: true,
  joinedAt: true,
  lastSeenAt: true,
  drainSince: true,
  drainDeadline: true,
  history: true,
} as const satisfies Prisma.JoinedMachineSelect;

async function readMachines(
  db: Db,
  where: Prisma.JoinedMachineWhereInput,
): Promise<MachineState[]> {
  const rows = await db.joinedMachine.findMany({
    where,
    orderBy: { name: 'asc' },
    select: machineColumns,
  });
  const jobs = await readJobs(
    db,
    rows.map(({ name }) => name),
  );
  return rows.map(({ namespace, labels, facts, history, ...row }) => {
    const own = jobs.filter(({ machine }) => machine === row.name);
    return {
      ...row,
      namespace: namespace?.name ?? null,
      labels: labels as Label[],
      facts: facts as MachineFacts,
      history: history as MachineSample[],
      status: computeStatus(row, own.length),
      jobs: own,
    };
  });
}

/** Reads the loads of all machines, for metrics. */
export async function measureMachines({ pool }: { pool: pg.Pool }): Promise<MachineLoad[]> {
  const { rows } = await pool.query<MachineLoad>(
    `select m.name as machine, m.last_seen_at > now() - make_interval(secs => $1::float8) as "isUp",
       m.drain_since is not null as "isDraining", coalesce(used.jobs, 0)::int as jobs,
       jsonb_array_length(m.facts -> 'gpus') as gpus, coalesce(used.gpus, 0)::int as "gpusUsed"
     from machines m left join (
       select a.machine, count(*) as jobs, sum(j.gpu_count) filter (where j.gpu <> 'none') as gpus
       from job_attempts a join jobs j on j.id = a.job_id where a.ended_at is null group by 1
     ) used on used.machine = m.name`,
    [SILENCE_MS / 1_000],
  );
  return rows;
}

/** Drained machines may be switched off, so they are not reported as silent. */
function computeStatus(
  { drainSince, lastSeenAt }: { drainSince: Date | null; lastSeenAt: Date },
  jobs: number,
): MachineStatus {
  if (drainSince !== null && jobs === 0) return 'drained';
  if (Date.now() - lastSeenAt.getTime() > SILENCE_MS) return 'silent';
  return drainSince === null ? 'online' : 'draining';
}

type JobRow = Omit<MachineJob, 'gpus'> & { machine: string; gpus: string | null };

/** The jobs with an open attempt on the machines, in the order in which they were placed. */
async function readJobs(
  db: Db,
  names: readonly string[],
): Promise<(MachineJob & { machine: string })[]> {
  if (names.length === 0) return [];
  const rows = await db.$queryRaw<JobRow[]>`
    select a.machine, a.id as "attemptId", j.id as "jobId", j.name, n.name as namespace,
      a.started_at as "startedAt", coalesce(a.cpus, j.cpu) as cpus,
      coalesce(a.memory_bytes, (j.memory_gb * 1073741824)::bigint)::float8 as "memoryBytes",
      case when j.gpu = 'none' then '' when jsonb_typeof(a.handle -> 'gpuIndices') = 'string'
        then a.handle ->> 'gpuIndices' end as gpus
    from job_attempts a join jobs j on j.id = a.job_id join namespaces n on n.id = j.namespace_id
    where a.ended_at is null and a.machine = any(${[...names]})
    order by a.id`;
  return rows.map(({ gpus, ...row }) => ({
    ...row,
    gpus: gpus === null ? null : gpus.split(',').filter(Boolean).map(Number),
  }));
}
