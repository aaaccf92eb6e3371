/** What the SSH front process asks the server for, and the answers, as JSON of frames (`platform/frames.ts`). */
import type { TerminalSize } from '../../platform/frames.ts';

/** Sent for each key that a client offers, and again when the client sends a signature. */
export type KeyLookup = { fingerprint: string };
/** Null for an unknown key. */
export type KeyOwner = {
  /** The id of the credential. */
  id: string;
  /** The user whose rights the key has. */
  userId: string;
  name: string;
} | null;
export type ExecRequest = {
  /** Id of the credential whose key signed. */
  credential: string;
  /** Null for a shell request. */
  command: string | null;
  /** The client's `GIT_PROTOCOL`. */
  protocol?: string;
  /** The client's IP address. */
  address: string;
  /** The job in whose sandbox the command runs; unset: the command is one of git. */
  shell?: JobShell;
};

/** A command or a shell in a job. */
export type JobShell = {
  namespace: string;
  name: string;
  /** A port of the job's loopback interface to connect to, instead of a command. */
  port?: number;
  /** The name of the subsystem that the client asks for, instead of a command. */
  subsystem?: string;
  /** Variables that the client sends, among them TERM. */
  env: Record<string, string>;
  /** Null: no terminal. */
  terminal: TerminalSize | null;
};
