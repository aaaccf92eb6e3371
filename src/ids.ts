/** Ids are TypeIDs: a prefix that says what it is, and a UUIDv7, so ids sort by time of creation. */
import { TypeID, typeid } from 'typeid-js';

/** Prefix → the GraphQL type that `node(id:)` finds under it, null where it is no node. */
export const PREFIXES = {
  user: 'User',
  ns: 'Namespace',
  repo: 'Repository',
  job: 'Job',
  pat: 'AccessToken',
  key: 'ApiKey',
  wh: null,
  evt: null,
  dlv: null,
  att: null,
  srv: null,
} as const;

export type Prefix = keyof typeof PREFIXES;

export function newId(prefix: Prefix): string {
  return typeid(prefix).toString();
}

/** Whether `text` is an id of that kind: what is not cannot exist, and need not be asked for. */
export function isId(prefix: Prefix, text: string): boolean {
  try {
    return TypeID.fromString(text).getType() === prefix;
  } catch {
    return false;
  }
}
