/** Addresses of this service without a trailing slash; they name the port that the server really listens on. */
export type Urls = { base: string; artifacts: string; ssh: string };
