/**
 * The last step before the job's command, the same in every confinement: the environment is read from
 * descriptor 5 by a shell that has no rights any more.
 *
 * It must not be set earlier. What sets up the confinement runs with more rights than the job, and
 * `LD_PRELOAD` in its environment would give those to the job; and as arguments everyone could read it in `ps`.
 */
import { quote } from './quote.ts';

/** Follows whatever confines the job. */
export function entryCommand(command: string): string[] {
  const script = '. /dev/fd/5; exec 3<&- 4<&- 5<&-; exec /bin/sh -c "$1"';
  return ['/bin/sh', '-c', script, 'sh', command];
}

/**
 * The environment, and where the command starts: root without its rights could not enter a folder of the job.
 * Names are those of shell variables. Some belong to the shell (`PPID`, in bash `UID`) and cannot be set:
 * `command` keeps such a one from ending the script.
 */
export function environmentScript(env: Record<string, string>, cwd: string): string {
  const lines = Object.entries(env).map(
    ([name, value]) => `command export ${name}=${quote(value)}\n`,
  );
  return `cd ${quote(cwd)} && unset OLDPWD\n{ :\n${lines.join('')}} 2>/dev/null\n`;
}
