/**
 * Removes secrets from the environment of this process. /proc shows the environment of a process to every process of the
 * same user. When the server does not run as root, unconfined jobs have its user.
 */
import { closeSync, openSync, readFileSync, writeSync } from 'node:fs';
import { unsetVariables } from './config.ts';
import { SECRET_VARIABLES } from './kinds.ts';

/**
 * Removes the secrets after the configuration has been read: the variables, which child processes would inherit, and on
 * Linux also the memory that /proc/self/environ shows.
 */
export function eraseSecrets(): void {
  unsetVariables(SECRET_VARIABLES);
  try {
    // Fields 50 and 51 of proc(5) are the bounds of the environment; index 47 counts from the third field, because the
    // second is a program name that may contain spaces.
    const stat = readFileSync('/proc/self/stat', 'utf8');
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    const start = Number(fields[47]);
    const environ = readFileSync('/proc/self/environ');
    const memory = openSync('/proc/self/mem', 'r+');
    try {
      for (const { from, to } of findSecrets(environ))
        writeSync(memory, Buffer.alloc(to - from), 0, to - from, start + from);
    } finally {
      closeSync(memory);
    }
  } catch {
    // `exposedSecrets` lists the secrets that are still readable.
  }
}

/** Secrets that are readable in this process and in its parents of the same user, such as npm. */
export function findExposedSecrets(): { name: string; pid: number; program: string }[] {
  const exposed: { name: string; pid: number; program: string }[] = [];
  for (let pid = process.pid; pid > 0; ) {
    try {
      const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
      const program = stat.slice(stat.indexOf('(') + 1, stat.lastIndexOf(')'));
      for (const { name } of findSecrets(readFileSync(`/proc/${pid}/environ`)))
        exposed.push({ name, pid, program });
      pid = Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]);
    } catch {
      // The parent belongs to another user, so jobs cannot read it either. Its own parents rarely have our user.
      break;
    }
  }
  return exposed;
}

/** Values of secrets as byte ranges of a block of zero-terminated `NAME=value` entries. */
function* findSecrets(environ: Buffer): Generator<{ name: string; from: number; to: number }> {
  for (let at = 0; at < environ.length; ) {
    const zero = environ.indexOf(0, at);
    const end = zero < 0 ? environ.length : zero;
    const entry = environ.toString('latin1', at, end);
    const name = SECRET_VARIABLES.find((secret) => entry.startsWith(`${secret}=`));
    const from = at + (name?.length ?? 0) + 1;
    if (name && from < end) yield { name, from, to: end };
    at = end + 1;
  }
}
