/** Command lines that run as another user. Root alone can use them. */

/** The beginning of a command line that becomes the user, without the groups and rights of this one. */
export function asUser(uid: number): string[] {
  const capabilities = ['--bounding-set=-all', '--inh-caps=-all', '--no-new-privs'];
  return ['setpriv', `--reuid=${uid}`, `--regid=${uid}`, '--clear-groups', ...capabilities, '--'];
}

/**
 * A command line that signals all processes of the user. The kernel does it in one step, so none of them can
 * fork away from it, and none can hide by leaving its session or clearing its environment.
 */
export function signalUser(uid: number, signal: 'TERM' | 'KILL'): string[] {
  return [...asUser(uid), '/bin/sh', '-c', `kill -${signal} -1`];
}
