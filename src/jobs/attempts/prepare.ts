/** Prepares an attempt on the runner before its start: the checkout with the inputs, the image and the environment. */
import { mkdir, rm } from 'node:fs/promises';
import { join, posix } from 'node:path';
import { Readable } from 'node:stream';
import { AppError } from '../../base/errors.ts';
import { diskLimits } from '../../base/hardware.ts';
import { isDatabaseUnavailable } from '../../platform/database/outage.ts';
import { replacePointersInTar } from '../../repositories/commit-files.ts';
import type { JobValues } from '../../repositories/secrets/secrets.ts';
import {
  type AttemptSpec,
  type Handle,
  MAX_OUTPUT_ENTRIES,
  type MountedFolder,
  type Outcome,
  RunnerUnavailable,
  Unstartable,
  WORKING_DIR,
} from '../../runners/runner.ts';
import {
  CannotExtract,
  extractArtifacts,
  extractTar,
  InputFolder,
  toBytes,
} from '../artifacts/extract.ts';
import type { ArtifactKey } from '../artifacts/store.ts';
import { readCaches } from '../caches/request.ts';
import { findCheckpoint } from '../checkpoints/store.ts';
import { computeOutputLimits } from '../logs/cap.ts';
import { holdOnFailure, isHeldOnFailure } from '../record/failure-hold.ts';
import { readJobCredentials, tokenVariables } from '../record/job-credentials.ts';
import { attemptTimeoutMs } from '../record/limits.ts';
import { isOver, PHASES } from '../record/state.ts';
import { type JobInput, readInputs } from '../requests/inputs.ts';
import { demandReadableInputs, readRepositoryInputs } from '../requests/repository-inputs.ts';
import { recordVolumeUse } from '../volumes/usage.ts';
import { readVolumes, toMounts } from '../volumes/volumes.ts';
import type { Attempt, Deps } from './attempt-row.ts';
import { issueIdTokens } from './id-tokens.ts';
import type { ProgressReporter } from './progress-reporter.ts';
import { restoreCaches } from './restore-caches.ts';
import { isTransient } from './retry.ts';

/**
 * Prepares the attempt. The caller stores the handle when it moves the job to `running`, before the process starts. If that
 * does not happen, the attempt is prepared again.
 * @throws transient errors, so that the caller retries; any other error becomes the outcome of the attempt
 */
export async function prepare(
  deps: Deps,
  attempt: Attempt,
  values: JobValues,
  progress: ProgressReporter,
  ended: AbortSignal,
): Promise<{ handle: Handle } | { outcome: Outcome }> {
  if (ended.aborted) return { outcome: { kind: 'lost' } };
  const { runner, log } = deps;
  const { id, job } = attempt;
  try {
    const files = readJobCredentials(job).idTokens ? await issueIdTokens(deps, id) : {};
    if (files === null) return { outcome: { kind: 'lost' } };
    await demandReadableInputs(deps, job);
    const spec = buildSpec(deps, attempt, values, files, progress);
    await recordVolumeUse(deps, readVolumes(job));
    return { handle: await runner.prepare(spec, ended) };
  } catch (error) {
    if (ended.aborted) return { outcome: { kind: 'lost' } };
    if (isDatabaseUnavailable(error) || isTransient(error)) {
      if (error instanceof RunnerUnavailable) progress.report(PHASES.away);
      // The partial checkout may be the reason for a full disk.
      await runner
        .remove({ attempt: id })
        .catch((cause) =>
          log.error({ err: cause, job: job.id }, 'Cannot remove a partly prepared attempt'),
        );
      throw error;
    }
    const isExpected = error instanceof Unstartable || error instanceof AppError;
    if (!isExpected) log.error({ err: error, job: job.id }, 'Cannot prepare the job');
    const failure = job.repo
      ? 'The repository could not be cloned'
      : 'The job could not be prepared';
    const reason = isExpected ? error.message : `${failure}. See the log of the server.`;
    return { outcome: { kind: 'unstartable', reason } };
  }
}

function buildSpec(
  deps: Deps,
  attempt: Attempt,
  values: JobValues,
  files: AttemptSpec['files'],
  { report }: ProgressReporter,
): AttemptSpec {
  const { id, machine, number, job, hasLargeFiles } = attempt;
  const { repositoryId, commitSha, outputPath, gpu, gpuCount, cpu, memoryGb } = job;
  const source = job.repo === null ? null : { repositoryId, commitSha };
  const hasInputs = readInputs(job).length + readRepositoryInputs(job).length > 0;
  const { checkpointPath } = job;
  const checkOut = (
    { repositoryId, commitSha }: NonNullable<typeof source>,
    dir: string,
    signal: AbortSignal,
  ) => {
    if (!repositoryId || !commitSha)
      throw new Unstartable(`The repository ${job.repo} was deleted`);
    const limits = diskLimits(job.diskGb);
    const { room } = deps.space;
    // The previous progress may be about the image.
    report(PHASES.cloning);
    const target = { repositoryId, commitSha, hasLargeFiles, dir };
    return deps.checkout({ attemptId: id, ...target, signal, room, ...limits });
  };
  const given = { ...values.env, ...values.secrets };
  return {
    id,
    machine,
    command: isHeldOnFailure(job)
      ? holdOnFailure(job.command, job.holdOnFailureMinutes * 60)
      : job.command,
    image: job.image,
    job: { id: job.id, name: job.name, namespace: job.namespace.name },
    hardware: job,
    timeoutMs: attemptTimeoutMs(job),
    log: computeOutputLimits(deps, job),
    report,
    files,
    mounts: toMounts(deps.config.volumes, job),
    env: {
      ...given,
      ...jobTokenVariables(deps, { id, job }, given),
      JOB_ID: job.id,
      JOB_NAME: job.name,
      JOB_NAMESPACE: job.namespace.name,
      JOB_ATTEMPT: String(number),
      JOB_COMMIT_SHA: commitSha ?? '',
      JOB_OUTPUT_PATH: outputPath ?? '',
      // Relative, because the working directory has another path where a job runs without a sandbox.
      ...(checkpointPath !== null && { JOB_CHECKPOINT: checkpointPath }),
      GPU_COUNT: String(gpu === 'none' ? 0 : gpuCount),
      CPU_CORES: String(cpu),
      MEMORY_GB: String(memoryGb),
      CI: 'true',
      ...(job.arrayIndex !== null && {
        JOB_ARRAY_INDEX: String(job.arrayIndex),
        JOB_ARRAY_SIZE: String(job.arraySize),
      }),
    },
    checkout:
      source || hasInputs || checkpointPath !== null
        ? async (dir, signal, home, mount) => {
            let bytes = source ? await checkOut(source, dir, signal) : 0;
            if (!source) await mkdir(dir);
            if (hasInputs) {
              report(PHASES.inputs);
              bytes += await copyInputs(deps, { id, job }, { dir, bytes, mount }, signal);
            }
            if (checkpointPath !== null)
              bytes += await restoreCheckpoint(
                deps,
                { job, report, checkpointPath },
                { dir, bytes },
                signal,
              );
            if (readCaches(job).length === 0) return;
            report(PHASES.caches);
            const { maxBytes, maxFiles: entries } = diskLimits(job.diskGb);
            const room = { bytes: Math.min(maxBytes - bytes, deps.space.room), entries };
            await restoreCaches(deps, attempt, { work: dir, home }, room, signal);
          }
        : null,
  };
}

/** @returns the variables of the job token; none if the job has no permissions */
function jobTokenVariables(
  { jobTokens }: Deps,
  { id, job }: Pick<Attempt, 'id' | 'job'>,
  given: Readonly<Record<string, string>>,
): Record<string, string> {
  const { url, permissions } = readJobCredentials(job);
  return url && permissions ? tokenVariables(url, jobTokens.tokenOf(id), given) : {};
}

/** The copies are made in this thread, about ten thousand a second. */
const MAX_INPUT_ENTRIES = 2 * MAX_OUTPUT_ENTRIES;

/**
 * Copies the inputs of a job into the working directory of an attempt.
 * @param target.bytes what the checkout in the folder takes on disk
 * @param target.mount mounts a folder that is only read; undefined where it has to be copied
 * @returns the bytes that they take on disk
 * @throws Unstartable with a reason for the user of the job; transient errors
 */
async function copyInputs(
  deps: Pick<Deps, 'db' | 'storage' | 'space' | 'log' | 'largeFiles' | 'readInput' | 'inputCache'>,
  { id: attemptId, job }: Pick<Attempt, 'id' | 'job'>,
  { dir, bytes, mount }: { dir: string; bytes: number; mount: Mount | undefined },
  signal: AbortSignal,
): Promise<number> {
  const limits = diskLimits(job.diskGb);
  const folder = new InputFolder(dir, {
    maxBytes: Math.min(limits.maxBytes - bytes, deps.space.room),
    maxEntries: Math.min(limits.maxFiles, MAX_INPUT_ENTRIES),
  });
  const explain = (what: string) => (error: unknown) => {
    if (signal.aborted || isDatabaseUnavailable(error) || isTransient(error)) throw error;
    const isExpected = error instanceof CannotExtract || error instanceof AppError;
    if (!isExpected) deps.log.error({ err: error, job: job.id }, 'Cannot copy an input');
    const reason = isExpected ? error.message : 'they cannot be read. See the log of the server.';
    throw new Unstartable(`${what} could not be copied: ${reason}`);
  };
  for (const input of readInputs(job)) {
    const key = await findArtifacts(deps, job.namespaceId, input);
    if (!key) continue;
    await extractArtifacts(deps, key, input, folder, signal).catch(
      explain(`The artifacts of ${input.job}`),
    );
  }
  for (const input of readRepositoryInputs(job)) {
    const { repo, repositoryId, path, tree, readOnly, to } = input;
    /** @returns whether all large files were found */
    const copy = async (into: InputFolder, at: string) => {
      let isComplete = true;
      await deps.readInput({ ...input, attemptId, signal, ...limits }, (tar) => {
        const onMissing = () => {
          isComplete = false;
        };
        const files = replacePointersInTar(deps, repositoryId, tar, onMissing);
        return extractTar([Readable.from(files)], { path, to: at }, into, signal);
      });
      return isComplete;
    };
    const place = async () => {
      if (!readOnly || !mount || tree === null) return copy(folder, to);
      await folder.addEmptyFolder(Buffer.from(to.replace(/\/$/, '')).toString('latin1'));
      const key = `${repositoryId}-${tree}`;
      const from = await deps.inputCache.acquire({ key, attemptId, signal }, async (shared) => {
        const maxBytes = Math.min(limits.maxBytes, deps.space.room);
        const into = new InputFolder(shared, { maxBytes, maxEntries: MAX_INPUT_ENTRIES });
        const isComplete = await copy(into, '');
        return { bytes: into.used.bytes, isComplete };
      });
      return mount({ volume: repo, from, to: posix.resolve(WORKING_DIR, to), readOnly });
    };
    await place().catch(explain(`The files of ${repo}`));
  }
  return folder.used.bytes;
}

type Mount = (folder: MountedFolder) => void;

/**
 * Creates the folder of checkpoints, and replaces its content with that of the last checkpoint, if there is one.
 * @returns the bytes that it takes on disk
 * @throws Unstartable with a reason for the user of the job; transient errors
 */
async function restoreCheckpoint(
  deps: Pick<Deps, 'db' | 'storage' | 'space' | 'log'>,
  {
    job,
    report,
    checkpointPath: to,
  }: Pick<Attempt, 'job'> & Pick<ProgressReporter, 'report'> & { checkpointPath: string },
  { dir, bytes }: { dir: string; bytes: number },
  signal: AbortSignal,
): Promise<number> {
  const key = await findCheckpoint(deps, job);
  const limits = diskLimits(job.diskGb);
  const folder = new InputFolder(dir, {
    maxBytes: Math.min(limits.maxBytes - bytes, deps.space.room),
    maxEntries: limits.maxFiles,
    mayHaveGit: true,
  });
  try {
    // Before anything is removed: it refuses a link on the way, which could lead anywhere.
    await folder.addFolder(posix.dirname(to) === '.' ? '' : toBytes(posix.dirname(to)));
    if (key) {
      report(PHASES.checkpoint);
      await rm(join(dir, to), { recursive: true, force: true });
    }
    await folder.addFolder(toBytes(to));
    if (key) await extractArtifacts(deps, key, { path: '', to }, folder, signal);
  } catch (error) {
    if (signal.aborted || isDatabaseUnavailable(error) || isTransient(error)) throw error;
    const isExpected = error instanceof CannotExtract;
    if (!isExpected) deps.log.error({ err: error, job: job.id }, 'Cannot restore a checkpoint');
    const reason = isExpected ? error.message : 'it cannot be read. See the log of the server.';
    throw new Unstartable(`The checkpoint could not be put into ${to}: ${reason}`);
  }
  return folder.used.bytes;
}

/**
 * Finds the artifacts of a job, also after it was deleted without them.
 * @returns null if a job of an array that is an input as a whole has none
 * @throws Unstartable
 */
async function findArtifacts(
  { db }: Pick<Deps, 'db'>,
  namespaceId: string,
  { jobId, job: name, array }: JobInput,
): Promise<ArtifactKey | null> {
  const job = await db.job.findFirst({
    where: jobId === null ? { namespaceId, name } : { id: jobId },
    select: { id: true, status: true, artifactBytes: true, artifactsOf: true },
  });
  if (job && !isOver(job.status))
    throw new Unstartable(
      `The artifacts of ${name} are inputs, and it has not ended. Use needs to wait for it.`,
    );
  if (job?.artifactBytes === null && array) return null;
  if (job?.artifactBytes === null)
    throw new Unstartable(`The artifacts of ${name} are inputs, and it left none`);
  const owner =
    job ??
    (jobId &&
      (await db.keptArtifacts.findUnique({
        where: { id: jobId, removing: false },
        select: { id: true, artifactsOf: true },
      })));
  if (!owner && array) return null;
  if (!owner) throw new Unstartable(`The artifacts of ${name} are inputs, and were deleted`);
  return { namespaceId, jobId: owner.id, attemptId: owner.artifactsOf };
}
