/** What a process and its starter (`starter.ts`) say to each other. */

/** A program, by its path or by its name on the PATH of `env`. */
export type Program = {
  file: string;
  args: readonly string[];
  env: Record<string, string>;
  cwd: string;
};

/**
 * To run to its end; or to be started and have its streams handed over (`start`), each of which comes with a report, and
 * which `have` says to have come; or to outlive whoever started it (`detach`), which then is told lines, until the
 * `last` of them, and says some.
 */
export type Order =
  | { id: number; kind: 'run'; program: Program; input: string; maxBytes: number }
  /** `pipes`: beside the three, from descriptor 3 on. */
  | { id: number; kind: 'start'; program: Program; pipes: number }
  | { id: number; kind: 'have' }
  | { id: number; kind: 'detach'; program: Program; errors: string }
  | { id: number; kind: 'say'; text: string; last: boolean }
  | { id: number; kind: 'kill'; signal: NodeJS.Signals };

/** `tooMuch`: it said more than it may, and was ended. */
export type Ending = {
  code: number | null;
  signal: NodeJS.Signals | null;
  stdout: Uint8Array;
  stderr: string;
  tooMuch: boolean;
};

export type Report =
  | { id: number; kind: 'ended'; ending: Ending }
  /** A stream of a program comes with this: which descriptor it is there. Standard input is the last. */
  | { id: number; kind: 'stream'; descriptor: number; pid: number | undefined }
  /** What was detached has written this to its standard output. */
  | { id: number; kind: 'said'; text: string }
  | { id: number; kind: 'failed'; code: string | undefined; message: string };
