/**
 * Permissions: one table of actions, and one pure function. Domain functions call it and routes do not, so REST,
 * GraphQL and git follow the same rules.
 *
 * An action must be allowed by all of: the role in the namespace, the credential's scopes, and the namespaces and
 * repositories that the credential is restricted to. Visibility can only add the right to read.
 */
import type { Plan, Role, Visibility } from '../../prisma/generated/enums.ts';
import { type AppError, forbidden, unauthenticated } from '../base/errors.ts';
import type { CredentialKind, Origin } from './audit.ts';

export const SCOPES = [
  'repo:read',
  'repo:write',
  'repo:admin',
  'job:read',
  'job:write',
  'webhook:admin',
] as const;
export type Scope = (typeof SCOPES)[number];

/** Each role includes the roles before it. */
const ROLES_ASCENDING: readonly Role[] = ['read', 'write', 'admin'];

function includesRole(role: Role, needed: Role): boolean {
  return ROLES_ASCENDING.indexOf(role) >= ROLES_ASCENDING.indexOf(needed);
}

/** Scope → the scopes that it includes. */
const IMPLIED: Partial<Record<Scope, readonly Scope[]>> = {
  'repo:write': ['repo:read'],
  'repo:admin': ['repo:write', 'repo:read'],
  'job:write': ['job:read'],
};

/**
 * Action → the required role, the scope that a limited credential needs (null: only full rights suffice), and the text
 * for error messages.
 */
const ACTIONS = {
  'repository.read': { role: 'read', scope: 'repo:read', what: 'read repositories' },
  'repository.push': { role: 'write', scope: 'repo:write', what: 'push' },
  'repository.create': { role: 'admin', scope: 'repo:admin', what: 'create repositories' },
  'repository.administer': {
    role: 'admin',
    scope: 'repo:admin',
    what: 'change, transfer or delete repositories',
  },
  'job.read': { role: 'read', scope: 'job:read', what: 'see jobs' },
  'job.create': { role: 'write', scope: 'job:write', what: 'create jobs' },
  'job.cancel': { role: 'write', scope: 'job:write', what: 'cancel jobs' },
  'job.keep': { role: 'write', scope: 'job:write', what: 'keep jobs' },
  'job.deleteOwn': { role: 'write', scope: 'job:write', what: 'delete jobs' },
  'job.reuseSecrets': {
    role: 'admin',
    scope: 'job:write',
    what: "run another commit with others' secrets",
  },
  'job.shellOwn': { role: 'write', scope: null, what: 'open shells in jobs' },
  'job.shellAny': { role: 'admin', scope: null, what: "open shells in others' jobs" },
  'shell.administer': { role: 'admin', scope: null, what: 'switch shells in jobs on or off' },
  'job.deleteAny': { role: 'admin', scope: 'job:write', what: "delete others' jobs" },
  'retention.administer': {
    role: 'admin',
    scope: null,
    what: 'set when jobs are removed',
  },
  'secret.list': { role: 'write', scope: 'job:read', what: 'see secrets and variables' },
  'secret.administer': {
    role: 'admin',
    scope: 'repo:admin',
    what: 'manage secrets and variables',
  },
  'usage.read': { role: 'read', scope: 'job:read', what: 'see what jobs used' },
  'usage.readByUser': { role: 'admin', scope: 'job:read', what: 'see what each user used' },
  'budget.administer': { role: 'admin', scope: null, what: 'change budgets' },
  'machine.read': { role: 'read', scope: null, what: 'see machines' },
  'machine.administer': { role: 'admin', scope: null, what: 'manage machines' },
  'webhook.administer': { role: 'admin', scope: 'webhook:admin', what: 'manage webhooks' },
  'namespace.read': { role: 'read', scope: 'repo:read', what: 'see the members and the plan' },
  'namespace.administer': { role: 'admin', scope: null, what: 'manage members and API keys' },
} as const satisfies Record<string, { role: Role; scope: Scope | null; what: string }>;

export type Action = keyof typeof ACTIONS;

export type { CredentialKind };

export type Account = {
  kind: 'account';
  userId: string;
  username: string;
  email: string;
  /** Plan of the user, or of the namespace that an API key is bound to. It sets the rate limit. */
  plan: Plan;
  operator: boolean;
  /** The user's own namespace, in which the user is admin. */
  namespace: { id: string; name: string };
  /** Roles in organizations, by namespace id. */
  roles: ReadonlyMap<string, Role>;
  credential: { kind: CredentialKind; id: string; name: string };
  /** Origin of the request for the audit log; absent in rechecks. */
  from?: Origin;
  /** Includes implied scopes. Null: all rights of the user. */
  scopes: ReadonlySet<Scope> | null;
  /** Ids that the credential is restricted to; null: no restriction. */
  namespaces: ReadonlySet<string> | null;
  repositories: ReadonlySet<string> | null;
};

type Anonymous = {
  kind: 'anonymous';
  /** Set when the request had credentials that were refused: answer 401 even where no credentials are needed. */
  failure?: AppError;
};

export type Viewer = Account | Anonymous;

/** What the token of a job may do. */
export type JobPermissions = { repo?: 'read' | 'write'; jobs?: 'read' | 'write' };

export function scopesOfJob({ repo, jobs }: JobPermissions): Scope[] {
  return [...(repo ? [`repo:${repo}` as const] : []), ...(jobs ? [`job:${jobs}` as const] : [])];
}

export type Target = {
  namespaceId: string;
  /** Id of the repository, or of the repository that a job runs. */
  repositoryId?: string | null;
  visibility?: Visibility;
};

export function withImpliedScopes(scopes: readonly Scope[]): Set<Scope> {
  return new Set(scopes.flatMap((scope) => [scope, ...(IMPLIED[scope] ?? [])]));
}

/** The viewer's role in a namespace, without scopes and restrictions of the credential. */
export function roleIn(viewer: Viewer, namespaceId: string): Role | null {
  if (viewer.kind === 'anonymous') return null;
  if (viewer.operator || viewer.namespace.id === namespaceId) return 'admin';
  return viewer.roles.get(namespaceId) ?? null;
}

/**
 * The targets of an action that a viewer may reach, as data. `reaches` tests one target, and lists turn it into a query
 * condition (`repositories/visibility.ts`, `../jobs/record/visibility.ts`), so that both follow one rule.
 */
type Reach = {
  /** Repositories with these visibilities, in any namespace. */
  visibilities: readonly Visibility[];
  /** Targets in these namespaces and of these repositories; null: any. Undefined: no target. */
  within?: {
    namespaces: ReadonlySet<string> | null;
    repositories: ReadonlySet<string> | null;
  };
};

const NOTHING: Reach = { visibilities: [] };
const PUBLIC: Reach = { visibilities: ['public'] };

export function reachOf(viewer: Viewer, action: Action): Reach {
  const isReading = action === 'repository.read';
  if (viewer.kind === 'anonymous') return isReading ? PUBLIC : NOTHING;
  const visibilities = isReading ? openVisibilities(viewer) : [];
  const { role, scope } = ACTIONS[action];
  const { scopes, repositories } = viewer;
  if (scopes && (scope === null || !scopes.has(scope))) return { visibilities };
  return { visibilities, within: { namespaces: namespacesWithRole(viewer, role), repositories } };
}

/** The visibilities of repositories that the credential may read in any namespace. */
function openVisibilities({ credential: { kind } }: Account): Visibility[] {
  // A deploy key works for its repository only, not for public repositories.
  if (kind === 'deploy') return [];
  // A job is limited to its namespace, and reads elsewhere what everybody may read.
  return kind === 'job' ? ['public'] : ['public', 'internal'];
}

/** Namespaces in which the viewer has at least the role and the credential is allowed; null: all. */
function namespacesWithRole(viewer: Account, role: Role): ReadonlySet<string> | null {
  const { operator, namespaces } = viewer;
  return operator ? namespaces : new Set(namespacesAsMember(viewer, role));
}

/**
 * Ids of the namespaces in which the viewer is a member with at least the role, and in which the credential is allowed.
 * An operator has rights in all namespaces, but is not a member of all.
 */
export function namespacesAsMember(
  { namespace, roles, namespaces }: Account,
  role: Role,
): string[] {
  const members = [...roles].filter(([, held]) => includesRole(held, role));
  const all = [namespace.id, ...members.map(([id]) => id)];
  return namespaces ? all.filter((id) => namespaces.has(id)) : all;
}

function reaches({ visibilities, within }: Reach, target: Target): boolean {
  if (target.visibility && visibilities.includes(target.visibility)) return true;
  if (!within) return false;
  const { namespaces, repositories } = within;
  return (
    (!namespaces || namespaces.has(target.namespaceId)) &&
    (!repositories || (target.repositoryId != null && repositories.has(target.repositoryId)))
  );
}

export function can(viewer: Viewer, action: Action, target: Target): boolean {
  return reaches(reachOf(viewer, action), target);
}

/**
 * Returns the target for a check whether the viewer may do the action to any object of the namespace, before the
 * repository or job is known. For a credential restricted to repositories, the target is the first of these.
 */
export function anyTargetIn(viewer: Viewer, namespaceId: string): Target {
  const narrowed = viewer.kind === 'account' ? viewer.repositories : null;
  return { namespaceId, repositoryId: narrowed ? [...narrowed][0] : null };
}

/** @throws AppError 401 for an anonymous viewer, 403 with the reason for an account. */
export function demand(viewer: Viewer, action: Action, target: Target): void {
  if (can(viewer, action, target)) return;
  if (viewer.kind === 'anonymous') throw viewer.failure ?? unauthenticated();
  throw forbidden(whyNot(viewer, action, target));
}

/** Explains which condition of `reachOf` failed: first the role, then the limits of the credential. */
function whyNot(viewer: Account, action: Action, { namespaceId }: Target): string {
  const { role, scope, what } = ACTIONS[action];
  const own = roleIn(viewer, namespaceId);
  if (own === null || !includesRole(own, role))
    return `You may not ${what} in this namespace: that needs the role ${role}, and ${own ? `yours is ${own}` : 'you are not a member'}`;
  const lacks = () => {
    const { scopes, namespaces } = viewer;
    if (scopes && scope === null) return 'that needs full rights, and it is limited to scopes';
    if (scopes && scope !== null && !scopes.has(scope)) return `it lacks the scope ${scope}`;
    const isElsewhere = namespaces && !namespaces.has(namespaceId);
    return `it is limited to other ${isElsewhere ? 'namespaces' : 'repositories'}`;
  };
  return `You may not ${what} with this credential: ${lacks()}`;
}

/** @throws AppError 401 for an anonymous viewer */
export function demandAccount(viewer: Viewer): Account {
  if (viewer.kind === 'account') return viewer;
  throw viewer.failure ?? unauthenticated();
}

/** @returns the account of an operator with a credential of full rights. @throws AppError 401, 403. */
export function demandOperator(viewer: Viewer): Account {
  const account = demandAccount(viewer);
  if (account.operator && hasFullRights(account)) return account;
  throw forbidden(
    'Only the operator (the first user) may do this, with a credential of full rights',
  );
}

/** Whether the credential has all rights of its user; this is required to manage credentials. */
export function hasFullRights({ scopes, namespaces, repositories }: Account): boolean {
  return !scopes && !namespaces && !repositories;
}
