/**
 * What a job may prove and do: the identity tokens that it presents to other systems, and the permissions of the token with
 * which it uses Loam. A job has neither unless it asks for them.
 *
 * The client that creates a job chooses its command. So the job gets no more than this client has, and an identity token
 * names a branch only if the client may push to it, as if the command had been pushed there.
 */
import type pg from 'pg';
import { forbidden, invalid } from '../../base/errors.ts';
import {
  demand,
  demandAccount,
  type JobPermissions,
  type Viewer,
} from '../../identity/permissions.ts';
import {
  type CommitSource,
  mayPushTo,
  readBranchProtection,
  toPusher,
} from '../../repositories/repositories.ts';

/** A token for `audience` in the environment variable, and in a file whose path is in `<variable>_FILE`. */
export type IdTokenRequest = { variable: string; audience: string };

/** The column `identity` of a job that asks for anything. */
export type JobCredentials = {
  /** Base URL of the server that created the job: the issuer of its tokens, and the address of the API. */
  url: string;
  permissions?: JobPermissions;
  idTokens?: readonly IdTokenRequest[];
};

const ID_TOKEN_RULES = { maxCount: 10, variableLength: 100, audienceLength: 255 } as const;

/** The variables of the job token. */
const URL_VARIABLE = 'LOAM_URL';
const TOKEN_VARIABLE = 'LOAM_TOKEN';

export type CredentialsRequest = {
  permissions: JobPermissions | null;
  idTokens: readonly IdTokenRequest[];
};

/**
 * @param variables the names of the other variables of the job
 * @throws AppError 400
 */
export function checkCredentials(
  { permissions, idTokens }: CredentialsInput,
  hasRepository: boolean,
  variables: readonly string[],
): CredentialsRequest {
  return {
    permissions: checkPermissions(permissions, hasRepository, variables),
    idTokens: checkIdTokens(idTokens ?? [], variables),
  };
}

export type CredentialsInput = {
  permissions?: { repo?: 'read' | 'write' | null; jobs?: 'read' | 'write' | null } | null;
  idTokens?: readonly IdTokenRequest[] | null;
};

function checkPermissions(
  permissions: CredentialsInput['permissions'],
  hasRepository: boolean,
  variables: readonly string[],
): JobPermissions | null {
  const { repo, jobs } = permissions ?? {};
  if (!repo && !jobs) return null;
  if (repo && !hasRepository) throw invalid('permissions', 'repo can only be given with a repo');
  const taken = variables.find((name) => name === URL_VARIABLE || name === TOKEN_VARIABLE);
  if (taken) throw invalid('permissions', `sets the variable ${taken}, which the job has already`);
  return { ...(repo && { repo }), ...(jobs && { jobs }) };
}

/** Variables that Loam, the shell or git reads. */
const RESERVED = /^(?:JOB_|LOAM_|GIT_|LD_|BASH_|PATH$|HOME$|TMPDIR$|USER$|IFS$|ENV$|PS4$|CI$)/;

function checkIdTokens(
  idTokens: readonly IdTokenRequest[],
  variables: readonly string[],
): IdTokenRequest[] {
  const { maxCount, variableLength, audienceLength } = ID_TOKEN_RULES;
  if (idTokens.length > maxCount)
    throw invalid('idTokens', `must not have more than ${maxCount} entries`);
  const taken = new Set(variables);
  return idTokens.map(({ variable, audience }) => {
    if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(variable) || variable.length > variableLength)
      throw invalid(
        'idTokens',
        `variable must be at most ${variableLength} letters, digits and _, not starting with a digit`,
      );
    if (RESERVED.test(variable))
      throw invalid('idTokens', `the variable ${variable} is reserved; choose another name`);
    for (const name of [variable, fileVariable(variable)]) {
      if (taken.has(name)) throw invalid('idTokens', `the variable ${name} is set more than once`);
      taken.add(name);
    }
    if (!/^[\x21-\x7e]+$/.test(audience) || audience.length > audienceLength)
      throw invalid(
        'idTokens',
        `audience must be 1 to ${audienceLength} visible ASCII characters without spaces`,
      );
    return { variable, audience };
  });
}

/** The variable with the path of the file that has the content of another variable. */
function fileVariable(variable: string): string {
  return `${variable}_FILE`;
}

/** @returns the column `identity` of the job; null if it asks for nothing */
export function toJobCredentials(
  { permissions, idTokens }: CredentialsRequest,
  url: string,
): JobCredentials | null {
  if (!permissions && idTokens.length === 0) return null;
  return { url, ...(permissions && { permissions }), ...(idTokens.length > 0 && { idTokens }) };
}

/** Reads the column of a job, which is null if it asks for nothing. */
export function readJobCredentials({ identity }: { identity: unknown }): Partial<JobCredentials> {
  return (identity ?? {}) as Partial<JobCredentials>;
}

/**
 * Checks that the viewer may give the job its permissions and identity tokens. The viewer may create the job.
 * @param isFromRef the command comes from a file at the commit, so whoever pushed the commit has passed the branch rules
 * @throws AppError 400, 401, 403
 */
export async function demandCredentials(
  services: { pool: pg.Pool },
  viewer: Viewer,
  { permissions, idTokens }: CredentialsRequest,
  job: {
    namespaceId: string;
    source: Pick<CommitSource, 'repositoryId' | 'branch'> | null;
    isFromRef?: boolean;
  },
): Promise<void> {
  const { namespaceId, source, isFromRef = false } = job;
  const target = { namespaceId, repositoryId: source?.repositoryId ?? null };
  // `demand` is called without the visibility, so a public repository of another namespace gives no right.
  if (permissions?.repo)
    demand(viewer, permissions.repo === 'write' ? 'repository.push' : 'repository.read', target);
  if (permissions?.jobs)
    demand(viewer, permissions.jobs === 'write' ? 'job.create' : 'job.read', target);
  const field = permissions?.repo ? 'permissions' : idTokens.length > 0 ? 'idTokens' : null;
  if (field === null) return;
  if (idTokens.length > 0 && demandAccount(viewer).credential.kind === 'job')
    throw forbidden(
      'idTokens: a job cannot create jobs with identity tokens, because these would have the identity of any branch that it names',
    );
  if (source === null) return;
  const { repositoryId, branch } = source;
  const protection = await readBranchProtection(services, repositoryId);
  if (protection?.namespaceId !== namespaceId)
    throw invalid(field, 'the repository must be in the same namespace as the job');
  if (idTokens.length === 0) return;
  demand(viewer, 'repository.push', target);
  if (branch === null || isFromRef) return;
  if (!mayPushTo(protection, toPusher(demandAccount(viewer), namespaceId), branch))
    throw forbidden(
      `idTokens: only those who may push to the branch ${branch} can create jobs with its identity`,
    );
}

/**
 * The environment of a job with permissions. Git finds the token by a credential helper for the URL of this server. The
 * helper is in the environment, so neither a file of the job nor the token's own text is in the configuration of git, and the
 * helpers that the image or the user has are not asked to store it.
 * @param env the other variables of the job
 */
export function tokenVariables(
  url: string,
  token: string,
  env: Readonly<Record<string, string>>,
): Record<string, string> {
  const own = Number(env.GIT_CONFIG_COUNT);
  const first = Number.isSafeInteger(own) && own > 0 ? own : 0;
  const helper = `!f() { if [ "$1" = get ]; then echo username=job; echo "password=$${TOKEN_VARIABLE}"; fi; }; f`;
  // The empty value removes the helpers that were configured before.
  const settings = ['', helper].flatMap((value, at) => [
    [`GIT_CONFIG_KEY_${first + at}`, `credential.${url}.helper`],
    [`GIT_CONFIG_VALUE_${first + at}`, value],
  ]);
  return {
    [URL_VARIABLE]: url,
    [TOKEN_VARIABLE]: token,
    ...Object.fromEntries(settings),
    GIT_CONFIG_COUNT: `${first + 2}`,
  };
}
