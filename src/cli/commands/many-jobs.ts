/** The options that select jobs, and changes of all jobs that they select. */
import type { Command, OptionValues } from '@commander-js/extra-typings';
import type { Program } from '../command.ts';
import { connectHere, type LocalConnection } from '../connection.ts';
import { EXIT, UsageError } from '../exit.ts';
import { collectGpus, collectPairs, collectStatuses, parseSince } from '../options.ts';
import { qualifyName } from '../repositories.ts';
import type { BulkResult, JobSelection } from '../sdk/bulk.ts';
import type { Gpu, JobFilter, JobStatus } from '../sdk/job-info.ts';
import type { Jobs } from '../sdk/jobs.ts';
import { ask, isInteractive, note } from '../terminal.ts';

/** Adds the options by which jobs are listed and selected. */
export function addFilters<Args extends unknown[], Options extends OptionValues>(
  command: Command<Args, Options>,
) {
  return command
    .option('--namespace <name>', 'jobs of this namespace')
    .option(
      '--status <status>',
      'queued, running, succeeded, failed, timed-out, cancelled',
      collectStatuses,
    )
    .option('--label <key=value>', 'jobs with this label (repeatable)', collectPairs)
    .option('--gpu <model>', 'jobs on this GPU', collectGpus)
    .option(
      '--repo <repo>',
      'jobs of this repository: namespace/name, or name in your own namespace',
    )
    .option('--prefix <text>', 'jobs whose names begin with this')
    .option('--before <time>', 'jobs created before this time, or 36h or 30d ago', parseSince)
    .option('--mine', 'jobs that you have created');
}

type FilterOptions = {
  namespace?: string | undefined;
  status?: JobStatus[] | undefined;
  label?: Record<string, string> | undefined;
  gpu?: Gpu[] | undefined;
  repo?: string | undefined;
  prefix?: string | undefined;
  before?: Date | undefined;
  mine?: true | undefined;
};

/** Adds the options of a command that changes all selected jobs. */
export function addSelection<Args extends unknown[], Options extends OptionValues>(
  command: Command<Args, Options>,
) {
  return addFilters(command)
    .option('--all', 'all jobs of the namespace, unless other options select some of them')
    .option('--dry-run', 'show how many jobs would be changed')
    .option('--yes', 'do not ask for the number of jobs');
}

type SelectionOptions = FilterOptions & {
  all?: true | undefined;
  dryRun?: true | undefined;
  yes?: true | undefined;
};

export function toFilter(options: FilterOptions, username: string): JobFilter {
  const { status, label, gpu, repo, prefix, before, mine } = options;
  return {
    ...(status && { statuses: status }),
    ...(gpu && { gpus: gpu }),
    ...(repo !== undefined && { repository: qualifyName(repo, username) }),
    ...(mine && { creator: username }),
    ...(prefix !== undefined && { namePrefix: prefix }),
    ...(before && { createdTo: before.toISOString() }),
    ...(label && {
      labels: Object.entries(label).map(([key, value]) => ({ key, values: [value] })),
    }),
  };
}

/** Whether options select jobs. @throws UsageError unless either jobs are named or options select them */
export function isSelection(names: readonly string[], options: SelectionOptions): boolean {
  const { dryRun, yes, ...selecting } = options;
  const isSelecting = Object.keys(toFilter(selecting, '')).length > 0 || selecting.all === true;
  if (names.length > 0 && (isSelecting || dryRun || yes || selecting.namespace !== undefined))
    throw new UsageError('Either name jobs, or select them with options.');
  if (names.length === 0 && !isSelecting)
    throw new UsageError('Name jobs, or select them, for example with --label or --all.');
  return isSelecting;
}

type Change = {
  /** For example `cancelled`, of jobs. */
  done: string;
  run(jobs: Jobs, selection: JobSelection, options: { dryRun?: boolean }): Promise<BulkResult>;
};

/** Changes all selected jobs after the user has confirmed their number. */
export async function changeMany(
  program: Program,
  options: SelectionOptions,
  { done, run }: Change,
): Promise<void> {
  const connection = await connectHere(program.opts());
  const { jobs } = connection.client;
  const selection = toSelection(connection, options);
  const planned = await run(jobs, selection, { dryRun: true });
  const { namespace } = selection;
  const description = `${countJobs(planned.done)} of ${namespace}`;
  if (options.dryRun || planned.done === 0) {
    note(`${description} would be ${done}.`);
    return showSkipped(planned);
  }
  await confirmCount(planned.done, `${description} will be ${done}.`, options);
  const result = await run(jobs, selection, {});
  note(`${countJobs(result.done)} ${done}.`);
  showSkipped(result);
  if (result.skipped.length > 0) process.exitCode = EXIT.failure;
}

/** Without a namespace it is that of the repository, else that of the clone, else that of the user. */
export function namespaceOf(
  { remote, username }: LocalConnection,
  { namespace }: FilterOptions,
  { repository }: JobFilter,
): string {
  const owner = repository ? repository.split('/')[0] : remote?.namespace;
  return namespace ?? owner ?? username;
}

function toSelection(connection: LocalConnection, options: SelectionOptions): JobSelection {
  const filter = toFilter(options, connection.username);
  const namespace = namespaceOf(connection, options, filter);
  return { namespace, ...filter, all: options.all };
}

/** @throws UsageError without a terminal, Error when the user types something else */
async function confirmCount(
  count: number,
  consequence: string,
  { yes }: { yes?: true | undefined },
): Promise<void> {
  if (yes) return;
  if (!isInteractive)
    throw new UsageError(
      `Nothing was changed. Without a terminal, confirm with --yes: ${consequence}`,
    );
  const answer = await ask(`${consequence} Type ${count} to confirm: `);
  if (answer.trim() !== `${count}`)
    throw new Error(`Nothing was changed. The answer is not ${count}.`);
}

function showSkipped({ skipped }: BulkResult): void {
  for (const { count, message, names } of skipped) {
    const more = count > names.length ? ' …' : '';
    note(`${countJobs(count)} skipped: ${message} (${names.join(' ')}${more})`);
  }
}

export function countJobs(count: number): string {
  return count === 1 ? '1 job' : `${count} jobs`;
}
