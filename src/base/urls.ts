/** Base URLs of this service without a trailing slash. They contain the actual port. */
export type Urls = { base: string; artifacts: string; ssh: string };
