/**
 * The one door through which a credential becomes a Viewer, for REST, GraphQL and git alike: one query
 * reads the credential, its user and the user's roles.
 */
import type { Db } from '../db.ts';
import { unauthenticated } from '../errors.ts';
import type { Services } from '../services.ts';
import { type Account, type Scope, type Viewer, withImplied } from './access.ts';
import { hashSecret, KEY_NAME, matches, TOKEN_PREFIX } from './tokens.ts';

/** What a request carries. Basic, which is all that git can send, may hold either kind. */
export type Credential =
  | { kind: 'pat'; token: string }
  | { kind: 'key' | 'basic'; name: string; secret: string };

const NOBODY: Viewer = { kind: 'anonymous' };
const REFUSED = 'The credentials are not valid or have expired';

/** `credential` null: none was given; undefined: one was, of no form that we know. */
export async function authenticate(
  { db, usage }: Pick<Services, 'db' | 'usage'>,
  credential: Credential | null | undefined,
): Promise<Viewer> {
  if (credential === null) return NOBODY;
  const account = credential && (await accountOf(db, credential));
  if (!account) return { kind: 'anonymous', failure: unauthenticated(REFUSED) };
  usage.note(account.credential);
  return account;
}

async function accountOf(db: Db, credential: Credential): Promise<Account | undefined> {
  if (credential.kind === 'pat') return byToken(db, credential);
  const { kind, name, secret } = credential;
  if (kind === 'basic' && secret.startsWith(TOKEN_PREFIX)) return byToken(db, { token: secret });
  const account = KEY_NAME.test(name) ? await byKey(db, { name, secret }) : undefined;
  // The first token may have been chosen by hand, without the prefix.
  return account ?? (kind === 'basic' ? byToken(db, { token: secret }) : undefined);
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
      namespace: { select: { id: true, plan: true } },
      expiresAt: true,
      user: { select: userSelect },
    },
    relationLoadStrategy: 'join',
  });
  if (!row || !matches(secret, row.hash) || isOver(row.expiresAt)) return undefined;
  const { user, namespace, id, scopes } = row;
  return account(
    // What is done with a namespace's key is done on its plan, whoever made the key.
    namespace ? { ...user, plan: namespace.plan } : user,
    { kind: 'key', id, name },
    { scopes, namespaces: namespace ? [namespace.id] : [], repositories: [] },
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
