/**
 * Messages between the server and its SSH front process over Node's IPC channel. Key lookups and commands go over a
 * Unix socket instead (`../requests.ts`).
 */

/** Limits for the resources that unknown clients can use. */
export type SshLimits = {
  /** Time from connecting to an accepted key. */
  loginMs: number;
  /** Connections without an accepted key, in total and per address. */
  unauthenticated: number;
  unauthenticatedPerAddress: number;
  /** Connections in total, and per user over all keys of the user. */
  connections: number;
  connectionsPerUser: number;
  /** Connections per address and minute that end without an accepted key. */
  failuresPerAddressPerMinute: number;
  /** Maximum number of keys that a client may offer per connection. */
  offeredKeys: number;
  /** Concurrent sessions per connection; each has one command. */
  sessions: number;
  /** Concurrent connections to ports of a job, per connection. A browser opens a dozen. */
  ports: number;
  /** Time from opening a session to its command. */
  commandMs: number;
  /** How long a connection may be without a command. */
  idleMs: number;
  /** The same of a connection to a job, which may wait for a browser: before the first use of a forwarded port, and after it. */
  newJobIdleMs: number;
  jobIdleMs: number;
  /** How long a client may read none of the data buffered for it. */
  stalledMs: number;
  /** Interval of keepalive requests. A client may leave three unanswered. */
  keepaliveMs: number;
};

/** The default limits. */
export const SSH_LIMITS: SshLimits = {
  loginMs: 30_000,
  unauthenticated: 100,
  unauthenticatedPerAddress: 20,
  connections: 1_000,
  connectionsPerUser: 100,
  failuresPerAddressPerMinute: 60,
  // An SSH agent offers all of its keys, one after the other.
  offeredKeys: 10,
  sessions: 10,
  ports: 50,
  commandMs: 10_000,
  idleMs: 120_000,
  newJobIdleMs: 900_000,
  jobIdleMs: 86_400_000,
  // Longer than the 120 s of `IDLE_MS` in session.ts, so that the client gets its error message.
  stalledMs: 150_000,
  keepaliveMs: 30_000,
};

export type FrontSettings = {
  kind: 'settings';
  host: string;
  port: number;
  hostKeys: readonly string[];
  /** Path of the gateway's Unix socket. */
  gatewayPath: string;
  limits: SshLimits;
  /** Addresses and networks of proxies. Limits per address do not apply to them, because a proxy has many clients. */
  proxies: readonly string[];
};

export type FromServer =
  | FrontSettings
  /** Start serving connections; those that arrived earlier are waiting. */
  | { kind: 'serve' }
  /** Refuse new connections and commands. Running commands continue. */
  | { kind: 'drain' };

export type ConnectionCounts = {
  connections: number;
  /** Connections without an accepted key. */
  unauthenticated: number;
  refused: number;
};

export type FromFront =
  | { kind: 'listening'; port: number }
  /** The port cannot be opened; `code` is the system's error code. */
  | { kind: 'failed'; code: string | undefined; message: string }
  | { kind: 'log'; level: 'debug' | 'info' | 'warn'; fields: object; text: string }
  | { kind: 'counts'; counts: ConnectionCounts };
