/** Jobs by the names that people type. */
import type { Program } from '../command.ts';
import { connectHere, type LocalConnection } from '../connection.ts';
import { UsageError } from '../exit.ts';
import type { Job } from '../sdk/jobs.ts';

/** Connects, and opens a job by its name. Without a namespace it is that of the clone, else that of the user. */
export async function openJob(program: Program, name: string): Promise<Job> {
  return jobOf(await connectHere(program.opts()), name);
}

export function jobOf({ client, remote, username }: LocalConnection, name: string): Job {
  const [first = '', second, ...more] = name.split('/');
  if (more.length > 0 || first === '' || second === '')
    throw new UsageError(`${name}: the name of a job is NAME or NAMESPACE/NAME`);
  return second === undefined
    ? client.jobs.get(remote?.namespace ?? username, first)
    : client.jobs.get(first, second);
}
