/** Messages about each started git process. Metrics and traces receive them without importing `git/`. */

/**
 * `code` is null if a signal ended the process: a signal of Loam after a timeout, an abort or too much output, or SIGABRT,
 * with which git ends itself after an impossible request of a client.
 */
export type GitExit = { code: number | null; signal: NodeJS.Signals | null; stderr: string };

/** Diagnostics channel on which each started process is published, in the context of its caller. */
export const GIT_STARTED = 'loam:git:started';

/** `args`: the git command, such as `rev-list`, and its arguments. */
export type StartedGit = { args: readonly string[]; ended: Promise<GitExit> };
