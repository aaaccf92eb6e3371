/** Which server a command speaks to, with which credential, and through which proxy. */
import { isOf, type Remote, readRemotes } from './clone.ts';
import type { Credential, Credentials } from './credentials.ts';
import { readCredentials } from './credentials.ts';
import { NotSignedIn, UsageError } from './exit.ts';
import { openFetch } from './network.ts';
import { Client } from './sdk/client.ts';
import { LoamError } from './sdk/errors.ts';
import { parseOrigin } from './sdk/transport.ts';
import { VERSION } from './version.ts';

/** The options that every command has. */
export type GlobalOptions = { server?: string | undefined; verbose?: true | undefined };

export type Connection = {
  client: Client;
  /** The origin of the server. */
  server: string;
  token: string;
};

/** A connection from within a working directory. */
export type LocalConnection = Connection & {
  /** The repository of the server that the clone belongs to; null outside of a clone. */
  remote: Remote | null;
  username: string;
};

/** @throws NotSignedIn when there is no credential for the server */
export async function connect(options: GlobalOptions): Promise<Connection> {
  return open(options, readCredentials(), []);
}

/** As `connect`; the server of the clone comes before that of the latest login. @throws NotSignedIn */
export async function connectHere(options: GlobalOptions): Promise<LocalConnection> {
  const credentials = readCredentials();
  const remotes = await readRemotes();
  const connection = await open(options, credentials, remotes);
  const { server, token, client } = connection;
  const stored = credentials.servers[server];
  return {
    ...connection,
    remote: remotes.find((remote) => isOf(remote, server)) ?? null,
    username: stored?.token === token ? stored.username : await client.username(),
  };
}

async function open(
  options: GlobalOptions,
  credentials: Credentials,
  remotes: readonly Remote[],
): Promise<Connection> {
  const server = selectServer(options, credentials, remotes);
  if (server === null)
    throw new NotSignedIn('You are not signed in. Run "loam login https://your-server".');
  const token = tokenFor(server, credentials, options);
  if (token === null)
    throw new NotSignedIn(`You are not signed in on ${server}. Run "loam login ${server}".`);
  return { client: await openClient(server, token), server, token };
}

/**
 * The server is, in this order: `--server`, `LOAM_URL`, that of a remote of the clone where somebody is signed in, that of
 * the latest login.
 * @returns the origin; null when none of them is given
 */
export function selectServer(
  options: GlobalOptions,
  credentials: Credentials,
  remotes: readonly Remote[] = [],
): string | null {
  const named = options.server ?? (process.env.LOAM_URL || undefined);
  if (named !== undefined) return originOf(named);
  const known = Object.keys(credentials.servers);
  const cloned = remotes.flatMap((remote) => known.filter((server) => isOf(remote, server)));
  return cloned[0] ?? credentials.default;
}

export function tokenFor(
  server: string,
  credentials: Credentials,
  options: GlobalOptions = {},
): string | null {
  const stored = credentials.servers[server]?.token ?? null;
  const url = process.env.LOAM_URL;
  const belongs = url ? originOf(url) === server : !options.server || stored === null;
  return (belongs && environmentToken()) || stored;
}

/**
 * `LOAM_TOKEN`, which belongs to `LOAM_URL` where that is set: it is sent to no other server.
 * @throws UsageError if no header can have it
 */
function environmentToken(): string | undefined {
  const token = process.env.LOAM_TOKEN?.trim();
  if (token && !/^[\x21-\x7e]+$/.test(token))
    throw new UsageError('LOAM_TOKEN is not a token: it has spaces, or characters beyond ASCII.');
  return token;
}

/** Whether commands with these options use `LOAM_TOKEN`. */
export function isTokenOfEnvironment(options: GlobalOptions): boolean {
  const credentials = readCredentials();
  const token = environmentToken();
  const server = selectServer(options, credentials) ?? '';
  return token !== undefined && tokenFor(server, credentials, options) === token;
}

export async function openClient(server: string, token?: string): Promise<Client> {
  const custom = await openFetch();
  return new Client({
    url: server,
    token,
    userAgent: `loam/${VERSION}`,
    ...(custom && { fetch: custom }),
  });
}

/** @throws UsageError */
export function originOf(url: string): string {
  try {
    return parseOrigin(url);
  } catch (error) {
    throw error instanceof LoamError ? new UsageError(error.message) : error;
  }
}

/** User name and password for git, each on one line. An API key consists of both. @throws LoamError */
export function gitCredential({ username, token }: Credential): [string, string] {
  // Git reads one `name=value` per line, so a line break in a value could set another host.
  if (/\p{Cc}/u.test(username + token))
    throw new LoamError('bad_answer', 'The user name or the token has control characters.');
  const [name = '', secret] = token.split('$');
  return secret === undefined ? [username, token] : [name, secret];
}
