/** Errors of the command, and the exit code for each failure. */
import { GitError } from './git.ts';
import { LoamError } from './sdk/errors.ts';

/** Exit codes, as `loam help` and docs/cli.md describe them. `run` and `wait` pass the job's code on. */
export const EXIT = {
  failure: 1,
  usage: 2,
  notSignedIn: 4,
  refused: 5,
  unreachable: 69,
  interrupted: 130,
  sessionLost: 255,
} as const;

/** The command line itself is wrong: exit code 2. */
export class UsageError extends Error {
  override name = 'UsageError';
}

/** Nobody is signed in on the server, or the credential has expired: exit code 4. */
export class NotSignedIn extends Error {
  override name = 'NotSignedIn';
}

/** The user has ended the command before its end: exit code 130. */
export class Interrupted extends Error {
  override name = 'Interrupted';
}

/** The connection to a command in a job has broken: exit code 255, as of `ssh`. */
export class SessionLost extends Error {
  override name = 'SessionLost';

  constructor(reason: string) {
    super(`The connection to the job was lost${reason ? `: ${reason}` : ''}`);
  }
}

/** Git has the same exit code for all of these failures, so its error message decides the exit code of the command. */
const GIT_FAILURES: readonly [RegExp, number][] = [
  [/Authentication failed for/, EXIT.notSignedIn],
  [/The requested URL returned error: 403/, EXIT.refused],
  [/unable to access '.*': (?!The requested URL returned error)/, EXIT.unreachable],
];

export function exitCodeOf(error: unknown): number {
  if (error instanceof Interrupted) return EXIT.interrupted;
  if (error instanceof SessionLost) return EXIT.sessionLost;
  if (error instanceof GitError)
    return GIT_FAILURES.find(([said]) => said.test(error.message))?.[1] ?? EXIT.failure;
  if (error instanceof UsageError) return EXIT.usage;
  if (error instanceof NotSignedIn) return EXIT.notSignedIn;
  if (!(error instanceof LoamError)) return EXIT.failure;
  if (error.code === 'unreachable') return EXIT.unreachable;
  if (error.status === 401) return EXIT.notSignedIn;
  if (error.status === 403) return EXIT.refused;
  return EXIT.failure;
}
