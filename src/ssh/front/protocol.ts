/** Messages between the server and its SSH front process over the IPC channel of Node: settings, log lines, counts. */

/** Bounds on the resources that unknown clients can use. */
export type SshLimits = {
  /** Time from connecting to an accepted key. */
  loginMs: number;
  /** Connections without an accepted key, in total and per address. */
  waiting: number;
  waitingOfAddress: number;
  /** Connections in total, and per user over all keys of the user. */
  connections: number;
  connectionsOfUser: number;
  /** Connections per address and minute that end without an accepted key. */
  failuresOfAddress: number;
  /** Offered keys per connection. */
  attempts: number;
  /** Concurrent sessions per connection; each has one command. */
  sessions: number;
  /** Time from opening a session to its command. */
  commandMs: number;
  /** Maximum time that a connection has no command. */
  idleMs: number;
  /** Maximum time that a client reads none of the data buffered for it. */
  stalledMs: number;
  /** Interval of keepalive requests. A client may leave three unanswered. */
  keepaliveMs: number;
};

export const SSH_LIMITS: SshLimits = {
  loginMs: 30_000,
  waiting: 100,
  waitingOfAddress: 20,
  connections: 1_000,
  connectionsOfUser: 100,
  failuresOfAddress: 60,
  // An SSH agent offers all of its keys, one after the other.
  attempts: 10,
  sessions: 10,
  commandMs: 10_000,
  idleMs: 120_000,
  // Longer than the server's limit for a fetch, whose error message names the reason.
  stalledMs: 150_000,
  keepaliveMs: 30_000,
};

export type FrontSettings = {
  kind: 'settings';
  host: string;
  port: number;
  hostKeys: readonly string[];
  /** Path of the gateway's Unix socket. */
  gateway: string;
  limits: SshLimits;
  /** Addresses and networks of proxies. Limits per address do not apply, because a proxy has many clients. */
  proxies: readonly string[];
};

export type FromServer =
  | FrontSettings
  /** Start serving connections, which waited until now. */
  | { kind: 'open' }
  /** Refuse new connections and commands. Running commands continue. */
  | { kind: 'close' };

export type ConnectionCounts = { connections: number; waiting: number; refused: number };

export type FromFront =
  | { kind: 'listening'; port: number }
  | { kind: 'failed'; code: string | undefined; message: string }
  | { kind: 'log'; level: 'debug' | 'info' | 'warn'; fields: object; text: string }
  | { kind: 'counts'; counts: ConnectionCounts };
