/** Rules for names of namespaces, which are users and organizations. */

const NAME = /^[a-z0-9](?:[a-z0-9-]{0,37}[a-z0-9])?$/;
const NAME_RULE = 'must be 1 to 39 of a-z, 0-9 and -, with no hyphen at either end';

/** Names that are the first part of a route. */
const RESERVED: ReadonlySet<string> = new Set(
  `auth graphql repository repositories seed job jobs pat api_keys health version whoami docs openapi.json
   openapi.yaml artifacts metrics app assets login logout settings new admin api static cli sdk schemas favicon.ico
   robots.txt livez readyz agents machines worker`.split(/\s+/),
);

/** Whether a namespace could have this name in any case. If not, no query is needed; PostgreSQL would refuse a NUL. */
export function isPossibleNamespaceName(name: string): boolean {
  return NAME.test(name.toLowerCase());
}

/** Why the name is refused; null if it is allowed. */
export function namespaceNameError(name: string): string | null {
  if (!NAME.test(name)) return NAME_RULE;
  return RESERVED.has(name) ? `"${name}" is reserved for a route; choose another name` : null;
}
