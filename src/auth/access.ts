/**
 * Who may do what: one table of actions, one pure function. REST, GraphQL and git all end here, because
 * domain functions ask it and doors do not.
 *
 * A viewer's right is the smallest of three: the role in the namespace, the credential's scopes, and the
 * namespaces and repositories the credential is narrowed to. Visibility can only add reading.
 */
import type { Plan, Role, Visibility } from '../../prisma/generated/enums.ts';
import { type AppError, forbidden, unauthenticated } from '../errors.ts';

export const SCOPES = [
  'repo:read',
  'repo:write',
  'repo:admin',
  'job:read',
  'job:write',
  'webhook:admin',
] as const;
export type Scope = (typeof SCOPES)[number];

/** Each level includes those before it. */
const LEVELS: readonly Role[] = ['read', 'write', 'admin'];

/** A scope that is given includes these. */
const IMPLIED: Partial<Record<Scope, readonly Scope[]>> = {
  'repo:write': ['repo:read'],
  'repo:admin': ['repo:write', 'repo:read'],
  'job:write': ['job:read'],
};

/** Action → the role it needs, and the scope a narrowed credential must carry (null: full rights only). */
export const ACTIONS = {
  'repository.read': { role: 'read', scope: 'repo:read' },
  'repository.push': { role: 'write', scope: 'repo:write' },
  'repository.create': { role: 'admin', scope: 'repo:admin' },
  'repository.administer': { role: 'admin', scope: 'repo:admin' },
  'job.read': { role: 'read', scope: 'job:read' },
  'job.create': { role: 'write', scope: 'job:write' },
  'job.cancel': { role: 'write', scope: 'job:write' },
  'job.deleteOwn': { role: 'write', scope: 'job:write' },
  'job.deleteAny': { role: 'admin', scope: 'job:write' },
  'webhook.administer': { role: 'admin', scope: 'webhook:admin' },
  'namespace.read': { role: 'read', scope: 'repo:read' },
  'namespace.administer': { role: 'admin', scope: null },
} as const satisfies Record<string, { role: Role; scope: Scope | null }>;

export type Action = keyof typeof ACTIONS;

export type Account = {
  kind: 'account';
  userId: string;
  username: string;
  email: string;
  /** Of the user, or of the namespace that an API key is bound to: it sets the rate limit. */
  plan: Plan;
  operator: boolean;
  /** The user's own namespace, where it is admin. */
  namespace: { id: string; name: string };
  /** Roles in organizations, by namespace id. */
  roles: ReadonlyMap<string, Role>;
  credential: { kind: 'pat' | 'key'; id: string; name: string };
  /** Null: the user's full rights. Implied scopes are in it. */
  scopes: ReadonlySet<Scope> | null;
  /** Ids the credential is narrowed to; null: not narrowed. */
  namespaces: ReadonlySet<string> | null;
  repositories: ReadonlySet<string> | null;
};

export type Anonymous = {
  kind: 'anonymous';
  /** Set when credentials were given and refused: a reason to answer 401 even where none are needed. */
  failure?: AppError;
};

export type Viewer = Account | Anonymous;

export type Target = {
  namespaceId: string;
  /** Of a repository, or of the one that a job runs. */
  repositoryId?: string | null;
  visibility?: Visibility;
};

export function withImplied(scopes: readonly Scope[]): Set<Scope> {
  return new Set(scopes.flatMap((scope) => [scope, ...(IMPLIED[scope] ?? [])]));
}

/** The viewer's role in a namespace, before scopes and narrowing. */
export function roleIn(viewer: Viewer, namespaceId: string): Role | null {
  if (viewer.kind === 'anonymous') return null;
  if (viewer.operator || viewer.namespace.id === namespaceId) return 'admin';
  return viewer.roles.get(namespaceId) ?? null;
}

export function can(viewer: Viewer, action: Action, target: Target): boolean {
  if (action === 'repository.read') {
    if (target.visibility === 'public') return true;
    if (target.visibility === 'internal' && viewer.kind === 'account') return true;
  }
  const role = roleIn(viewer, target.namespaceId);
  const needed = ACTIONS[action];
  return (
    role !== null &&
    LEVELS.indexOf(role) >= LEVELS.indexOf(needed.role) &&
    credentialAllows(viewer, needed.scope, target)
  );
}

function credentialAllows(viewer: Viewer, scope: Scope | null, target: Target): boolean {
  if (viewer.kind === 'anonymous') return false;
  const { scopes, namespaces, repositories } = viewer;
  if (scopes && (scope === null || !scopes.has(scope))) return false;
  if (namespaces && !namespaces.has(target.namespaceId)) return false;
  return !repositories || (target.repositoryId != null && repositories.has(target.repositoryId));
}

/**
 * What to ask before a repository or job is known: whether the viewer may do it to any of the namespace. For a
 * credential that is narrowed to repositories, to one of them.
 */
export function anyIn(viewer: Viewer, namespaceId: string): Target {
  const narrowed = viewer.kind === 'account' ? viewer.repositories : null;
  return { namespaceId, repositoryId: narrowed ? [...narrowed][0] : null };
}

/** @throws AppError 401 for the anonymous, 403 for the rest. */
export function demand(viewer: Viewer, action: Action, target: Target): void {
  if (can(viewer, action, target)) return;
  if (viewer.kind === 'anonymous') throw viewer.failure ?? unauthenticated();
  throw forbidden(`You are not allowed to do this here (${action})`);
}

/** @throws AppError 401 when nobody is signed in. */
export function demandAccount(viewer: Viewer): Account {
  if (viewer.kind === 'account') return viewer;
  throw viewer.failure ?? unauthenticated();
}

/** @throws AppError 401 or 403: operators alone, with a credential that is not narrowed. */
export function demandOperator(viewer: Viewer): Account {
  const account = demandAccount(viewer);
  if (account.operator && hasFullRights(account)) return account;
  throw forbidden('Only the operator may do this');
}

/** Whether the credential carries all the user's rights; only such a one may make other credentials. */
export function hasFullRights({ scopes, namespaces, repositories }: Account): boolean {
  return !scopes && !namespaces && !repositories;
}
