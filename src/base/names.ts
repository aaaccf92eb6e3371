/** Names of namespaces: of users and of organizations. */

const NAME = /^[a-z0-9](?:[a-z0-9-]{0,37}[a-z0-9])?$/;
const NAME_RULE = 'must be 1 to 39 of a-z, 0-9 and -, with no hyphen at either end';

/** Routes stand under these names (decisions section 1). */
const RESERVED: ReadonlySet<string> = new Set(
  `auth graphql repository repositories seed job jobs pat api_keys health version whoami docs openapi.json
   openapi.yaml artifacts metrics app assets login logout settings new admin api static favicon.ico
   robots.txt livez readyz`.split(/\s+/),
);

/** Whether there can be one of this name, in any case: else the database, which refuses a NUL, need not be asked. */
export function canBeNamespace(name: string): boolean {
  return NAME.test(name.toLowerCase());
}

/** Why nobody may take this name; null when it may be taken. */
export function whyNotName(name: string): string | null {
  if (!NAME.test(name)) return NAME_RULE;
  return RESERVED.has(name) ? `"${name}" is reserved, because a route stands under it` : null;
}
