/**
 * Secrets in the environment of processes. /proc shows each process's environment to whoever has its user, and an
 * unconfined job of a server that is not root has the same as we.
 */
import { closeSync, openSync, readFileSync, writeSync } from 'node:fs';
import { unset } from './config.ts';
import { SECRET_VARIABLES } from './kinds.ts';

/**
 * Takes the secrets out of our own environment, once they have been read: the variables, which our children would
 * inherit, and the memory of the process that /proc shows. Linux alone; elsewhere only the variables.
 */
export function forgetSecrets(): void {
  unset(SECRET_VARIABLES);
  try {
    // Fields 50 and 51, where the kernel has laid the environment down (proc(5)); the second holds a name.
    const stat = readFileSync('/proc/self/stat', 'utf8');
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    const start = Number(fields[47]);
    const environ = readFileSync('/proc/self/environ');
    const memory = openSync('/proc/self/mem', 'r+');
    try {
      for (const { from, to } of secretsIn(environ))
        writeSync(memory, Buffer.alloc(to - from), 0, to - from, start + from);
    } finally {
      closeSync(memory);
    }
  } catch {
    // `exposedSecrets` lists what can still be read.
  }
}

/** Which of them a process shows that has our user: ourselves, and those that started us, such as npm. */
export function exposedSecrets(): { name: string; pid: number; program: string }[] {
  const found: { name: string; pid: number; program: string }[] = [];
  for (let pid = process.pid; pid > 0; ) {
    try {
      const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
      const program = stat.slice(stat.indexOf('(') + 1, stat.lastIndexOf(')'));
      for (const { name } of secretsIn(readFileSync(`/proc/${pid}/environ`)))
        found.push({ name, pid, program });
      pid = Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]);
    } catch {
      // It belongs to another user, and so is hidden from jobs as well; processes above it rarely belong to ours again.
      break;
    }
  }
  return found;
}

/** The values, by their places in a block of `NAME=value` entries that end with a zero each. */
function* secretsIn(environ: Buffer): Generator<{ name: string; from: number; to: number }> {
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
