/**
 * Who may do what: one table of actions, one pure function. REST, GraphQL and git all end here, because
 * domain functions ask it and routes do not.
 *
 * A viewer's right is the smallest of three: the role in the namespace, the credential's scopes, and the
 * namespaces and repositories the credential is narrowed to. Visibility can only add reading.
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

/** Each level includes those before it. */
const ROLES_ASCENDING: readonly Role[] = ['read', 'write', 'admin'];

function includesRole(held: Role, needed: Role): boolean {
  return ROLES_ASCENDING.indexOf(held) >= ROLES_ASCENDING.indexOf(needed);
}

/** A scope that is given includes these. */
const IMPLIED: Partial<Record<Scope, readonly Scope[]>> = {
  'repo:write': ['repo:read'],
  'repo:admin': ['repo:write', 'repo:read'],
  'job:write': ['job:read'],
};

/**
 * Action → the role it needs, the scope a limited credential must have (null: only one of full rights may), and what
 * error messages call it.
 */
export const ACTIONS = {
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
  'job.deleteOwn': { role: 'write', scope: 'job:write', what: 'delete jobs' },
  'job.reuseSecrets': {
    role: 'admin',
    scope: 'job:write',
    what: "run another commit with others' secrets",
  },
  'job.deleteAny': { role: 'admin', scope: 'job:write', what: "delete others' jobs" },
  'usage.read': { role: 'read', scope: 'job:read', what: 'see what jobs used' },
  'usage.readByUser': { role: 'admin', scope: 'job:read', what: 'see what each user used' },
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
  /** Of the user, or of the namespace that an API key is bound to: it sets the rate limit. */
  plan: Plan;
  operator: boolean;
  /** The user's own namespace, where it is admin. */
  namespace: { id: string; name: string };
  /** Roles in organizations, by namespace id. */
  roles: ReadonlyMap<string, Role>;
  credential: { kind: CredentialKind; id: string; name: string };
  /** Of the request, for the audit log; absent where rights are only checked again. */
  from?: Origin;
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

export function withImpliedScopes(scopes: readonly Scope[]): Set<Scope> {
  return new Set(scopes.flatMap((scope) => [scope, ...(IMPLIED[scope] ?? [])]));
}

/** The viewer's role in a namespace, before scopes and narrowing. */
export function roleIn(viewer: Viewer, namespaceId: string): Role | null {
  if (viewer.kind === 'anonymous') return null;
  if (viewer.operator || viewer.namespace.id === namespaceId) return 'admin';
  return viewer.roles.get(namespaceId) ?? null;
}

/**
 * What a viewer may do an action to, as data: `reaches` asks it of one target, and lists make it a condition of
 * their query (`repos/visibility.ts`, `jobs/visibility.ts`), so that both follow one rule.
 */
export type Reach = {
  /** Repositories of these visibilities, whosever they are. */
  visibilities: readonly Visibility[];
  /** What lies in these namespaces and belongs to these repositories; null: any. Undefined: nothing. */
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
  // A deploy key is for its repository alone, whatever others show.
  const isOpen = isReading && viewer.credential.kind !== 'deploy';
  const visibilities: Visibility[] = isOpen ? ['public', 'internal'] : [];
  const { role, scope } = ACTIONS[action];
  const { scopes, repositories } = viewer;
  if (scopes && (scope === null || !scopes.has(scope))) return { visibilities };
  return { visibilities, within: { namespaces: namespacesWithRole(viewer, role), repositories } };
}

/** Where the viewer has the role at least, as far as the credential is not narrowed to others; null: everywhere. */
function namespacesWithRole(viewer: Account, role: Role): ReadonlySet<string> | null {
  const { operator, namespaces } = viewer;
  return operator ? namespaces : new Set(namespacesAsMember(viewer, role));
}

/**
 * The ids of the namespaces where the viewer has the role at least as a member, which an operator is not of all; as far
 * as the credential is not narrowed to others.
 */
export function namespacesAsMember(
  { namespace, roles, namespaces }: Account,
  role: Role,
): string[] {
  const members = [...roles].filter(([, held]) => includesRole(held, role));
  const all = [namespace.id, ...members.map(([id]) => id)];
  return namespaces ? all.filter((id) => namespaces.has(id)) : all;
}

export function reaches({ visibilities, within }: Reach, target: Target): boolean {
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
 * What to ask before a repository or job is known: whether the viewer may do it to any of the namespace. For a
 * credential that is narrowed to repositories, to one of them.
 */
export function anyTargetIn(viewer: Viewer, namespaceId: string): Target {
  const narrowed = viewer.kind === 'account' ? viewer.repositories : null;
  return { namespaceId, repositoryId: narrowed ? [...narrowed][0] : null };
}

/** @throws AppError 401 for the anonymous, 403 with the reason for the rest. */
export function demand(viewer: Viewer, action: Action, target: Target): void {
  if (can(viewer, action, target)) return;
  if (viewer.kind === 'anonymous') throw viewer.failure ?? unauthenticated();
  throw forbidden(whyNot(viewer, action, target));
}

/** What is missing, of all that `reachOf` asks for: the role before what the credential is limited to. */
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

/** @throws AppError 401 when nobody is signed in. */
export function demandAccount(viewer: Viewer): Account {
  if (viewer.kind === 'account') return viewer;
  throw viewer.failure ?? unauthenticated();
}

/** @throws AppError 401 or 403: operators alone, with a credential that is not narrowed. */
export function demandOperator(viewer: Viewer): Account {
  const account = demandAccount(viewer);
  if (account.operator && hasFullRights(account)) return account;
  throw forbidden(
    'Only the operator (the first user) may do this, with a credential of full rights',
  );
}

/** Whether the credential carries all the user's rights; only such a one may make other credentials. */
export function hasFullRights({ scopes, namespaces, repositories }: Account): boolean {
  return !scopes && !namespaces && !repositories;
}
