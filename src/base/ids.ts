/** Ids are TypeIDs: a prefix for the kind of object, and a UUIDv7, so that ids sort by time of creation. */
import { TypeID, typeid } from 'typeid-js';

/** Prefix → GraphQL type that `node(id:)` returns, null for objects that are not nodes. */
const PREFIXES = {
  user: 'User',
  ns: 'Namespace',
  repo: 'Repository',
  job: 'Job',
  arr: null,
  pat: 'AccessToken',
  key: 'ApiKey',
  ssh: 'SshKey',
  deploy: 'DeployKey',
  ses: 'Session',
  sil: null,
  idn: null,
  dev: null,
  wh: 'Webhook',
  evt: null,
  dlv: 'Delivery',
  lfo: null,
  cache: null,
  aud: null,
  att: 'JobAttempt',
  srv: null,
  lock: null,
  sec: null,
  var: null,
  run: 'Run',
  sch: 'Schedule',
  wtk: null,
  mch: null,
  shl: null,
  app: null,
  ckp: null,
} as const;

type Prefix = keyof typeof PREFIXES;

/** A membership has no id of its own; its id is made of the namespace and the user. */
const MEMBER = /^member_([0-9a-z]{26})_([0-9a-z]{26})$/;

export function memberId({ namespaceId, userId }: { namespaceId: string; userId: string }): string {
  return `member_${namespaceId.slice('ns_'.length)}_${userId.slice('user_'.length)}`;
}

/** Null if `id` is not the id of a member. */
export function parseMemberId(id: string): { namespaceId: string; userId: string } | null {
  const [, namespace, user] = MEMBER.exec(id) ?? [];
  const parsed = { namespaceId: `ns_${namespace}`, userId: `user_${user}` };
  return isId('ns', parsed.namespaceId) && isId('user', parsed.userId) ? parsed : null;
}

/** GraphQL type of the node with this id; null if `id` is not the id of a node. */
export function nodeTypeOf(id: string): string | null {
  if (parseMemberId(id)) return 'Member';
  const prefix = id.slice(0, id.lastIndexOf('_'));
  const type = Object.hasOwn(PREFIXES, prefix) ? PREFIXES[prefix as Prefix] : null;
  return type && isId(prefix as Prefix, id) ? type : null;
}

export function newId(prefix: Prefix): string {
  return typeid(prefix).toString();
}

/** Whether `text` is an id with this prefix. If not, no such object exists and no query is needed. */
export function isId(prefix: Prefix, text: string): boolean {
  try {
    return TypeID.fromString(text).getType() === prefix;
  } catch {
    return false;
  }
}
