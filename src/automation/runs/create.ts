/** Creates a run with its jobs, in one transaction. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import type {
  NeedCondition,
  Plan,
  RunStatus,
  RunTriggerKind,
} from '../../../prisma/generated/enums.ts';
import type { Config } from '../../base/config/config.ts';
import { AppError, notFound } from '../../base/errors.ts';
import type { Catalogue } from '../../base/hardware.ts';
import { newId } from '../../base/ids.ts';
import type { Urls } from '../../base/urls.ts';
import type { Problem } from '../../base/yaml.ts';
import { REF_PREFIX } from '../../git/objects/refs.ts';
import { type Actor, recordAudit } from '../../identity/audit.ts';
import { type Account, can } from '../../identity/permissions.ts';
import { readLastingOffer } from '../../jobs/queue/offer.ts';
import { checkRequest, type SecretBox } from '../../jobs/requests/jobs.ts';
import {
  checkInputs,
  demandRepositoryInputs,
  insertRunJobs,
  type RepositoryInput,
  resolveRepositoryInputs,
} from '../../jobs/requests/run-jobs.ts';
import type { Db } from '../../platform/database/client.ts';
import { inTransaction, violatesUnique } from '../../platform/database/client.ts';
import { notifyReaders } from '../../platform/events/outbox.ts';
import {
  lockRepository,
  type RepositoryReadDeps,
  reportRunStatuses,
} from '../../repositories/repositories.ts';
import { type JobFile, readJobFile } from '../file.ts';
import { type PlannedJob, planJobs } from '../job-selection.ts';
import { defaultRunInputs, type RunValue } from '../run-inputs.ts';
import type { RunCommit } from './commit.ts';

export type CreateDeps = RepositoryReadDeps & {
  config: Config;
  secretBox: SecretBox;
  urls: Urls;
};

export type RunRepository = {
  id: string;
  name: string;
  defaultBranch: string;
  namespace: { id: string; name: string; plan: Plan };
};

export const repositoryColumns = {
  id: true,
  name: true,
  defaultBranch: true,
  namespace: { select: { id: true, name: true, plan: true } },
} as const satisfies Prisma.RepositorySelect;

export type NewRun = {
  trigger: RunTriggerKind;
  /** The full name of the branch or tag. */
  ref: string;
  commit: Pick<RunCommit, 'sha' | 'title'>;
  /** The text of the file; null if nothing is to start. */
  text: string | null;
  /** The text is not that of the commit, so it is kept with the run. */
  keepsText?: boolean;
  /**
   * The ref does not point to the commit any more. It may have been unprotected when the commit was there, so the creator must be
   * allowed to push to it if the jobs ask for its secrets or its identity.
   */
  hasMoved?: boolean;
  /** Selects jobs of a valid file; none: there is no run. */
  selectJobs: (file: JobFile) => Promise<string[]> | string[];
  /** Returns the values of the inputs of the selected jobs. Default: the default values in the file. */
  readInputs?: (file: JobFile, names: readonly string[]) => RunValue[];
  /** Who started it. */
  actor: Actor;
  /** In whose name its jobs are created; null: the run waits for approval. */
  creator: Account | null;
  rerunOfId?: string;
  /** Jobs of an earlier run that have ended already: name in the file → name of the job. */
  earlier?: ReadonlyMap<string, string>;
  /** Ids of jobs that are not in the run, whose outputs its jobs get: by the name in the file that these jobs have. */
  earlierOutputs?: ReadonlyMap<string, readonly string[]>;
  /** The repository inputs of jobs of an earlier run, whose commits are kept: by name in the file. */
  earlierInputs?: ReadonlyMap<string, readonly RepositoryInput[]>;
};

/** Each job of the file that a run has: its name, the jobs that it needs, and the number of jobs that its matrix makes. */
export type RunPlan = {
  name: string;
  needs: { job: string; when: NeedCondition }[];
  jobs: number;
}[];

/** The most times that names of jobs are chosen, because another transaction may take one of them. */
const NAME_TRIES = 5;
/** A run has up to 1,000 jobs, and its transaction executes at least one statement for each. */
export const RUN_TRANSACTION_TIMEOUT_MS = 60_000;

/**
 * @param claim for a run that no user waits for: runs first in the transaction, and if it returns false, nothing is created
 * @returns the id of the run; null if no job was selected
 * @throws AppError 400, 403, 404 if the jobs are refused; with `claim`, there is a failed run that says why instead
 */
export async function createRun(
  services: CreateDeps,
  repository: RunRepository,
  run: NewRun,
  claim?: (tx: Db) => Promise<boolean>,
): Promise<string | null> {
  const offer = await readLastingOffer(services);
  const { file, problems } =
    run.text === null ? { file: null, problems: [] } : readJobFile(run.text, offer);
  const names = file ? await run.selectJobs(file) : [];
  if (run.text === null || (file && names.length === 0)) {
    if (claim) await inTransaction(services.db, claim);
    return null;
  }
  const { readInputs = ({ jobs }) => defaultRunInputs(jobs, names) } = run;
  const inputs = file ? readInputs(file, names) : [];
  const planned = file
    ? planJobs(file, names, shortRefName(run.ref), inputs, run.earlierOutputs)
    : [];
  const plan: RunPlan = file
    ? names.map((name) => ({
        name,
        needs: [...(file.jobs.get(name)?.needs ?? [])],
        jobs: planned.filter(({ key }) => key === name).length,
      }))
    : [];
  const isAllowed = run.creator !== null && can(run.creator, 'job.create', targetOf(repository));
  const status: RunStatus = !file ? 'invalid' : isAllowed ? 'queued' : 'waiting_for_approval';
  for (let tries = 1; ; tries++) {
    try {
      const repositoryInputs =
        status === 'queued' && run.creator
          ? await findInputCommits(services, run.creator, planned, run.earlierInputs)
          : new Map();
      return await inTransaction(
        services.db,
        async (tx) => {
          if (claim && !(await claim(tx))) return null;
          const id = await insertRun(tx, repository, { ...run, status, plan, problems, inputs });
          if (status === 'queued' && run.creator)
            await startJobs(services, tx, {
              id,
              repository,
              run,
              planned,
              repositoryInputs,
              offer,
              creator: run.creator,
            });
          await notifyReaders(tx, `runs:${repository.id}`);
          return id;
        },
        RUN_TRANSACTION_TIMEOUT_MS,
      );
    } catch (error) {
      if (violatesUnique(error, 'name') && tries < NAME_TRIES) continue;
      // The jobs were refused: by a quota, a secret that the branch may not use, or a setting.
      if (!claim || !(error instanceof AppError) || error.status >= 500) throw error;
      const { message } = error;
      const why = { status: 'failed', plan, message } as const;
      return recordRunWithoutJobs(services, repository, run, why, claim);
    }
  }
}

/**
 * Finds the commits of the repository inputs of jobs. Not in a transaction, because another server may have the repository.
 * @param earlier inputs whose commits are kept
 * @returns the inputs by the name of the job in the file
 * @throws AppError 400, 404, 409 naming the field `inputs`
 */
export async function findInputCommits(
  services: RepositoryReadDeps,
  creator: Account,
  planned: readonly PlannedJob[],
  earlier: ReadonlyMap<string, readonly RepositoryInput[]> = new Map(),
): Promise<Map<string, readonly RepositoryInput[]>> {
  const found = new Map<string, readonly RepositoryInput[]>();
  const requests = new Map<string, ReturnType<typeof checkInputs>>();
  for (const { key, inputs } of planned) {
    const kept = earlier.get(key);
    if (found.has(key) || requests.has(key)) continue;
    if (kept) {
      await demandRepositoryInputs(services, creator, kept);
      found.set(key, kept);
    } else requests.set(key, checkInputs(inputs));
  }
  const resolved = await resolveRepositoryInputs(
    services,
    creator,
    [...requests].map(([runJob, request]) => ({ runJob, ...request })),
  );
  for (const [i, key] of [...requests.keys()].entries()) found.set(key, resolved[i] ?? []);
  return found;
}

/** Creates a run that is over and says why. @returns null if `claim` returns false */
export async function recordRunWithoutJobs(
  { db }: Pick<CreateDeps, 'db'>,
  repository: RunRepository,
  run: RunSource,
  { message, plan = [], status }: { status: 'failed' | 'invalid'; message: string; plan?: RunPlan },
  claim: (tx: Db) => Promise<boolean>,
): Promise<string | null> {
  return inTransaction(db, async (tx) => {
    if (!(await claim(tx))) return null;
    const problems = [{ line: 1, column: 1, message }];
    const id = await insertRun(tx, repository, { ...run, status, plan, problems });
    await notifyReaders(tx, `runs:${repository.id}`);
    return id;
  });
}

function targetOf({ id, namespace }: RunRepository) {
  return { namespaceId: namespace.id, repositoryId: id };
}

/** The name of the branch or tag, without its prefix. */
export function shortRefName(ref: string): string {
  return ref.replace(/^refs\/(?:heads|tags)\//, '');
}

/** What started a run, and what it runs. */
type RunSource = Pick<NewRun, 'trigger' | 'ref' | 'commit' | 'actor' | 'rerunOfId'> &
  Partial<Pick<NewRun, 'text' | 'keepsText'>> & { inputs?: readonly RunValue[] };

type RunRow = RunSource & { status: RunStatus; plan: RunPlan; problems: readonly Problem[] };

async function insertRun(
  tx: Db,
  repository: RunRepository,
  {
    trigger,
    status,
    ref,
    commit,
    plan,
    problems,
    inputs = [],
    text,
    keepsText,
    actor,
    rerunOfId,
  }: RunRow,
): Promise<string> {
  // Numbers are given under the lock, so they have no gaps and no doubles.
  if (!(await lockRepository(tx, repository.id))) throw notFound('Repository');
  const { _max } = await tx.run.aggregate({
    where: { repositoryId: repository.id },
    _max: { number: true },
  });
  const id = newId('run');
  const number = (_max.number ?? 0) + 1;
  const isOver = status === 'invalid' || status === 'failed';
  const createdAt = new Date();
  await tx.run.create({
    data: {
      id,
      repositoryId: repository.id,
      number,
      trigger,
      status,
      ref,
      sha: commit.sha,
      title: commit.title,
      jobNames: plan.map(({ name }) => name),
      plan,
      inputs: [...inputs],
      problems: [...problems],
      file: (keepsText && text) || null,
      createdById: await findExistingUser(tx, actor.userId),
      actor: actor.username,
      rerunOfId: rerunOfId ?? null,
      // One clock for both: the database may be another machine.
      createdAt,
      completedAt: isOver ? createdAt : null,
    },
  });
  await recordAudit(tx, actor, {
    action: 'run.create',
    namespaceIds: [repository.namespace.id],
    subject: id,
    name: `${repository.name}#${number}`,
    details: { trigger, ref, sha: commit.sha, status },
  });
  return id;
}

/** Null if the user was deleted since the push. */
async function findExistingUser(tx: Db, id: string | null): Promise<string | null> {
  if (id === null) return null;
  return (await tx.user.findUnique({ where: { id }, select: { id: true } }))?.id ?? null;
}

type JobsToStart = {
  id: string;
  repository: RunRepository;
  run: Pick<NewRun, 'ref' | 'commit' | 'earlier' | 'keepsText' | 'hasMoved'>;
  planned: readonly PlannedJob[];
  /** Of `findInputCommits`. */
  repositoryInputs: ReadonlyMap<string, readonly RepositoryInput[]>;
  /** What the jobs may request. */
  offer: Catalogue;
  creator: Account;
};

/** Inserts the jobs of a run that has none yet. @throws AppError; a violation of the unique name, after which to retry */
export async function startJobs(
  services: CreateDeps,
  tx: Db,
  { id, repository, run, planned, repositoryInputs, offer, creator }: JobsToStart,
): Promise<void> {
  const { number } = await tx.run.findUniqueOrThrow({ where: { id }, select: { number: true } });
  const { names, byKey } = await chooseNames(tx, repository, number, planned);
  const { namespace } = repository;
  const name = shortRefName(run.ref);
  const isTag = run.ref.startsWith(REF_PREFIX.tag);
  const source = {
    repositoryId: repository.id,
    repo: `${namespace.name}/${repository.name}`,
    branch: isTag ? null : name,
    tag: isTag ? name : null,
    commitSha: run.commit.sha,
    snapshotId: null,
  };
  await insertRunJobs(services, tx, creator, {
    runId: id,
    namespace,
    source,
    isFromRef: !run.keepsText && !run.hasMoved,
    jobs: planned.map((job, i) => ({
      key: job.key,
      request: checkRequest(
        {
          ...job.settings,
          namespace: namespace.name,
          name: names[i] ?? '',
          repo: source.repo,
          inputs: job.inputs.map((input) =>
            input.job == null
              ? input
              : {
                  ...input,
                  job: byKey.get(input.job) ?? run.earlier?.get(input.job) ?? input.job,
                },
          ),
        },
        offer,
      ),
      repositoryInputs: repositoryInputs.get(job.key) ?? [],
      needs: job.needs,
      outputsOf: job.outputsOf,
      matrix: toMatrix(job, byKey),
      maxParallel: job.maxParallel,
    })),
  });
  // A file of a schedule says nothing about the commit.
  if (run.keepsText) return;
  const page = `${services.urls.base}/${namespace.name}`;
  await reportRunStatuses(
    tx,
    { repositoryId: repository.id, sha: run.commit.sha, runId: id, creator: creator.username },
    [...byKey.keys()].map((context) => ({
      context,
      state: 'pending' as const,
      description: 'Waiting',
      targetUrl: pageOfJob(page, repository.name, number, planned, names, context),
    })),
  );
}

function toMatrix({ key, number, combination }: PlannedJob, byKey: ReadonlyMap<string, string>) {
  if (number === null) return null;
  const values = Object.entries(combination).map(([name, value]) => ({ key: name, value }));
  return { name: byKey.get(key) ?? '', values };
}

/** The page of the job, or of the run if the job has several combinations. */
function pageOfJob(
  page: string,
  repository: string,
  number: number,
  planned: readonly PlannedJob[],
  names: readonly string[],
  key: string,
): string {
  const at = planned.findIndex((job) => job.key === key);
  return planned[at]?.number === null
    ? `${page}/-/jobs/${names[at]}`
    : `${page}/${repository}/runs/${number}`;
}

const MAX_NAME = 100;

/** Names of the jobs of a run: `test-12`, or `train-12-1` for a combination of a matrix, whose array is `train-12`. */
type ChosenNames = {
  /** The name of each job, in the order of the plan. */
  names: string[];
  /** The names of jobs without a matrix and of the arrays of the others, by the name in the file. */
  byKey: Map<string, string>;
};

/**
 * Chooses names that are free in the namespace. If a name of a job or of one of its combinations is taken, the name of the
 * repository is put in front, then a number behind.
 */
async function chooseNames(
  tx: Db,
  repository: { name: string; namespace: { id: string } },
  run: number,
  planned: readonly PlannedJob[],
): Promise<ChosenNames> {
  const prefix = repository.name.replaceAll(/[^A-Za-z0-9_-]/g, '-');
  const namespaceId = repository.namespace.id;
  const open = new Map(Map.groupBy(planned, ({ key }) => key));
  const byKey = new Map<string, string>();
  const used = new Set<string>();
  for (let tries = 0; open.size > 0; tries++) {
    const candidates = [...open].map(([key, jobs]) => {
      const name = variant(`${key}-${run}`, prefix, tries);
      return { key, name, all: [name, ...jobs.map((job) => nameOf(job, name))] };
    });
    const names = candidates.flatMap(({ all }) => all);
    const where = { namespaceId, name: { in: names } };
    const select = { name: true } as const;
    const rows = [
      ...(await tx.job.findMany({ where, select })),
      ...(await tx.jobArray.findMany({ where, select })),
    ];
    const taken = new Set(rows.map(({ name }) => name));
    for (const { key, name, all } of candidates) {
      if (all.some((one) => taken.has(one) || used.has(one))) continue;
      for (const one of all) used.add(one);
      byKey.set(key, name);
      open.delete(key);
    }
  }
  return { names: planned.map((job) => nameOf(job, byKey.get(job.key) ?? '')), byKey };
}

function nameOf({ number }: PlannedJob, name: string): string {
  return number === null ? name : `${name}-${number}`;
}

/** Leaves room for the number of a combination. */
const MAX_BASE = MAX_NAME - '-256'.length;

function variant(name: string, prefix: string, tries: number): string {
  if (tries === 0) return name;
  const end = tries === 1 ? `-${name}` : `-${name}-${tries}`;
  return prefix.slice(0, Math.max(0, MAX_BASE - end.length)) + end;
}
