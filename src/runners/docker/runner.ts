/**
 * Jobs as containers of a Docker engine, or of any that speaks its API.
 *
 * The attempt's id names its container, which outlives this server and is found again by that name. The folder of the
 * attempt (`place.ts`) is written before the container is made; the engine keeps the log and how it ended.
 */
import { createHash, randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { DockerConfig } from '../../base/config/docker.ts';
import { createLog, type Logger } from '../../base/log.ts';
import { CpuShares } from '../cpu-share.ts';
import { type GpuLedger, openGpuLedger } from '../gpu-ledger.ts';
import {
  GRACE_MS,
  type Handle,
  LOCAL,
  type Machine,
  type Runner,
  RunnerAway,
  type Usage,
} from '../runner.ts';
import {
  type Accounts,
  DEFAULT_UIDS,
  openAccounts,
  type UidRange,
} from '../supervisor/accounts.ts';
import { type Limits, limitsOf, thisMachine } from '../supervisor/limits.ts';
import { openRemoval } from '../supervisor/removal.ts';
import { artifactsOf } from './artifacts.ts';
import { begin, removeContainer, removeUnbegun } from './begin.ts';
import {
  containerName,
  containerOptions,
  LABEL_READER,
  LABEL_WORKER,
  openCreation,
} from './container.ts';
import { watchDiskOf } from './disk.ts';
import { connect } from './engine.ts';
import { type EngineHealth, watchEngine } from './engine-health.ts';
import { type ImagesOptions, openImages } from './images.ts';
import { followLog } from './logs.ts';
import { type NetworkOptions, openNetwork } from './network.ts';
import { findRemains } from './orphans.ts';
import { stateOf } from './outcome.ts';
import { end, type Overseen, PATIENCE_MS, untilEnded } from './oversight.ts';
import { type AttemptRecord, giveFoldersTo, makePlace, readRecord, writeRecord } from './place.ts';
import { makeRecord, openRecordings } from './recordings.ts';
import { makeFoldersIn, sendCheckout } from './remote.ts';
import { openSharedCgroup } from './shared-cgroup.ts';
import { opening } from './start-barrier.ts';
import { openGpuUse, sampleOf } from './usage.ts';
import { openUsers } from './users.ts';

/** An engine does not fail more often in the middle of the same start. An image ends at its gate each time. */
const MOST_REMADE = 3;
/** What ended attempts left, until it is removed. */
const TRASH = '.trash';

export type DockerRunnerOptions = {
  /** Where the folders of attempts lie. */
  dir: string;
  docker: DockerConfig;
  /** Its name in `LOAM_DOCKER_HOSTS`, when it is named there. While it is away, such a one offers nothing. */
  engine?: string;
  images: Omit<ImagesOptions, 'log'>;
  network?: NetworkOptions;
  /** An image that wants root gets it, in its container. */
  root?: boolean;
  /** Between SIGTERM and SIGKILL. */
  graceMs?: number;
  /** How long an engine may be away before those are not waited for any more whose end it would only tell. */
  patienceMs?: number;
  /** For jobs, when this server is root. */
  uids?: UidRange;
  /** Free space on the disk below which the server stops writing, in bytes: who takes most is ended before. */
  diskFloor?: number;
  /** Of this machine, shared with other runners on it; unset: its own. */
  gpus?: GpuLedger;
  /** Of the engine's machine, when that is another: model → how many. */
  gpusElsewhere?: Readonly<Record<string, number>>;
  /** In place of those that follow from what was asked for. */
  limits?: Partial<Limits>;
  log?: Logger;
};

/** Disposing it leaves jobs running, and what is not yet removed to the next start. */
export type DockerRunner = Runner &
  AsyncDisposable & { engine: Pick<EngineHealth, 'facts' | 'missing'> };

export async function openDockerRunner(options: DockerRunnerOptions): Promise<DockerRunner> {
  const { dir, graceMs = GRACE_MS, uids = DEFAULT_UIDS } = options;
  await using cleanup = new AsyncDisposableStack();
  const log = options.log ?? createLog('silent');
  await mkdir(dir, { recursive: true, mode: 0o700 });
  const engine = connect(options.docker, options.engine);
  const presence = cleanup.use(await watchEngine(engine, dir, log));
  const images = openImages(engine, { ...options.images, log });
  const network = await openNetwork(engine, options.network ?? {}, presence.found, log);
  /** Tells the containers of this server from those of others on the same engine. */
  const worker = createHash('sha256').update(dir).digest('hex').slice(0, 16);
  const accounts = await accountsOf(dir, uids);
  const removal = cleanup.use(
    await openRemoval(join(dir, TRASH), (error, what) => log.error({ err: error }, what)),
  );
  const recordings = cleanup.use(await openRecordings(dir));
  const create = openCreation(engine, presence.found);
  const reader = randomUUID();
  const users = openUsers(engine, {
    root: options.root ?? false,
    reserved: uids,
    labels: { [LABEL_WORKER]: worker, [LABEL_READER]: reader },
  });
  const here = options.gpus ?? (await openGpuLedger());
  const elsewhere = await openGpuLedger(options.gpusElsewhere ?? {});
  const gpuUse = openGpuUse(engine);
  const gpusOf = (remote = false) => (remote ? elsewhere : here);
  for (const attempt of (await readdir(dir)).filter((name) => !name.startsWith('.'))) {
    const record = await readRecord(join(dir, attempt), 'attempt');
    if (record) gpusOf(record.remote).hold(attempt, record.gpus);
  }
  const together = openSharedCgroup({
    facts: presence.found,
    name: `loam-${worker}`,
    memoryBytes: options.limits?.allJobsMemoryBytes ?? thisMachine().memoryBytes,
    log,
  });
  cleanup.defer(() => together.remove());
  const cpuShares = new CpuShares();
  const disks = new Map<string, number>();
  const remade = new Map<string, number>();
  /** Wakes who sees an attempt through: it was told to end. */
  const told = new EventTarget();

  const placeOf = (handle: Handle) => join(dir, String(handle.attempt));
  const overseen = (handle: Handle): Overseen => ({
    attempt: String(handle.attempt),
    engine,
    container: containerName(String(handle.attempt)),
    place: placeOf(handle),
    graceMs,
    patienceMs: options.patienceMs ?? PATIENCE_MS,
    recordings,
    isLocal: () => presence.facts?.local ?? false,
  });

  /** An engine that has not answered yet is taken for one of this machine when its socket is here. */
  function machines(): Machine[] {
    const { facts, missing } = presence;
    if (options.engine !== undefined && missing !== undefined) return [];
    if (!facts && !options.docker.host.startsWith('unix:')) return [];
    const { cpus, memoryBytes } = facts ?? thisMachine();
    const remote = facts?.local === false;
    const gpus = gpusOf(remote).models;
    return [{ id: remote ? engine.id : LOCAL, cpus, memoryBytes, gpus }];
  }

  async function gpuPercentOf(attempt: string, { remote, gpus }: AttemptRecord): Promise<number> {
    if (!remote) return here.percentOf(attempt);
    return gpus.length > 0 ? gpuUse.percentOf(containerName(attempt)) : 0;
  }

  async function remove(handle: Handle): Promise<void> {
    const attempt = String(handle.attempt);
    const place = placeOf(handle);
    // It goes last, so there is nothing else either; the engine need not be asked about processes of this machine.
    if (existsSync(place)) await removeAll(attempt, place);
  }

  async function removeAll(attempt: string, place: string): Promise<void> {
    const hasBegun = (await opening(place)) !== null;
    await (hasBegun ? removeContainer : removeUnbegun)(engine, containerName(attempt));
    await recordings.end(attempt);
    await accounts?.release(place);
    for (const gpus of [here, elsewhere]) gpus.release(attempt);
    gpuUse.forget(containerName(attempt));
    cpuShares.forget(attempt);
    disks.delete(attempt);
    await removal.discard(place);
  }

  const owned = cleanup.move();
  return {
    name: 'docker',
    engine: presence,
    get machines() {
      return machines();
    },
    get engineAway() {
      return presence.missing !== undefined;
    },
    ...(network.warning && { warning: network.warning }),

    async prepare(spec, abort) {
      const { id } = spec;
      const handle: Handle = { runner: 'docker', attempt: id };
      const place = join(dir, id);
      if (existsSync(place)) await remove(handle);
      const image = await images.ensure(spec.image, spec.report, abort);
      const facts = await presence.found();
      const remote = !facts.local;
      const limits = { ...limitsOf(spec.hardware, facts), ...options.limits };
      await makePlace(place);
      if (!remote) await makeRecord(place);
      const taken = gpusOf(remote).take(id, spec.hardware);
      const account = await accounts?.reserve(place);
      const owner = await users.ownerOf(
        image,
        account ? { uid: account.uid, gid: account.uid } : null,
        abort,
      );
      await writeRecord(place, 'attempt', {
        machine: spec.machine,
        remote,
        owner,
        timeoutMs: spec.timeoutMs,
        log: spec.log,
        cpus: limits.cpus,
        memoryBytes: limits.memoryBytes,
        diskBytes: limits.diskBytes,
        files: limits.files,
        gpus: taken.map(({ index }) => index),
      });
      const work = join(place, 'work');
      if (spec.checkout) await spec.checkout(work, abort);
      else await mkdir(work);
      abort.throwIfAborted();
      await giveFoldersTo(place, owner);
      const created = containerOptions({
        attempt: id,
        worker,
        place: remote ? null : place,
        image,
        owner,
        command: spec.command,
        env: spec.env,
        gpus: taken.map(({ uuid }) => uuid),
        timeoutMs: spec.timeoutMs,
        graceMs,
        limits,
        parentGroup: await together.parent(),
        log: spec.log,
        network: await network.options(),
        runtime: options.network?.runtime,
      });
      await create(created, image, limits.diskBytes);
      if (remote) {
        const target = { engine, container: containerName(id) };
        await makeFoldersIn(target, owner);
        if (spec.checkout) await sendCheckout(target, place, abort);
        await removal.discard(work);
      }
      abort.throwIfAborted();
      return handle;
    },

    async start(handle, mayBegin = async () => true) {
      const attempt = String(handle.attempt);
      const mayRemake = () => {
        const times = (remade.get(attempt) ?? 0) + 1;
        remade.set(attempt, times);
        return times <= MOST_REMADE;
      };
      return begin({ ...overseen(handle), network, hold: together.hold, mayRemake, mayBegin });
    },

    async attach(handle) {
      const { container, place } = overseen(handle);
      if (!existsSync(place)) return 'gone';
      if (await readRecord(place, 'unstartable')) return 'started';
      const state = await stateOf(engine, container);
      const opened = await opening(place);
      if (!state) return opened ? 'gone' : 'unprepared';
      // On another machine there is no gate: it is noted as open before the start.
      if (state.status === 'created') return 'prepared';
      if (!opened) return state.status === 'ended' ? 'unprepared' : 'prepared';
      return 'started';
    },

    async *logs(handle, cursor, abort) {
      const { container, place } = overseen(handle);
      const record = await readRecord(place, 'attempt');
      if (!record) return;
      const hasEnded = async () => {
        const state = await stateOf(engine, container);
        if (state?.status === 'created') return Boolean(await readRecord(place, 'unstartable'));
        return state?.status !== 'running';
      };
      if ((await opening(place))?.recorded) {
        const attempt = String(handle.attempt);
        // An engine that is away is asked again.
        const isOver = () => hasEnded().catch(unlessAway);
        yield* recordings.logs(attempt, cursor, isOver, abort);
        // Else the engine has what such an image prints, once it has ended.
        if (abort.aborted || !recordings.isUnused(attempt)) return;
      }
      yield* followLog({ engine, container, caps: record.log, hasEnded }, cursor, abort);
    },

    async signal(handle, how) {
      if (!existsSync(placeOf(handle))) return;
      await end(overseen(handle), { how, why: 'asked', at: Date.now() });
      told.dispatchEvent(new Event(String(handle.attempt)));
    },

    async wait(handle, abort) {
      const watching = new AbortController();
      const record = await readRecord(placeOf(handle), 'attempt');
      if (!record) return { kind: 'lost' };
      const { container, place, isLocal } = overseen(handle);
      const disk = watchDiskOf(
        {
          engine,
          container,
          place,
          remote: record.remote ?? false,
          isLocal,
          limits: record,
          floorBytes: options.diskFloor ?? 0,
          measured: (bytes) => void disks.set(String(handle.attempt), bytes),
        },
        AbortSignal.any([abort, watching.signal]),
      )
        .then(async (note) => {
          if (note === null) return;
          await end(overseen(handle), { how: 'KILL', why: 'disk', at: Date.now(), note });
          told.dispatchEvent(new Event(String(handle.attempt)));
        })
        // Written down by then: it is sent when the engine answers.
        .catch((error) =>
          log.error({ err: error, attempt: handle.attempt }, 'a job was not ended'),
        );
      const changed = (signal: AbortSignal) => {
        const { promise, resolve } = Promise.withResolvers<void>();
        const options = { once: true, signal };
        told.addEventListener(String(handle.attempt), () => resolve(), options);
        signal.addEventListener('abort', () => resolve(), { once: true });
        return promise;
      };
      try {
        return await untilEnded(overseen(handle), changed, abort);
      } finally {
        watching.abort();
        await disk;
      }
    },

    async stats(handle) {
      const attempt = String(handle.attempt);
      const record = await readRecord(placeOf(handle), 'attempt');
      const sample = record && (await sampleOf(engine, containerName(attempt)));
      if (!sample) return null;
      const startedAt = (await opening(placeOf(handle)))?.at ?? sample.at - 1_000;
      return {
        cpuPercent: cpuShares.percentOf(attempt, sample, startedAt, record.cpus),
        gpuPercent: await gpuPercentOf(attempt, record),
        memoryBytes: sample.memoryBytes,
        diskBytes: disks.get(attempt) ?? 0,
      } satisfies Usage;
    },

    async artifacts(handle, path) {
      const { container, place } = overseen(handle);
      const record = await readRecord(place, 'attempt');
      if (!record) return null;
      const { owner, remote = false } = record;
      const { firstUid } = await presence.found();
      return artifactsOf({ engine, container, place, owner, remote, firstUid }, path);
    },

    async remove(handle) {
      await remove(handle);
      remade.delete(String(handle.attempt));
    },

    async sweep(keep) {
      const left = await findRemains(engine, { dir, worker, reader, keep });
      const ends = await Promise.allSettled([
        ...left.attempts.map((attempt) => removeAll(attempt, join(dir, attempt))),
        ...left.readers.map((id) => removeContainer(engine, id)),
        ...left.volumes.map((name) => engine.call((docker) => docker.getVolume(name).remove())),
      ]);
      const errors = ends.flatMap((e) => (e.status === 'rejected' ? [e.reason] : []));
      if (errors.length > 0)
        throw new AggregateError(
          errors,
          `${errors.length} containers or volumes cannot be removed`,
        );
    },

    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}

/** Null where ids cannot be had. */
async function accountsOf(dir: string, uids: UidRange): Promise<Accounts | null> {
  const accounts = await openAccounts(uids, dir);
  return accounts && !('missing' in accounts) ? accounts : null;
}

function unlessAway(error: unknown): false {
  if (error instanceof RunnerAway) return false;
  throw error;
}
