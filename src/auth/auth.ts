/**
 * The one door through which a credential becomes a Viewer, for REST, GraphQL and git alike: one query
 * reads the credential, its user and the user's roles.
 */
import type { Db } from '../db.ts';
import { unauthenticated } from '../errors.ts';
import { type Account, type Scope, type Viewer, withImplied } from './access.ts';
import { hashSecret, matches } from './tokens.ts';

/** What a request carries. Git's Basic may hold either kind: the doors tell them apart (`auth/http.ts`). */
export type Credential =
  | { kind: 'pat'; token: string }
  | { kind: 'key'; name: string; secret: string };

const NOBODY: Viewer = { kind: 'anonymous' };
const REFUSED = 'The credentials are not valid or have expired';

/** `credential` null: none was given; undefined: one was, of no form that we know. */
export async function authenticate(
  db: Db,
  credential: Credential | null | undefined,
): Promise<Viewer> {
  if (credential === null) return NOBODY;
  const account =
    credential &&
    (await (credential.kind === 'pat' ? byToken(db, credential) : byKey(db, credential)));
  return account ?? { kind: 'anonymous', failure: unauthenticated(REFUSED) };
}

const userSelect = {
  id: true,
  username: true,
  email: true,
  plan: true,
  operator: true,
  namespace: { select: { id: true, name: true } },
  memberships: { select: { namespaceId: true, role: true } },
} as const;

async function byToken(db: Db, { token }: { token: string }): Promise<Account | undefined> {
  const row = await db.accessToken.findUnique({
    where: { hash: hashSecret(token) },
    select: {
      id: true,
      name: true,
      scopes: true,
      namespaces: true,
      repositories: true,
      expiresAt: true,
      user: { select: userSelect },
    },
    relationLoadStrategy: 'join',
  });
  if (!row || isOver(row.expiresAt)) return undefined;
  return account(row.user, { kind: 'pat', id: row.id, name: row.name }, row);
}

async function byKey(
  db: Db,
  { name, secret }: { name: string; secret: string },
): Promise<Account | undefined> {
  const row = await db.apiKey.findUnique({
    where: { name },
    select: {
      id: true,
      hash: true,
      scopes: true,
      namespaceId: true,
      expiresAt: true,
      user: { select: userSelect },
    },
    relationLoadStrategy: 'join',
  });
  if (!row || !matches(secret, row.hash) || isOver(row.expiresAt)) return undefined;
  const namespaces = row.namespaceId ? [row.namespaceId] : [];
  return account(
    row.user,
    { kind: 'key', id: row.id, name },
    { scopes: row.scopes, namespaces, repositories: [] },
  );
}

type UserRow = Omit<Account, 'kind' | 'userId' | 'namespace' | 'roles' | 'credential'> & {
  id: string;
  namespace: Account['namespace'] | null;
  memberships: { namespaceId: string; role: 'read' | 'write' | 'admin' }[];
};
type Narrowing = { scopes: string[]; namespaces: string[]; repositories: string[] };

function account(
  { id, memberships, namespace, ...user }: Omit<UserRow, 'scopes' | 'namespaces' | 'repositories'>,
  credential: Account['credential'],
  { scopes, namespaces, repositories }: Narrowing,
): Account {
  if (!namespace) throw new Error(`User ${id} has no namespace`);
  const setOrNull = <T>(values: T[]) => (values.length ? new Set(values) : null);
  return {
    kind: 'account',
    userId: id,
    ...user,
    namespace,
    roles: new Map(memberships.map((m) => [m.namespaceId, m.role])),
    credential,
    scopes: scopes.length ? withImplied(scopes as Scope[]) : null,
    namespaces: setOrNull(namespaces),
    repositories: setOrNull(repositories),
  };
}

function isOver(expiresAt: Date | null): boolean {
  return expiresAt !== null && expiresAt.getTime() <= Date.now();
}
