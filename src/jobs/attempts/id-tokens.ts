/**
 * The identity tokens of running attempts (`../record/job-credentials.ts`). They are issued before the start and again at half
 * their lifetime. Each time, the claims come from the database, and the creator of the job must still be allowed to run it.
 */
import type pg from 'pg';
import type { Role } from '../../../prisma/generated/enums.ts';
import type { Logger } from '../../base/log.ts';
import { MAX_TOKEN_SECONDS, type TokenIssuer } from '../../identity/token-issuer.ts';
import { runLoop } from '../../platform/loop.ts';
import type { Metrics } from '../../platform/metrics/metrics.ts';
import { mayPushTo, readBranchProtection, sourceRef } from '../../repositories/repositories.ts';
import { type AttemptSpec, type Handle, type Runner, Unstartable } from '../../runners/runner.ts';
import { readJobCredentials } from '../record/job-credentials.ts';

type Deps = { pool: pg.Pool; metrics: Metrics; tokenIssuer: TokenIssuer };

/** Pauses after failures, such as a runner that does not answer. */
const PAUSES = { firstMs: 10_000, longestMs: 10_000 };

/** All that a token says. Names are the current ones, because others may have the earlier names now. */
type Source = {
  jobId: string;
  job: string;
  identity: unknown;
  timeoutMinutes: number;
  namespaceId: string;
  namespace: string;
  /** Whether the job was created with a repository. */
  hasRepository: boolean;
  /** Null: it was deleted, or is in another namespace now. */
  repositoryId: string | null;
  repository: string | null;
  branch: string | null;
  snapshotId: string | null;
  tag: string | null;
  commitSha: string | null;
  actorId: string | null;
  actor: string | null;
  isDisabled: boolean;
  /** Of the creator in the namespace. */
  role: Role | null;
  commandFromRef: boolean;
  runId: string | null;
  runNumber: number | null;
};

const SOURCE = `
  select j.id as "jobId", j.name as job, j.identity, j.timeout_minutes as "timeoutMinutes",
    n.id as "namespaceId", n.name as namespace, j.repo is not null as "hasRepository",
    r.id as "repositoryId", r.name as repository, j.branch, j.snapshot_id as "snapshotId", j.tag,
    j.commit_sha as "commitSha", u.id as "actorId", u.username as actor,
    u.disabled_at is not null as "isDisabled", j.command_from_ref as "commandFromRef",
    run.id as "runId", run.number as "runNumber",
    case when u.operator or n.user_id = u.id then 'admin' else (
      select role::text from members m where m.namespace_id = n.id and m.user_id = u.id) end as role
  from jobs j join namespaces n on n.id = j.namespace_id
    left join repositories r on r.id = j.repository_id and r.namespace_id = j.namespace_id
    left join users u on u.id = j.created_by_id
    left join runs run on run.id = j.run_id and run.repository_id = r.id
  where j.attempt_id = $1`;

/**
 * Issues the tokens of an attempt: variable → token.
 * @returns null when the attempt no longer holds its job
 * @throws Unstartable when the job may not have them any more
 */
export async function issueIdTokens(
  { pool, metrics, tokenIssuer }: Deps,
  attemptId: string,
): Promise<AttemptSpec['files'] | null> {
  const { rows } = await pool.query<Source>(SOURCE, [attemptId]);
  const [source] = rows;
  if (!source) return null;
  const { url = '', idTokens = [] } = readJobCredentials(source);
  if (idTokens.length === 0) return {};
  const refusal = whyRefused(source) ?? (await whyNotOfBranch({ pool }, source));
  if (refusal) throw new Unstartable(`The job gets no identity tokens: ${refusal}`);
  const claims = {
    issuer: url,
    subject: subjectOf(source),
    lifetimeSeconds: lifetimeOf(source),
    extraClaims: otherClaims(source),
  };
  const tokens = await Promise.all(
    idTokens.map(async ({ variable, audience }) => [
      variable,
      await tokenIssuer.sign({ ...claims, audience }),
    ]),
  );
  metrics.identityTokensIssued(tokens.length);
  return Object.fromEntries(tokens);
}

function whyRefused(source: Source): string | undefined {
  const { actor, isDisabled, role, hasRepository, repositoryId } = source;
  if (actor === null) return 'the user who created it was deleted';
  if (isDisabled || (role !== 'write' && role !== 'admin'))
    return `${actor}, who created it, may not run jobs in its namespace any more`;
  if (hasRepository && repositoryId === null)
    return 'its repository was deleted or moved to another namespace';
  return undefined;
}

/** The rules of the branch may have changed since the job was created. */
async function whyNotOfBranch(
  deps: { pool: pg.Pool },
  { repositoryId, branch, commandFromRef, actorId, actor, role }: Source,
): Promise<string | undefined> {
  if (repositoryId === null || branch === null || commandFromRef) return undefined;
  const protection = await readBranchProtection(deps, repositoryId);
  if (protection && mayPushTo(protection, { userId: actorId, role }, branch)) return undefined;
  return `${actor}, who created it, may not push to the branch ${branch} any more`;
}

function lifetimeOf({ timeoutMinutes }: Pick<Source, 'timeoutMinutes'>): number {
  return Math.min(timeoutMinutes * 60, MAX_TOKEN_SECONDS);
}

/** Names of repositories and refs contain no `:`, so each subject can be read in one way only. */
function subjectOf(source: Source): string {
  const { namespace, repository } = source;
  if (repository === null) return `namespace:${namespace}`;
  return `repo:${namespace}/${repository}:ref:${sourceRef(source)}`;
}

function otherClaims(source: Source): Record<string, string> {
  const { repositoryId, repository, commitSha, namespace, runId, runNumber } = source;
  return {
    namespace,
    namespace_id: source.namespaceId,
    ...(repositoryId !== null && {
      repository: `${namespace}/${repository}`,
      repository_id: repositoryId,
      ref: sourceRef(source) ?? '',
      sha: commitSha ?? '',
    }),
    job: source.job,
    job_id: source.jobId,
    ...(runId !== null && { run: `${namespace}/${repository}#${runNumber}`, run_id: runId }),
    actor: source.actor ?? '',
    actor_id: source.actorId ?? '',
  };
}

/**
 * Replaces the tokens in the files of the attempt, until it is disposed of or the server stops: at once, because the attempt may
 * have waited for its start or for its worker, and then at half their lifetime. When the job may not have them any more, the last
 * ones expire.
 */
export function refreshIdTokens(
  deps: RefreshDeps,
  attempt: RefreshedAttempt,
  handle: Handle,
  stopping: AbortSignal,
): AsyncDisposable {
  const over = new AbortController();
  const signal = AbortSignal.any([over.signal, stopping]);
  const { runner, log } = deps;
  const { id, job } = attempt;
  const name = `Replacing the identity tokens of job ${job.id}`;
  const every = (lifetimeOf(job) * 1_000) / 2;
  const refresh = async () => {
    try {
      const tokens = await issueIdTokens(deps, id);
      if (tokens !== null) return await runner.replaceFiles(handle, tokens);
    } catch (error) {
      if (!(error instanceof Unstartable)) throw error;
      log.warn({ job: job.id }, `${error.message}. The last ones expire.`);
    }
    over.abort();
  };
  const working = readJobCredentials(job).idTokens
    ? runLoop({ name, every, backoff: PAUSES, signal, log }, refresh)
    : undefined;
  return {
    async [Symbol.asyncDispose]() {
      over.abort();
      await working;
    },
  };
}

type RefreshDeps = Deps & { runner: Runner; log: Logger };
type RefreshedAttempt = {
  id: string;
  job: { id: string; timeoutMinutes: number; identity: unknown };
};

/** All RS256 tokens of this server have this form; which keys they name does not matter. */
const ID_TOKEN =
  /eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCIsImtpZCI6I[\w-]{20,200}\.[\w-]{20,4000}\.[\w-]{100,2000}/g;

/** Replaces identity tokens in a text by `***`, also those that another process has issued. */
export function maskIdTokens(text: string): string {
  return text.includes('eyJhbGciOiJSUzI1Ni') ? text.replace(ID_TOKEN, '***') : text;
}
