/** Names of namespaces: of users and of organizations. */

/** 1 to 39 of a-z, 0-9 and -, with no hyphen at either end. */
export const NAME = /^[a-z0-9](?:[a-z0-9-]{0,37}[a-z0-9])?$/;
export const NAME_RULE = 'must be 1 to 39 of a-z, 0-9 and -, with no hyphen at either end';

/** Routes stand under these names (decisions section 1). */
export const RESERVED: ReadonlySet<string> = new Set(
  `auth graphql repository repositories seed job jobs pat api_keys health version whoami docs openapi.json
   openapi.yaml artifacts metrics app assets login logout settings new admin api static favicon.ico
   robots.txt livez readyz`.split(/\s+/),
);
