/** `loam run` */
import { join } from 'node:path';
import { Option } from '@commander-js/extra-typings';
import type { Program } from '../command.ts';
import { connectHere } from '../connection.ts';
import { UsageError } from '../exit.ts';
import { collectNeeds, parseCount, parseMinutes, toShell } from '../options.ts';
import type { Client } from '../sdk/client.ts';
import { type JobOptions, nameFor } from '../sdk/job-input.ts';
import type { Job } from '../sdk/jobs.ts';
import { print, printJson, safeText } from '../terminal.ts';
import { JobArray } from './arrays.ts';
import { downloadArtifacts } from './artifacts.ts';
import { announced, followToEnd } from './follow.ts';
import { followArrayToEnd } from './follow-array.ts';
import { createNewJob, enter, withJobOptions } from './new-job.ts';

export function addRunCommand(program: Program): void {
  withJobOptions(program.command('run'))
    .description('Run a command on the server, in the working directory as it is')
    .usage('[options] -- COMMAND [ARGUMENT...]')
    .argument('<command...>', 'the command; a single argument is shell text')
    .option(
      '--hold <time>',
      'keep the sandbox for so long when the last attempt fails, to look into it, such as 30m',
      parseMinutes,
    )
    .option('--no-shell', 'let nobody open a shell in the job, not even an admin')
    .option('--retries <n>', 'how often a failed job is retried', parseCount)
    .option(
      '--after <job[:how]>',
      'start when this job or array has succeeded, :failed or :finished (repeatable)',
      collectNeeds,
    )
    .option('--array <n>', 'create n jobs with JOB_ARRAY_INDEX from 0', parseCount)
    .option('--max-parallel <n>', 'how many jobs of the array run at once', parseCount)
    .option('--concurrency <group>', 'run when no other job of this group does')
    .addOption(
      new Option('--on-conflict <what>', 'what happens while the group is taken').choices([
        'queue',
        'cancel-running',
        'skip',
      ] as const),
    )
    .option('-d, --detach', 'print the name of the job, of an array that of its first job, and end')
    .option('--get <folder>', 'download the artifacts at the end, of an array by their index')
    .option('--json', 'print JSON, one object per line and event of the log')
    .addHelpText(
      'after',
      `
Examples:
  loam run -- python3 train.py
  loam run --gpu A100-80GB:2 --output out --get results -- python3 train.py --epochs 3
  loam run --image python:3.13 --array 10 -- 'python sweep.py --seed $JOB_ARRAY_INDEX'`,
    )
    .action(async (args, options) => {
      if (!process.argv.includes('--'))
        throw new UsageError('Put the command after "--": loam run -- python3 train.py');
      const connection = await connectHere(program.opts());
      const command = toShell(args);
      const job = await createNewJob(connection, options, {
        name: nameFor(command),
        commandIn: (folder) => enter(folder) + command,
        more: {
          holdOnFailureMinutes: options.hold,
          shellAccess: options.shell ? undefined : ('none' as const),
          retries: options.retries,
          needs: options.after,
          array: toArray(options),
          concurrency: toConcurrency(options),
        },
      });
      if (options.detach) {
        if (options.json) printJson(await job.info());
        else print(safeText(`${job.namespace}/${job.name}`));
        return;
      }
      if (options.array !== undefined) return followArrayOf(connection.client, job, options);
      const { code, info } = await followToEnd(job, options);
      process.exitCode = code;
      if (options.get !== undefined && info?.artifacts)
        await downloadArtifacts(job, { folder: options.get });
    });
}

/**
 * Follows a new array until all its jobs have ended, and downloads the artifacts of each into a folder of its own.
 * @param first its first job
 */
async function followArrayOf(
  client: Client,
  { namespace, name }: Job,
  { json, get }: { json?: true | undefined; get?: string | undefined },
): Promise<void> {
  const key = { namespace, name: name.replace(/-0$/, '') };
  const array = await JobArray.read(client, key, announced());
  const { code, jobs } = await followArrayToEnd(array, { json });
  process.exitCode = code;
  if (get === undefined) return;
  for (const job of jobs)
    if (job.artifacts)
      await downloadArtifacts(array.job(job), { folder: join(get, `${array.indexOf(job)}`) });
}

function toArray({ array: size, maxParallel }: { array?: number; maxParallel?: number }) {
  if (size === undefined && maxParallel !== undefined)
    throw new UsageError('--max-parallel needs --array.');
  return size === undefined
    ? undefined
    : { size, ...(maxParallel !== undefined && { maxParallel }) };
}

function toConcurrency({
  concurrency: group,
  onConflict,
}: {
  concurrency?: string;
  onConflict?: NonNullable<JobOptions['concurrency']>['onConflict'];
}) {
  if (group === undefined && onConflict !== undefined)
    throw new UsageError('--on-conflict needs --concurrency.');
  return group === undefined ? undefined : { group, ...(onConflict && { onConflict }) };
}
