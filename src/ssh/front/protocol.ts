/** What the server and the process that speaks SSH tell each other beside the socket: its settings, and what it logs. */

/** Numbers that bound what strangers can take. */
export type SshLimits = {
  /** From the opening of a connection to a key that is accepted. */
  loginMs: number;
  /** Connections that have not shown a key yet, in all and of one address. */
  waiting: number;
  waitingOfAddress: number;
  /** Connections in all, and of one user, with whichever keys. */
  connections: number;
  connectionsOfUser: number;
  /** Connections of an address a minute that end without a key that is accepted. */
  failuresOfAddress: number;
  /** Keys that a connection may offer. */
  attempts: number;
  /** Sessions at once on one connection; each has one command. */
  sessions: number;
  /** From the opening of a session to its command. */
  commandMs: number;
  /** A connection without a command. */
  idleMs: number;
  /** A client that takes nothing of what waits for it. */
  stalledMs: number;
  /** Between two questions whether the client is still there, of which it may leave three without an answer. */
  keepaliveMs: number;
};

export const SSH_LIMITS: SshLimits = {
  loginMs: 30_000,
  waiting: 100,
  waitingOfAddress: 20,
  connections: 1_000,
  connectionsOfUser: 100,
  failuresOfAddress: 60,
  // An agent offers all its keys, one after the other.
  attempts: 10,
  sessions: 10,
  commandMs: 10_000,
  idleMs: 120_000,
  // Longer than the server's own limit for a fetch, which says why it ends.
  stalledMs: 150_000,
  keepaliveMs: 30_000,
};

export type FrontSettings = {
  kind: 'settings';
  host: string;
  port: number;
  hostKeys: readonly string[];
  /** The path of the socket where the server is asked. */
  gateway: string;
  limits: SshLimits;
  /** Addresses and networks of proxies, behind which are many clients: limits of one address are none for them. */
  proxies: readonly string[];
};

export type FromServer =
  | FrontSettings
  /** From now on what comes is answered; until then it waits. */
  | { kind: 'open' }
  /** No new connections and commands; what runs goes on. */
  | { kind: 'close' };

export type ConnectionCounts = { connections: number; waiting: number; refused: number };

export type FromFront =
  | { kind: 'listening'; port: number }
  | { kind: 'failed'; code: string | undefined; message: string }
  | { kind: 'log'; level: 'debug' | 'info' | 'warn'; fields: object; text: string }
  | { kind: 'counts'; counts: ConnectionCounts };
