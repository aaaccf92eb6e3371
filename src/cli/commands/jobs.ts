/** `loam jobs`, `job`, `logs`, `wait`, `cancel`, `release`, `rerun`, `rm` */
import { type Program, toArray } from '../command.ts';
import { connectHere, type LocalConnection } from '../connection.ts';
import { EXIT, UsageError } from '../exit.ts';
import { parseCount, parseLimit, parseSince } from '../options.ts';
import type { BulkResult } from '../sdk/bulk.ts';
import type { Client } from '../sdk/client.ts';
import { LoamError } from '../sdk/errors.ts';
import { graphql } from '../sdk/graphql.ts';
import { isFinal, type JobInfo, type JobStatus } from '../sdk/job-info.ts';
import { fromEnum } from '../sdk/job-input.ts';
import type { Job } from '../sdk/jobs.ts';
import {
  ago,
  type Colour,
  duration,
  fileCount,
  isTerminal,
  note,
  print,
  printFields,
  printJson,
  printTable,
  safeText,
  size,
} from '../terminal.ts';
import { countOf, describeCounts, findTarget, followArray, JobArray } from './arrays.ts';
import { announced, describeEnd, exitCodeOfJob, followToEnd, printLog } from './follow.ts';
import { ArrayProgress, followArrayLogs, printArrayLogs } from './follow-array.ts';
import { jobOf } from './job-name.ts';
import {
  addFilters,
  addSelection,
  changeMany,
  countJobs,
  isSelection,
  toFilter,
} from './many-jobs.ts';

const JOB_OR_ARRAY = 'name or namespace/name of a job, an array, or a matrix of a run';

export function addJobCommands(program: Program): void {
  addLists(program);
  addLogs(program);
  addWait(program);
  addChanges(program);
}

const READ_DETAILS = graphql(`
  query ReadJobDetails($namespace: String!, $name: String!) {
    job(namespace: $namespace, name: $name) {
      queue { sooner { gpu region estimatedStart costPerHour } }
      shells { id username beganAt address terminal command }
      attempts(first: 100) {
        nodes { number machine startedAt endedAt outcome exitCode placement { cluster node } }
      }
    }
  }
`);

function addLists(program: Program): void {
  addFilters(
    program
      .command('jobs')
      .description('List jobs, newest first: of one namespace, or of all that are yours'),
  )
    .option('-n, --limit <n>', 'how many', parseLimit, 20)
    .option('--json', 'print JSON')
    .action(async (options) => {
      const { client, username } = await connectHere(program.opts());
      const { namespace, limit } = options;
      const filter = toFilter(options, username);
      const jobs = await toArray(client.jobs.list({ namespace, ...filter }, { limit }));
      if (options.json) return printJson(jobs);
      printTable(
        ['NAME', 'STATUS', 'HARDWARE', 'CREATED', 'RUNTIME', 'COST', 'COMMAND'],
        jobs.map((job) => [
          nameWithValues(job),
          { text: fromEnum(job.status), colour: JOB_COLOURS[job.status] },
          hardware(job),
          ago(job.createdAt),
          isTerminal ? duration(job.runtimeSeconds) : `${job.runtimeSeconds}`,
          `${job.totalCost}`,
          job.command.trim().replaceAll(/\s*\n\s*/g, ' ⏎ '),
        ]),
      );
    });

  program
    .command('job')
    .description('Show a job with its attempts and its cost, or how the jobs of an array stand')
    .argument('<job>', JOB_OR_ARRAY)
    .option('--json', 'print JSON')
    .action(async (name, options) => {
      const connection = await connectHere(program.opts());
      const job = await findTarget(connection, name);
      if (job instanceof JobArray) return showArray(job, options);
      const info = await job.info();
      const { attempts, sooner, shells } = await readDetails(connection.client, job);
      if (options.json) return printJson({ ...info, url: job.url, attempts, sooner, shells });
      printFields([
        ...describe(info, job.url),
        ...sooner.map((start): [string, string] => ['sooner', describeSooner(start, info)]),
      ]);
      if (attempts.length === 0) return;
      if (isTerminal) print('');
      printTable(
        ['ATTEMPT', 'MACHINE', 'STARTED', 'ENDED', 'OUTCOME', 'EXIT CODE'],
        attempts.map((attempt) => [
          `${attempt.number}`,
          [attempt.placement?.cluster, attempt.placement?.node].filter(Boolean).join(' ') ||
            attempt.machine,
          ago(attempt.startedAt),
          ago(attempt.endedAt),
          attempt.outcome ? fromEnum(attempt.outcome) : '',
          `${attempt.exitCode ?? ''}`,
        ]),
      );
      if (shells.length === 0) return;
      if (isTerminal) print('');
      printTable(
        ['SHELL', 'USER', 'OPENED', 'ADDRESS', 'COMMAND'],
        shells.map((shell) => [
          shell.id,
          shell.username,
          ago(shell.beganAt),
          shell.address ?? '',
          shell.command?.trim().replaceAll(/\s*\n\s*/g, ' ⏎ ') ?? '',
        ]),
      );
    });
}

const MAX_SHOWN_JOBS = 20;
/** The order in which the jobs of an array are shown. */
const STATUS_ORDER = [
  'FAILED',
  'TIMED_OUT',
  'RUNNING',
  'QUEUED',
  'CANCELLED',
  'SUCCEEDED',
] as const;

/** Shows the number of the jobs in each status, and some of the jobs: first those that failed. */
async function showArray(array: JobArray, { json }: { json?: true | undefined }): Promise<void> {
  const { id, namespace, name, size: created, maxParallel, url } = array;
  const counts = await array.counts();
  if (json) return printJson({ id, namespace, name, size: created, maxParallel, counts, url });
  printFields([
    ['name', `${namespace}/${name}`],
    ['array', `${created} jobs${maxParallel === null ? '' : `, at most ${maxParallel} at once`}`],
    ['status', describeCounts(counts)],
    ['page', url],
  ]);
  const jobs: JobInfo[] = [];
  for (const status of STATUS_ORDER) {
    const room = MAX_SHOWN_JOBS - jobs.length;
    if (room > 0 && countOf(counts, (one) => one === status) > 0)
      jobs.push(...(await array.someJobs({ statuses: [status] }, room)));
  }
  if (isTerminal) print('');
  printTable(
    ['NAME', 'STATUS', 'EXIT CODE', 'RUNTIME'],
    jobs.map((job) => [
      nameWithValues(job),
      { text: fromEnum(job.status), colour: JOB_COLOURS[job.status] },
      `${job.exitCode ?? ''}`,
      isTerminal ? duration(job.runtimeSeconds) : `${job.runtimeSeconds}`,
    ]),
  );
  const left = countOf(counts, () => true) - jobs.length;
  if (left > 0) note(`${left} more: loam jobs --namespace ${namespace} --prefix ${name}-`);
}

async function readDetails(client: Client, { namespace, name }: Job) {
  const { job } = await client.graphql(READ_DETAILS, { namespace, name });
  return {
    attempts: job?.attempts.nodes ?? [],
    sooner: job?.queue?.sooner ?? [],
    shells: job?.shells ?? [],
  };
}

type SoonerStart = Awaited<ReturnType<typeof readDetails>>['sooner'][number];

/** Other hardware on which a waiting job would start earlier. */
function describeSooner({ gpu, region, estimatedStart, costPerHour }: SoonerStart, job: JobInfo) {
  const seconds = Math.max(0, Math.round((Date.parse(estimatedStart) - Date.now()) / 1_000));
  const start = seconds < 60 ? 'now' : `in about ${duration(seconds)}`;
  return `${hardware({ ...job, gpu })} in ${fromEnum(region)}: ${start}, ${costPerHour} per hour`;
}

/** The name of a job; on a terminal, where no program reads the table, with the values of its matrix. */
export function nameWithValues(job: Pick<JobInfo, 'namespace' | 'name' | 'matrixValues'>): string {
  const name = `${job.namespace}/${job.name}`;
  return isTerminal && job.matrixValues.length > 0 ? `${name} (${describeValues(job)})` : name;
}

function describeValues({ matrixValues }: Pick<JobInfo, 'matrixValues'>): string {
  return matrixValues.map(({ key, value }) => `${key}=${value}`).join(' ');
}

export const JOB_COLOURS: Record<JobStatus, Colour> = {
  QUEUED: 'yellow',
  RUNNING: 'blue',
  SUCCEEDED: 'green',
  FAILED: 'red',
  TIMED_OUT: 'red',
  CANCELLED: 'dim',
};

function hardware({ gpu, gpuCount, cpu, memoryGb }: JobInfo): string {
  const model = gpu.replaceAll('_', '-');
  return gpu === 'NONE' ? `${cpu} vCPUs, ${memoryGb} GB` : `${gpuCount}x ${model}`;
}

function describe(job: JobInfo, url: string): [string, string | null | undefined][] {
  const { artifacts } = job;
  return [
    ['name', `${job.namespace}/${job.name}`],
    ['status', fromEnum(job.status)],
    ['progress', job.progress],
    ['exit code', job.exitCode?.toString()],
    ['command', job.command],
    ['matrix', describeValues(job)],
    ['repository', [job.repo, job.branch].filter(Boolean).join('@')],
    ['commit', job.commitSha],
    ['image', job.image],
    ['hardware', `${hardware(job)}, ${job.diskGb} GB disk, ${fromEnum(job.region)}`],
    ['created', [ago(job.createdAt), job.createdBy?.username].filter(Boolean).join(' by ')],
    ['started', ago(job.startedAt)],
    ['completed', ago(job.completedAt)],
    ['runtime', duration(job.runtimeSeconds)],
    ['timeout', duration(job.timeoutMinutes * 60)],
    ['maximum cost', job.maxCost],
    [
      'idle timeout',
      job.idleTimeoutMinutes === null ? null : duration(job.idleTimeoutMinutes * 60),
    ],
    ['hold', describeHold(job)],
    ['shells', job.shellAccess === 'NONE' ? 'none' : null],
    ['retries', `${job.retryCount} of ${job.retries}`],
    ['cost', `${job.totalCost} (${job.costPerHour} per hour)`],
    ['labels', job.labels.map(({ key, value }) => `${key}=${value}`).join(' ')],
    ['variables', [...job.environmentNames, ...job.storedVariableNames].join(' ')],
    ['secrets', [...job.secretNames, ...job.storedSecretNames].join(' ')],
    ['permissions', describePermissions(job)],
    ['identity', job.idTokens.map((one) => `${one.variable}=${one.audience}`).join(' ')],
    ['rerun of', job.rerunOf?.name],
    ['output', job.outputPath],
    [
      'inputs',
      [
        ...job.inputs.map(({ jobName, path, to }) =>
          [jobName, path, to].join(':').replace(/:+$/, ''),
        ),
        ...job.repositoryInputs.map(describeRepositoryInput),
      ].join(' '),
    ],
    ['checks', job.checks.map(describeCheck).join('; ')],
    ['outputs', job.outputs.map(({ name, value }) => `${name}=${value}`).join(' ')],
    ['caches', job.caches.map(describeCache).join('; ')],
    [
      'volumes',
      job.volumes
        .map(({ name, to, readOnly }) => `${name}:${to}${readOnly ? ':ro' : ''}`)
        .join(' '),
    ],
    ['checkpoint', describeCheckpoint(job)],
    ['summary', job.hasSummary ? `loam summary ${job.namespace}/${job.name}` : null],
    ['tests', job.testReport && describeTests(job.testReport)],
    [
      'artifacts',
      artifacts && `${fileCount(artifacts.fileCount)}, ${size(artifacts.sizeBytes)} packed`,
    ],
    ['page', url],
  ];
}

/** As `--input` takes it, with the commit. */
function describeRepositoryInput({
  repo,
  ref,
  commitSha,
  path,
  to,
  readOnly,
}: JobInfo['repositoryInputs'][number]): string {
  const commit = ref === commitSha ? '' : ` (${commitSha.slice(0, 10)})`;
  return `${repo}@${ref}${path && `:${path}`}${to && `=${to}`}${readOnly ? ':ro' : ''}${commit}`;
}

/** How long the sandbox stays after a failure, and how long it has been held. */
function describeHold({ holdOnFailureMinutes: minutes, hold }: JobInfo): string | null {
  if (minutes === 0) return null;
  const held = hold && `, held for ${duration(hold.seconds)}`;
  return `${duration(minutes * 60)} after a failure${held ?? ''}`;
}

/** The result of a check, or what it requires. */
function describeCheck({
  metric,
  min,
  max,
  regressPercent,
  better,
  baselineJob,
  passed,
  message,
}: JobInfo['checks'][number]): string {
  if (message !== null) return `${message} (${passed ? 'passed' : 'failed'})`;
  const required = [
    min !== null && `at least ${min}`,
    max !== null && `at most ${max}`,
    regressPercent !== null &&
      `at most ${regressPercent}% ${better === 'LOWER' ? 'above' : 'below'} the last ${baselineJob}`,
  ].filter((part) => part !== false);
  return `${metric}: ${required.join(', ')}`;
}

/** What its last attempt did with a cache. */
function describeCache(cache: JobInfo['caches'][number]): string {
  const { path, key, resolvedKey, restoredKey, restoredBytes, isSaved, problem } = cache;
  if (resolvedKey === null) return `${path}=${key}`;
  const other = restoredKey === resolvedKey ? '' : ` from ${restoredKey}`;
  const what = [
    restoredKey !== null && `restored${other} (${size(restoredBytes ?? 0)})`,
    restoredKey === null && problem === null && 'not found',
    isSaved && 'saved',
    problem,
  ].filter(Boolean);
  return `${path}=${resolvedKey}: ${what.join(', ')}`;
}

/** The folder, and what of it the next attempt gets. */
function describeTests({ passed, failed, skipped }: NonNullable<JobInfo['testReport']>): string {
  return `${failed} failed, ${passed} passed, ${skipped} skipped`;
}

function describeCheckpoint({ checkpointPath, checkpoint, status }: JobInfo): string | null {
  if (checkpointPath === null) return null;
  if (!checkpoint)
    return `${checkpointPath}, ${isFinal(status) ? 'removed at the end of the job' : 'none stored'}`;
  const { createdAt, files, sizeBytes } = checkpoint;
  return `${checkpointPath}, ${fileCount(files)}, ${size(sizeBytes)} packed, ${ago(createdAt)}`;
}

function describePermissions({ permissions }: JobInfo): string {
  const given = Object.entries(permissions ?? {}).filter(([, access]) => access !== null);
  return given.map(([name, access]) => `${name}=${fromEnum(access ?? '')}`).join(' ');
}

const MAX_TAIL = 10_000;

function addLogs(program: Program): void {
  program
    .command('logs')
    .description('Print the log of a job, or those of all jobs of an array')
    .argument('<job>', JOB_OR_ARRAY)
    .option('-f, --follow', 'go on until the job, or all jobs of the array, have ended')
    .option('--since <time>', 'lines after this time, or of the last 10m or 2h', parseSince)
    .option(
      '--tail <n>',
      `only the last lines, at most ${MAX_TAIL}; of an array, of each job`,
      parseCount,
    )
    .option('--grep <pattern>', 'only lines that match this regular expression')
    .option('-t, --timestamps', 'print the time of each line')
    .option('--json', 'print JSON, one object per line and change of status')
    .action(async (name, { follow = false, since, tail, grep, ...output }) => {
      if (tail !== undefined && (tail < 1 || tail > MAX_TAIL))
        throw new UsageError(`--tail must be from 1 to ${MAX_TAIL}`);
      const pattern = grep === undefined ? undefined : parsePattern(grep);
      const target = await findTarget(await connectHere(program.opts()), name, announced());
      const reading = { follow, since, tail, ...announced() };
      const printing = { ...output, grep: pattern };
      if (!(target instanceof JobArray)) await printLog(target, reading, printing);
      else if (follow) await followArrayLogs(target, reading, printing);
      else await printArrayLogs(target, reading, printing);
    });
}

function parsePattern(text: string): RegExp {
  try {
    return new RegExp(text, 'u');
  } catch (error) {
    throw new UsageError(`--grep: ${(error as Error).message}`);
  }
}

function addWait(program: Program): void {
  program
    .command('wait')
    .description('Wait until jobs have ended; exit with the code of the first that fails')
    .argument('<job...>', JOB_OR_ARRAY)
    .option('--json', 'print JSON')
    .action(async (names, options) => {
      const connection = await connectHere(program.opts());
      const progress = new ArrayProgress();
      const failure = new AbortController();
      const ended: JobInfo[] = [];
      const addEnded = (info: JobInfo) => {
        ended.push(info);
        if (exitCodeOfJob(info) !== 0) failure.abort();
      };
      const waitFor = async (name: string) => {
        const retrying = announced({ signal: failure.signal });
        const target = await findTarget(connection, name, retrying);
        if (target instanceof JobArray) {
          for await (const step of followArray(target, retrying)) {
            progress.show(target, step);
            step.ended.forEach(addEnded);
          }
          return;
        }
        const info = await target.wait(retrying);
        note(describeEnd(info));
        addEnded(info);
      };
      try {
        await Promise.all(names.map(waitFor));
      } catch (error) {
        if (!failure.signal.aborted) throw error;
      } finally {
        // Ends the other streams, which would keep the process alive.
        failure.abort();
        progress.clear();
      }
      if (options.json) printJson(ended);
      process.exitCode = ended.map(exitCodeOfJob).find((code) => code !== 0) ?? 0;
    });
}

function addChanges(program: Program): void {
  addSelection(
    program
      .command('cancel')
      .description('Cancel jobs, or all queued and running jobs that options select')
      .argument('[job...]', JOB_OR_ARRAY)
      .addHelpText('after', '\nExample: loam cancel --label sweep=17 --status queued'),
  ).action((names, options) =>
    isSelection(names, options)
      ? changeMany(program, options, {
          done: 'cancelled',
          run: (jobs, selection, how) => jobs.cancelMany(selection, how),
        })
      : forEach(program, names, findTarget, async (target) => {
          if (target instanceof JobArray)
            return describeChange(
              'cancelled',
              'All jobs of the array have ended.',
              await target.cancel(),
            );
          await target.cancel();
          return 'cancelled';
        }),
  );

  program
    .command('release')
    .description('End the hold of failed jobs, which then end with their artifacts and exit codes')
    .argument('<job...>', 'name or namespace/name of a job')
    .action((names) =>
      forEach(
        program,
        names,
        async (connection, name) => jobOf(connection, name),
        async (job) => {
          await job.release();
          return 'released';
        },
      ),
    );

  addSelection(
    program
      .command('rerun')
      .description(
        'Run a job, all jobs of an array, or all that options select again: with the same settings and the same commit',
      )
      .argument('[job]', JOB_OR_ARRAY),
  )
    .option('--name <name>', 'name of the new job')
    .option('--newest-commit', 'run the current commit of the branch')
    .option('-f, --follow', 'follow its log; the exit code is that of the job')
    .addHelpText('after', '\nExample: loam rerun --status failed --label sweep=17')
    .action(async (name, options) => {
      if (isSelection(name === undefined ? [] : [name], options)) {
        if (options.name !== undefined || options.follow)
          throw new UsageError('--name and --follow are for a single job.');
        return changeMany(program, options, {
          done: 'run again',
          run: (jobs, selection, how) =>
            jobs.rerunMany(selection, { ...how, newestCommit: options.newestCommit }),
        });
      }
      const original = await findTarget(await connectHere(program.opts()), name ?? '');
      if (original instanceof JobArray) {
        if (options.name !== undefined || options.follow)
          throw new UsageError('--name and --follow are for a single job.');
        const { newestCommit } = options;
        const result = await original.rerun({ newestCommit });
        const change = describeChange('run again', 'The array has no jobs any more.', result);
        return note(`${original.namespace}/${original.name} ${change}`);
      }
      const job = await original.rerun({
        ...(options.name !== undefined && { newName: options.name }),
        ...(options.newestCommit && { newestCommit: true }),
      });
      if (!options.follow) return print(safeText(`${job.namespace}/${job.name}`));
      process.exitCode = (await followToEnd(job)).code;
    });

  addSelection(
    program
      .command('rm')
      .description(
        'Delete jobs, or all jobs that options select, if they have ended, with their logs',
      )
      .argument('[job...]', JOB_OR_ARRAY),
  )
    .option('--artifacts', 'delete their artifacts, too; this cannot be undone')
    .addHelpText('after', '\nExample: loam rm --status succeeded --before 30d')
    .action((names, options) => {
      const deleteArtifacts = options.artifacts === true;
      return isSelection(names, options)
        ? changeMany(program, options, {
            done: `deleted${deleteArtifacts ? ', with their artifacts' : ''}`,
            run: (jobs, selection, how) => jobs.deleteMany(selection, { ...how, deleteArtifacts }),
          })
        : forEach(program, names, findTarget, async (target) => {
            if (target instanceof JobArray)
              return describeChange(
                'deleted',
                'No job of the array has ended.',
                await target.delete({ deleteArtifacts }),
              );
            await target.delete({ deleteArtifacts });
            return 'deleted';
          });
    });
}

/**
 * Says how many jobs of an array were changed.
 * @param change such as `cancelled`
 * @param none why there may be no job to change
 * @throws LoamError if none was changed, as for a single job
 */
function describeChange(change: string, none: string, { done, skipped }: BulkResult): string {
  const refused = skipped.find(({ reason }) => reason === 'NOT_PERMITTED');
  if (refused) throw new LoamError('permission_denied', refused.message, { status: 403 });
  const [first] = skipped;
  if (done === 0) throw new LoamError('conflict', first?.message ?? none);
  const left = skipped.reduce((sum, { count }) => sum + count, 0);
  const others = first ? `; ${countJobs(left)} skipped: ${first.message}` : '';
  return `${change}: ${countJobs(done)}${others}`;
}

/** Runs an action for each job. If it fails for one job, the error is printed, and the next job follows. */
async function forEach<Target extends { namespace: string; name: string }>(
  program: Program,
  names: readonly string[],
  find: (connection: LocalConnection, name: string) => Promise<Target>,
  act: (target: Target) => Promise<string>,
): Promise<void> {
  const connection = await connectHere(program.opts());
  const failures: unknown[] = [];
  for (const name of names) {
    try {
      const target = await find(connection, name);
      note(`${target.namespace}/${target.name} ${await act(target)}`);
    } catch (error) {
      failures.push(error);
      if (names.length > 1) note(`loam: ${name}: ${(error as Error).message}`);
    }
  }
  if (failures.length === 0) return;
  if (names.length === 1) throw failures[0];
  process.exitCode = EXIT.failure;
}
