/** What metrics and traces are told of each git process, so that they need not import git. */

/**
 * `code` is null when a signal ended it: ours after a timeout, an abort or an answer beyond its bound, or
 * SIGABRT, with which git ends itself when a client says what it takes for impossible.
 */
export type Ending = { code: number | null; signal: NodeJS.Signals | null; stderr: string };

/** The channel of `node:diagnostics_channel` on which each process that was started is told, in its caller's context. */
export const GIT_STARTED = 'loam:git:started';
/** `args`: the command, such as `rev-list`, and what it was given. */
export type StartedGit = { args: readonly string[]; ended: Promise<Ending> };
