/**
 * Turns a credential into a Viewer, for REST, GraphQL and git. One query per request reads the credential, its user and
 * the user's roles, so deletions and revoked roles take effect immediately on every server.
 *
 * The query is hand-written because every request pays for it: the join took 61 µs of CPU through pg and 132 through
 * Prisma. There is no cache, because every deletion would have to invalidate it on every server.
 */
import type pg from 'pg';
import type { Plan, Role } from '../../prisma/generated/enums.ts';
import { AppError, unauthenticated } from '../base/errors.ts';
import { isId } from '../base/ids.ts';
import { type Coalesced, coalesce } from '../platform/database/coalesce.ts';
import { runStatement } from '../platform/database/statement.ts';
import { API_KEY_NAME, hashSecret, matchesHash, TOKEN_PREFIX } from './credentials.ts';
import { JOB_TOKEN_PREFIX, type JobTokens } from './job-tokens.ts';
import type { LastUsedRecorder } from './last-used.ts';
import {
  type Account,
  type CredentialKind,
  type JobPermissions,
  type Scope,
  scopesOfJob,
  type Viewer,
  withImpliedScopes,
} from './permissions.ts';
import { isOperatorByGroup, whyNotAdmitted } from './sign-in/admission.ts';
import type { Issuer } from './sign-in/issuers.ts';

/** The credential of a request. Git can only send Basic, which contains a token or an API key. */
export type Credential =
  | { kind: 'pat'; token: string }
  | { kind: 'session'; token: string }
  | { kind: 'key' | 'basic'; name: string; secret: string };

const ANONYMOUS: Viewer = { kind: 'anonymous' };

/** 401: the credentials are unknown, deleted or expired. */
export function invalidCredentialsError(kind?: Credential['kind']): AppError {
  const how =
    '. With Basic, send a personal access token as the password, or an API key as name and secret';
  return unauthenticated(
    `The credentials are not valid or have expired${kind === 'basic' ? how : ''}`,
  );
}

/** 401: the credentials are valid, and an operator has disabled their user. */
export function disabledUserError(username: string): AppError {
  return unauthenticated(`The user ${username} is disabled: ask an operator of this server`);
}

type Pool = pg.Pool;

export type AuthenticateDeps = {
  pool: pg.Pool;
  usage: LastUsedRecorder;
  issuers: readonly Issuer[];
  jobTokens: JobTokens;
};

/** @param credential null when the request has none */
export async function authenticate(
  { pool, usage, issuers, jobTokens }: AuthenticateDeps,
  credential: Credential | null,
): Promise<Viewer> {
  if (credential === null) return ANONYMOUS;
  const token = getToken(credential);
  const account = token?.startsWith(JOB_TOKEN_PREFIX)
    ? await readByJobToken(pool, jobTokens, token)
    : token !== null && JWT.test(token)
      ? await readByIssuerToken(pool, issuers, token)
      : await readAccount(pool, credential);
  if (!account) return { kind: 'anonymous', failure: invalidCredentialsError(credential.kind) };
  if (account instanceof AppError) return { kind: 'anonymous', failure: account };
  usage.note(account.credential);
  return account;
}

/** Matches access tokens of identity providers; Loam's own tokens contain no dots. */
const JWT = /^eyJ[\w-]{1,2000}\.[\w-]{1,16000}\.[\w-]{1,2000}$/;

function getToken(credential: Credential): string | null {
  if (credential.kind === 'pat') return credential.token;
  return credential.kind === 'basic' ? credential.secret : null;
}

/** Shares reads of one token, because a browser sends several requests at once. */
const reads = new WeakMap<Pool, Coalesced<AccountResult>>();

/** Undefined: the credential does not exist or has expired. AppError: its user is disabled. */
type AccountResult = Account | AppError | undefined;

async function readAccount(pool: Pool, credential: Credential): Promise<AccountResult> {
  if (credential.kind === 'pat' || credential.kind === 'session') {
    const { kind, token } = credential;
    const shared = reads.getOrInsertComputed(pool, () => coalesce());
    const read = kind === 'pat' ? readByToken : readBySession;
    return shared(`${kind} ${token}`, () => read(pool, token));
  }
  const { kind, name, secret } = credential;
  if (kind === 'basic' && secret.startsWith(TOKEN_PREFIX)) return readByToken(pool, secret);
  const account = API_KEY_NAME.test(name) ? await readByKey(pool, name, secret) : undefined;
  // LOAM_ADMIN_TOKEN may be a token without the prefix.
  return account ?? (kind === 'basic' ? readByToken(pool, secret) : undefined);
}

type Row = {
  id: string;
  name: string;
  /** Null and empty both mean unrestricted: Prisma writes either. */
  scopes: Scope[] | null;
  namespaces: string[] | null;
  repositories: string[] | null;
  userId: string;
  username: string;
  email: string;
  plan: Plan;
  operator: boolean;
  isDisabled: boolean;
  ownId: string;
  ownName: string;
  roles: Record<string, Role> | null;
};

const USER_WITHOUT_OPERATOR = `
  u.id as "userId", u.username, u.email, u.disabled_at is not null as "isDisabled", own.id as "ownId", own.name as "ownName",
  (select json_object_agg(m.namespace_id, m.role) from members m where m.user_id = u.id) as roles`;
const USER = `${USER_WITHOUT_OPERATOR}, u.operator`;
const JOINED = `
  join users u on u.id = c.user_id
  join namespaces own on own.user_id = u.id`;
const NOT_EXPIRED = `(c.expires_at is null or c.expires_at > now())`;

const TOKENS = `
  select c.id, c.name, c.scopes, c.namespaces, c.repositories, u.plan, ${USER}
  from access_tokens c ${JOINED} where ${NOT_EXPIRED} and`;
const TOKEN = `${TOKENS} c.hash = $1`;
const TOKENS_BY_ID = `${TOKENS} c.id = any($1)`;

/** Requests with a key of a namespace count against the plan of that namespace, not of the key's user. */
const KEYS = `
  select c.id, c.name, c.scopes, c.hash, array_remove(array[bound.id], null) as namespaces,
    null as repositories, coalesce(bound.plan, u.plan) as plan, ${USER}
  from api_keys c ${JOINED} left join namespaces bound on bound.id = c.namespace_id
  where ${NOT_EXPIRED} and`;
const KEY = `${KEYS} c.name = $1`;
const KEYS_BY_ID = `${KEYS} c.id = any($1)`;

/** A user's key has the user's full rights. A deploy key may read one repository, or also push to it. */
const SSH_KEYS = `
  select c.id, c.title as name, u.plan, null as namespaces, case when c.repository_id is null
      then null else array[case when c.write then 'repo:write' else 'repo:read' end] end as scopes,
    array_remove(array[c.repository_id], null) as repositories, ${USER}
  from ssh_keys c ${JOINED} where`;
const SSH_KEY = `${SSH_KEYS} c.fingerprint = $1`;
const SSH_KEYS_BY_ID = `${SSH_KEYS} c.id = any($1)`;

/** SQL interval after which an unused session ends. */
export const SESSION_IDLE = `interval '14 days'`;
const SESSIONS = `
  select c.id, c.method as name, u.plan, null as scopes, null as namespaces, null as repositories, ${USER}
  from browser_sessions c ${JOINED}
  where ${NOT_EXPIRED} and c.last_used_at > now() - ${SESSION_IDLE} and`;
const SESSION = `${SESSIONS} c.hash = $1`;
const SESSIONS_BY_ID = `${SESSIONS} c.id = any($1)`;

async function readBySession(pool: Pool, secret: string): Promise<AccountResult> {
  const rows = await runStatement<Row>(pool, SESSION, [hashSecret(secret)]);
  return rows[0] && toAccount('session', rows[0]);
}

/**
 * Identities of users who have signed in here before. `operator` ignores what the groups of this identity gave at
 * sign-in, because the access token itself says whether the user is an operator by a group.
 */
const IDENTITIES = `
  select c.id, c.issuer as name, u.plan, null as scopes, null as namespaces, null as repositories,
    ${USER_WITHOUT_OPERATOR},
    u.operator and (not c.operator or exists (
      select from identities o where o.user_id = u.id and o.operator and o.id <> c.id)) as operator
  from identities c ${JOINED} where`;
const IDENTITY = `${IDENTITIES} c.issuer = $1 and c.subject = $2`;
const IDENTITIES_BY_ID = `${IDENTITIES} c.id = any($1)`;

/** Suffix of a credential id whose token says that its owner is an operator. */
const OPERATOR_SUFFIX = 'operator';

/**
 * Authenticates an access token of an identity provider. The claims of the token decide whether its owner may sign in,
 * and whether a group makes them an operator, so a user who left a group keeps no rights with later tokens.
 *
 * The credential id is `<identity id>.<expiry in seconds>[.operator]`, so that a recheck by id needs no token.
 * @throws AppError 401, 503 when the identity provider is unavailable
 */
async function readByIssuerToken(
  pool: Pool,
  issuers: readonly Issuer[],
  token: string,
): Promise<AccountResult> {
  const named = readUnverifiedIssuer(token);
  const issuer = issuers.find(({ config }) => config.audience && config.issuer === named);
  if (!issuer) return undefined;
  const { config } = issuer;
  const { claims, expires } = await issuer.verify(token);
  const why = whyNotAdmitted(config, claims);
  if (why)
    throw unauthenticated(`The access token does not prove that you may sign in here: ${why}`);
  const rows = await runStatement<Row>(pool, IDENTITY, [named, claims.subject]);
  if (!rows[0])
    throw unauthenticated(
      'The owner of the access token has not signed in here yet: sign in at /login first',
    );
  const parts = [
    rows[0].id,
    expires,
    ...(isOperatorByGroup(config, claims) ? [OPERATOR_SUFFIX] : []),
  ];
  return toIssuerAccount(rows[0], parts.join('.'));
}

function toIssuerAccount(row: Row, id: string): Account | AppError {
  const operator = row.operator || id.endsWith(`.${OPERATOR_SUFFIX}`);
  return toAccount('oidc', { ...row, id, operator });
}

/** The issuer that an unverified token names, to find the keys to verify it with. */
function readUnverifiedIssuer(token: string): string | undefined {
  try {
    const { iss } = JSON.parse(Buffer.from(token.split('.')[1] ?? '', 'base64url').toString());
    return typeof iss === 'string' ? iss : undefined;
  } catch {
    return undefined;
  }
}

async function readByToken(pool: Pool, token: string): Promise<AccountResult> {
  const rows = await runStatement<Row>(pool, TOKEN, [hashSecret(token)]);
  return rows[0] && toAccount('pat', rows[0]);
}

/**
 * The job of an attempt, with the rights that its creator has now in the namespace. An attempt that has ended, or that no
 * longer holds its job because of a cancellation, is missing, and so is a job whose creator or repository was deleted.
 */
const JOB_ATTEMPTS = `
  select a.id, j.name, j.namespace_id as "namespaceId", j.identity -> 'permissions' as permissions,
    j.repository_id as "repositoryId", bound.plan, u.id as "userId", u.username, u.email,
    u.disabled_at is not null as "isDisabled", own.id as "ownId", own.name as "ownName",
    case when u.operator then 'admin' else (
      select role::text from members where namespace_id = j.namespace_id and user_id = u.id) end as role
  from job_attempts a
    join jobs j on j.id = a.job_id and j.attempt_id = a.id
    join namespaces bound on bound.id = j.namespace_id
    join users u on u.id = j.created_by_id
    join namespaces own on own.user_id = u.id
  where a.exited_at is null and a.ended_at is null and j.status in ('queued', 'running')
    and jsonb_typeof(j.identity -> 'permissions') = 'object' and (j.repo is null or j.repository_id is not null)
    and a.id = any($1)`;

type JobRow = Omit<Row, 'scopes' | 'namespaces' | 'repositories' | 'operator' | 'roles'> & {
  namespaceId: string;
  permissions: JobPermissions;
  repositoryId: string | null;
  role: Role | null;
};

async function readByJobToken(
  pool: Pool,
  jobTokens: JobTokens,
  token: string,
): Promise<AccountResult> {
  const attemptId = jobTokens.readAttemptId(token);
  if (attemptId === null) return undefined;
  const [row] = await runStatement<JobRow>(pool, JOB_ATTEMPTS, [[attemptId]]);
  return row && toJobAccount(row);
}

/**
 * The token of a job with a repository works for this repository and its jobs, any other for the jobs of the namespace. An
 * operator is an admin of the namespace, and no operator.
 */
function toJobAccount(row: JobRow): Account | AppError {
  const { namespaceId, permissions, repositoryId, role } = row;
  return toAccount('job', {
    ...row,
    operator: false,
    roles: role && { [namespaceId]: role },
    scopes: scopesOfJob(permissions),
    namespaces: [namespaceId],
    repositories: repositoryId === null ? null : [repositoryId],
  });
}

/** A user as the owner of a schedule, with the rights that the user has now in the namespace. */
const SCHEDULE_OWNERS = `
  select $2::text as id, $3::text as name, u.plan, u.id as "userId", u.username, u.email,
    u.disabled_at is not null as "isDisabled", own.id as "ownId", own.name as "ownName",
    case when u.operator then 'admin' else (
      select role::text from members where namespace_id = $4 and user_id = u.id) end as role
  from users u join namespaces own on own.user_id = u.id where u.id = $1`;

/**
 * Reads the account in whose name the jobs of a schedule are created. It may only push to the repository and create jobs of
 * it, because a credential that could do no more may have pushed the schedule.
 * @returns null if the user was disabled or deleted
 */
export async function readScheduleOwner(
  pool: Pool,
  userId: string,
  schedule: { id: string; name: string; namespaceId: string; repositoryId: string },
): Promise<Account | null> {
  const { id, name, namespaceId, repositoryId } = schedule;
  const values = [userId, id, name, namespaceId];
  const [row] = await runStatement<Omit<JobRow, 'permissions'>>(pool, SCHEDULE_OWNERS, values);
  if (!row) return null;
  const account = toAccount('schedule', {
    ...row,
    operator: false,
    roles: row.role && { [namespaceId]: row.role },
    scopes: ['repo:write', 'job:write'],
    namespaces: [namespaceId],
    repositories: [repositoryId],
  });
  return account instanceof AppError ? null : account;
}

const USER_RIGHTS = `
  select u.id, u.username as name, u.plan, null as scopes, null as namespaces, null as repositories, ${USER}
  from users u join namespaces own on own.user_id = u.id where u.id = $1`;

/**
 * Reads the rights that a user has now, without the limits of a credential: to check again what was permitted to one.
 * @returns null if the user was disabled or deleted
 */
export async function readUserRights(pool: Pool, userId: string): Promise<Account | null> {
  const [row] = await runStatement<Row>(pool, USER_RIGHTS, [userId]);
  const account = row && toAccount('session', row);
  return account && !(account instanceof AppError) ? account : null;
}

async function readByKey(pool: Pool, name: string, secret: string): Promise<AccountResult> {
  const rows = await runStatement<Row & { hash: Buffer }>(pool, KEY, [name]);
  return rows[0] && matchesHash(secret, rows[0].hash) ? toAccount('key', rows[0]) : undefined;
}

/** Reads the current accounts of credentials that were verified before, by id. Invalid credentials are missing. */
export async function readAccounts(
  pool: Pool,
  credentials: readonly Account['credential'][],
): Promise<Map<string, AccountResult>> {
  const accounts = new Map<string, AccountResult>();
  for (const [kind, statement] of [
    ['pat', TOKENS_BY_ID],
    ['key', KEYS_BY_ID],
    ['ssh', SSH_KEYS_BY_ID],
    ['deploy', SSH_KEYS_BY_ID],
    ['session', SESSIONS_BY_ID],
  ] as const) {
    const ids = new Set(credentials.flatMap((one) => (one.kind === kind ? one.id : [])));
    if (ids.size === 0) continue;
    const rows = await runStatement<Row>(pool, statement, [[...ids]]);
    for (const row of rows) accounts.set(row.id, toAccount(kind, row));
  }
  const attempts = credentials.flatMap(({ kind, id }) => (kind === 'job' ? id : []));
  if (attempts.length > 0)
    for (const row of await runStatement<JobRow>(pool, JOB_ATTEMPTS, [[...new Set(attempts)]]))
      accounts.set(row.id, toJobAccount(row));
  for (const [id, account] of await readIssuerAccounts(pool, credentials))
    accounts.set(id, account);
  return accounts;
}

async function readIssuerAccounts(
  pool: Pool,
  credentials: readonly Account['credential'][],
): Promise<Map<string, AccountResult>> {
  const now = Date.now() / 1_000;
  const valid = credentials.flatMap(({ kind, id }) => {
    const [identity = '', expires] = id.split('.');
    return kind === 'oidc' && Number(expires) > now ? [{ id, identity }] : [];
  });
  if (valid.length === 0) return new Map();
  const ids = [...new Set(valid.map(({ identity }) => identity))];
  const rows = await runStatement<Row>(pool, IDENTITIES_BY_ID, [ids]);
  const byId = new Map(rows.map((row) => [row.id, row]));
  return new Map(
    valid.flatMap(({ id, identity }) => {
      const row = byId.get(identity);
      return row ? [[id, toIssuerAccount(row, id)]] : [];
    }),
  );
}

/** @throws AppError 401 when the credential is invalid or its user is disabled */
export function demandValidAccount(found: AccountResult): Account {
  if (!found) throw invalidCredentialsError();
  if (found instanceof AppError) throw found;
  return found;
}

/**
 * Finds the owner of an SSH key by its fingerprint (`SHA256:…`). Also finds disabled users: `readAccountByCredentialId`
 * rejects their commands with a reason, which the SSH protocol cannot give for a rejected key.
 */
export async function findSshKeyOwner(
  { pool }: { pool: pg.Pool },
  fingerprint: string,
): Promise<{ keyId: string; userId: string; username: string } | undefined> {
  const [row] = await runStatement<Row>(pool, SSH_KEY, [fingerprint]);
  return row && { keyId: row.id, userId: row.userId, username: row.username };
}

/** Reads the current account of a credential that was verified before. @throws AppError 401 */
export async function readAccountByCredentialId(
  { pool, usage }: { pool: pg.Pool; usage: LastUsedRecorder },
  id: string,
): Promise<Account> {
  const kind = credentialKindOf(id);
  const account = demandValidAccount((await readAccounts(pool, [{ kind, id, name: '' }])).get(id));
  usage.note(account.credential);
  return account;
}

function credentialKindOf(id: string): CredentialKind {
  if (isId('ses', id)) return 'session';
  if (id.startsWith('idn_')) return 'oidc';
  if (isId('att', id)) return 'job';
  return (['pat', 'ssh', 'deploy'] as const).find((kind) => isId(kind, id)) ?? 'key';
}

function toAccount(kind: CredentialKind, row: Row): Account | AppError {
  if (row.isDisabled) return disabledUserError(row.username);
  const { userId, username, email, plan, operator } = row;
  const setOrNull = <T>(values: T[] | null) => (values?.length ? new Set(values) : null);
  return {
    kind: 'account',
    userId,
    username,
    email,
    plan,
    operator,
    namespace: { id: row.ownId, name: row.ownName },
    roles: new Map(Object.entries(row.roles ?? {})),
    credential: { kind, id: row.id, name: row.name },
    // A job without permissions has no rights; for other credentials, no scopes mean no limit.
    scopes: row.scopes?.length || kind === 'job' ? withImpliedScopes(row.scopes ?? []) : null,
    namespaces: setOrNull(row.namespaces),
    repositories: setOrNull(row.repositories),
  };
}
