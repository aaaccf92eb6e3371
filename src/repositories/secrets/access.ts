/**
 * Decides which jobs get which secrets and variables, and reads their values.
 *
 * A job gets those that it names, of its repository or else of its namespace. Secrets depend on the ref whose commit the job
 * runs, as the server resolved it. Whoever creates a job with the API chooses its command, so the creator must also be
 * allowed to push to that ref: the API gives nobody a secret that they could not get with a push. Jobs of a file in the
 * repository run the command of that file at that ref, so there the ref alone decides.
 *
 * The token of a job gives no secrets: the job would choose the command of the jobs that it creates.
 *
 * All of this is checked when a job is created, and again when an attempt starts, which reads the values.
 */
import type pg from 'pg';
import { AppError, invalid } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import { REF_PREFIX } from '../../git/objects/refs.ts';
import { readRole } from '../../identity/members.ts';
import { type Account, can } from '../../identity/permissions.ts';
import { SEAL_BYTES, type Sealer } from '../../platform/crypto/keys.ts';
import {
  isProtected,
  mayPushTo,
  type Pusher,
  readBranchProtection,
  toPusher,
} from '../repositories.ts';
import { allowsAnyJob, allowsBranch, allowsTag, VALUE_RULES } from './rules.ts';

/** Where a job and its commit come from. */
export type JobOrigin = {
  namespaceId: string;
  repositoryId: string | null;
  /** The full name of the ref of its commit (`sourceRef`); null without a repository. */
  ref: string | null;
};

type ValueNames = { secretNames: readonly string[]; variableNames: readonly string[] };

type Values = Record<string, string>;
/** Variables by name. Only `secrets` must be kept out of logs. */
export type JobValues = { env: Values; secrets: Values };

/** A job that names secrets or variables, with the values that were given for it alone. */
type Request = { origin: JobOrigin; names: ValueNames; own: JobValues };

type Stored = {
  id: string;
  kind: 'secret' | 'variable';
  name: string;
  refs: string[];
  bytes: number;
  value: string | null;
  sealed: Uint8Array | null;
};

/** Why a job does not get a secret or a variable. `isForbidden`: it exists, and is not for this job. */
type Refusal = { field: 'secretNames' | 'variableNames'; problem: string; isForbidden: boolean };

type Deps = { pool: pg.Pool };

/**
 * Checks that a job which the viewer creates may have the secrets and variables that it names.
 * @param viewer null for a job whose command is that of a file at its ref, which alone decides then
 * @throws AppError 400 if one does not exist or they are too long, 403 if a secret is not for this job
 */
export async function demandValues(
  deps: Deps,
  viewer: Account | null,
  request: Request,
): Promise<void> {
  if (isEmpty(request.names)) return;
  if (viewer?.credential.kind === 'job' && request.names.secretNames.length > 0)
    throw new AppError('permission_denied', 'secretNames: a job cannot create jobs with secrets', {
      field: 'secretNames',
    });
  const found = await findValues(deps, request, toCreator(viewer, request.origin), false);
  if (!('refusal' in found)) return;
  const { field, problem, isForbidden } = found.refusal;
  if (!isForbidden) throw invalid(field, problem);
  throw new AppError('permission_denied', `${field}: ${problem}`, { field });
}

function toCreator(viewer: Account | null, { namespaceId, repositoryId }: JobOrigin): Creator {
  if (viewer === null) return 'ref';
  const mayPush = can(viewer, 'repository.push', { namespaceId, repositoryId });
  return { ...toPusher(viewer, namespaceId), mayPush };
}

/** An attempt that starts. */
type StartingJob = Request & {
  createdById: string | null;
  /** The command is that of a file at the ref. */
  commandFromRef: boolean;
};

/**
 * Reads the values of the secrets and variables that an attempt gets.
 * @returns the reason if the attempt must not start, because one of them is gone or is not for this job any more
 */
export async function readValues(
  deps: Deps & { storedSecretSealer: Sealer; log: Logger },
  { createdById, commandFromRef, ...request }: StartingJob,
): Promise<JobValues | { problem: string }> {
  if (isEmpty(request.names)) return { env: {}, secrets: {} };
  const creator = commandFromRef ? 'ref' : await readCreator(deps, request.origin, createdById);
  const found = await findValues(deps, request, creator, true);
  if ('refusal' in found) return { problem: capitalize(found.refusal.problem) };
  const env: [string, string][] = [];
  const secrets: [string, string][] = [];
  for (const { id, kind, name, value, sealed } of found.stored) {
    if (kind === 'variable') env.push([name, value as string]);
    else
      try {
        secrets.push([name, deps.storedSecretSealer.open(id, sealed as Uint8Array)]);
      } catch (error) {
        deps.log.error({ err: error, secret: id }, 'Cannot decrypt a secret');
        const why = 'the server does not have the key that encrypted it';
        return { problem: `The secret ${name} cannot be decrypted: ${why}` };
      }
  }
  await noteUse(deps, found.stored);
  // Not by assignment, which would lose the name `__proto__`.
  return { env: Object.fromEntries(env), secrets: Object.fromEntries(secrets) };
}

/** `ref`: nobody has chosen the command for this job. */
type Creator = 'ref' | (Pusher & { mayPush: boolean });

async function readCreator(
  deps: Deps,
  { namespaceId }: JobOrigin,
  userId: string | null,
): Promise<Creator> {
  const role = userId === null ? null : await readRole(deps, { namespaceId, userId });
  return { userId, role, mayPush: role === 'write' || role === 'admin' };
}

async function findValues(
  deps: Deps,
  { origin, names, own }: Request,
  creator: Creator,
  withValues: boolean,
): Promise<{ stored: Stored[] } | { refusal: Refusal }> {
  const { namespaceId, repositoryId } = origin;
  const protection = repositoryId && (await readBranchProtection(deps, repositoryId));
  // Members of the job's namespace see its log. A repository of another namespace may have been transferred there.
  const repository = protection && protection.namespaceId === namespaceId ? protection : null;
  const stored = await readStored(deps, namespaceId, repository && repositoryId, names, withValues);
  for (const [kind, field] of FIELDS)
    for (const name of names[field]) {
      const one = stored.find((each) => each.kind === kind && each.name === name);
      const problem = one
        ? kind === 'secret' && whyNotAllowed(one, origin, repository, creator)
        : `there is no ${kind} ${name} in the ${repository ? 'repository or its' : "job's"} namespace`;
      if (problem) return { refusal: { field, problem, isForbidden: one !== undefined } };
    }
  for (const [kind, field, ownField] of FIELDS) {
    const bytes = stored
      .filter((one) => one.kind === kind)
      .reduce((sum, one) => sum + one.name.length + one.bytes, bytesOf(own[ownField]));
    const { maxBytes } = VALUE_RULES;
    if (bytes > maxBytes)
      return {
        refusal: {
          field,
          problem: `the ${kind}s of the job must not be longer than ${maxBytes} bytes in total`,
          isForbidden: false,
        },
      };
  }
  return { stored };
}

const FIELDS = [
  ['secret', 'secretNames', 'secrets'],
  ['variable', 'variableNames', 'env'],
] as const;

const FOR_ANY_JOB = 'only the refs "**" allow every job';

/** Returns why a secret that exists is not for a job; null if it is. */
function whyNotAllowed(
  { name, refs }: Stored,
  { ref }: JobOrigin,
  repository: Awaited<ReturnType<typeof readBranchProtection>>,
  creator: Creator,
): string | null {
  const secret = `the secret ${name}`;
  if (creator !== 'ref' && !includesWrite(creator))
    return `${secret} is not for this job: its creator may not create jobs in the namespace any more`;
  if (allowsAnyJob(refs)) return null;
  if (!repository || ref === null)
    return `${secret} is only for jobs of certain branches or tags of a repository in the namespace; ${FOR_ANY_JOB}`;
  const mayPush = creator === 'ref' || creator.mayPush;
  if (ref.startsWith(REF_PREFIX.tag)) {
    const tag = ref.slice(REF_PREFIX.tag.length);
    return mayPush && allowsTag(refs, tag) ? null : `${secret} is not for the tag ${tag}`;
  }
  if (!ref.startsWith(REF_PREFIX.branch))
    return `${secret} is only for certain branches or tags, and a snapshot has none; ${FOR_ANY_JOB}`;
  const branch = ref.slice(REF_PREFIX.branch.length);
  const isAllowed = refs.length > 0 ? allowsBranch(refs, branch) : isProtected(repository, branch);
  if (!isAllowed)
    return refs.length > 0
      ? `${secret} is not for the branch ${branch}`
      : `${secret} is only for protected branches, and ${branch} is not protected`;
  if (mayPush && (creator === 'ref' || mayPushTo(repository, creator, branch))) return null;
  return `${secret} is only for those who may push to the branch ${branch}, and the creator of the job may not`;
}

function includesWrite({ role }: Pusher): boolean {
  return role === 'write' || role === 'admin';
}

/** A value of the repository comes before that of the namespace. */
const READ = `
  select distinct on (kind, name) id, kind, name, refs, coalesce(octet_length(value), octet_length(sealed) - ${SEAL_BYTES}) as bytes,
    case when $5 then value end as value, case when $5 then sealed end as sealed
  from stored_values
  where (namespace_id = $1 or repository_id = $2)
    and (kind = 'secret' and name = any ($3) or kind = 'variable' and name = any ($4))
  order by kind, name, repository_id nulls last`;

async function readStored(
  { pool }: Deps,
  namespaceId: string,
  repositoryId: string | null,
  { secretNames, variableNames }: ValueNames,
  withValues: boolean,
): Promise<Stored[]> {
  const values = [namespaceId, repositoryId, secretNames, variableNames, withValues];
  const { rows } = await pool.query<Stored>({ name: 'loam-stored-values', text: READ, values });
  return rows;
}

/** To the minute, so that many jobs that start at once rarely change the same row. */
async function noteUse({ pool }: Deps, stored: readonly Stored[]): Promise<void> {
  await pool.query({
    name: 'loam-stored-values-used',
    text: `
      update stored_values set last_used_at = date_trunc('minute', now())
      where id in (
        select id from stored_values
        where id = any ($1) and (last_used_at is null or last_used_at < date_trunc('minute', now()))
        order by id for update skip locked)`,
    values: [stored.map(({ id }) => id)],
  });
}

function isEmpty({ secretNames, variableNames }: ValueNames): boolean {
  return secretNames.length + variableNames.length === 0;
}

function bytesOf(values: Values): number {
  return Object.entries(values).reduce(
    (sum, [name, value]) => sum + name.length + Buffer.byteLength(value),
    0,
  );
}

function capitalize(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
