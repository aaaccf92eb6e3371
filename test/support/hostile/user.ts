/** Runs jobs in a given sandbox, with a runner as root or as an ordinary user, in the process of `driver.ts`. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { DockerRunnerOptions } from '../../../src/runners/docker/runner.ts';
import type { ProcessRunnerOptions } from '../../../src/runners/process/runner.ts';
import type { Outcome } from '../../../src/runners/runner.ts';
import { fillDataFolder } from './machine.ts';
import { chownTo, commandPrefixFor, type Who } from './who.ts';

export type JobRequest = {
  command: string;
  image?: string;
  env?: Record<string, string>;
  /** The model of a GPU; the job gets one. */
  gpu?: string;
  /** After the job has printed `up`: sends the signal, or kills its shim (CRASH). */
  stop?: 'TERM' | 'KILL' | 'CRASH';
  /** After its shim was killed, the job has to end by itself, while no server supervises it. */
  alone?: boolean;
  /** Paths of the artifacts to read at the end. */
  outputs?: string[];
};
export type JobResult = {
  lines: string[];
  outcome: Outcome;
  /** File names for each of the outputs; null if the output does not exist. */
  artifacts: (string[] | null)[];
};

export type ConfinedRunner = AsyncDisposable & {
  /** The data folder, with a folder of attempts in it. */
  data: string;
  warning: string;
  run(asked: JobRequest): Promise<JobResult>;
};

type Around = {
  /** The parent of the data folder, which is removed at the end. */
  parent?: string;
  /** The start of the server's command line. */
  wrapper?: string[];
  path?: string;
};

export async function openConfinedRunner(
  who: Who,
  options: Omit<ProcessRunnerOptions, 'dir' | 'hidden'> | Omit<DockerRunnerOptions, 'dir'>,
  { parent = '/tmp', wrapper = [], path = process.env.PATH }: Around = {},
): Promise<ConfinedRunner> {
  const data = await mkdtemp(join(parent, 'loam-hostile-'));
  const dir = join(data, 'attempts');
  await mkdir(dir);
  for (const path of [data, dir]) chownTo(path, who);
  fillDataFolder(data, who);
  const [program = '', ...args] = [
    ...[...wrapper, ...commandPrefixFor(who), process.execPath],
    join(import.meta.dirname, 'driver.ts'),
    JSON.stringify({ ...options, dir, hidden: [data], graceMs: 500 }),
  ];
  const env = { PATH: path, HOME: data };
  const child = spawn(program, args, { env, stdio: ['pipe', 'pipe', 'pipe'] });
  let errors = '';
  child.stderr.on('data', (chunk) => {
    errors += chunk;
  });
  const ended = once(child, 'close');
  const answers = createInterface(child.stdout)[Symbol.asyncIterator]();
  const hear = async () => {
    const { value, done } = await answers.next();
    if (done) throw new Error(`the driver ended: ${errors}`);
    return JSON.parse(value);
  };
  const close = async () => {
    child.stdin.end();
    await ended;
    await rm(data, { recursive: true, force: true, maxRetries: 5 });
  };
  try {
    const { warning } = await hear();
    return {
      data,
      warning,
      async run(asked) {
        child.stdin.write(`${JSON.stringify(asked)}\n`);
        return hear();
      },
      [Symbol.asyncDispose]: close,
    };
  } catch (error) {
    await close();
    throw error;
  }
}
