/** Builds command lines that run as another user. Only root can use them. */

/** The beginning of a command line that changes to the user and drops the groups and capabilities of the current user. */
export function setprivPrefix(uid: number): string[] {
  const capabilities = ['--bounding-set=-all', '--inh-caps=-all', '--no-new-privs'];
  return ['setpriv', `--reuid=${uid}`, `--regid=${uid}`, '--clear-groups', ...capabilities, '--'];
}

/**
 * A command line that signals all processes of the user. The kernel does so in one step: no process can escape by forking,
 * and none can hide by leaving its session or clearing its environment.
 */
export function signalUserCommand(uid: number, signal: 'TERM' | 'KILL'): string[] {
  return [...setprivPrefix(uid), '/bin/sh', '-c', `kill -${signal} -1`];
}
