/** Messages between a process and its starter process (`starter.ts`). */

/** A program, by its path or by its name on the PATH of `env`. */
export type Program = {
  file: string;
  args: readonly string[];
  env: Record<string, string>;
  cwd: string;
};

/**
 * `run`: runs a program to its end. `start`: starts a program and hands over its streams, each with an event; `ack` confirms
 * that all streams have arrived. `detach`: starts a program that outlives its caller; its output arrives in events, and
 * `write` sends input.
 */
export type Command =
  | { id: number; kind: 'run'; program: Program; input: string; maxBytes: number }
  /** `pipes`: number of pipes from descriptor 3 on. */
  | { id: number; kind: 'start'; program: Program; pipes: number }
  | { id: number; kind: 'ack' }
  | { id: number; kind: 'detach'; program: Program; errors: string }
  | { id: number; kind: 'write'; text: string; last: boolean }
  | { id: number; kind: 'kill'; signal: NodeJS.Signals };

/** `exceededLimit`: the program was ended because its output exceeded the limit. */
export type ProgramExit = {
  code: number | null;
  signal: NodeJS.Signals | null;
  stdout: Uint8Array;
  stderr: string;
  exceededLimit: boolean;
};

/** What happens to a program, from the starter. */
export type StarterEvent =
  | { id: number; kind: 'ended'; ending: ProgramExit }
  /** Sent with a stream of the program. `descriptor` is the stream's number in the program. Standard input comes last. */
  | { id: number; kind: 'stream'; descriptor: number; pid: number | undefined }
  /** Standard output of a detached program. */
  | { id: number; kind: 'output'; text: string }
  | { id: number; kind: 'failed'; code: string | undefined; message: string };
