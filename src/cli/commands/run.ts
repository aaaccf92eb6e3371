/** `loam run` */
import { Option } from '@commander-js/extra-typings';
import { readPrefix } from '../clone.ts';
import type { Program } from '../command.ts';
import { connectHere, type LocalConnection } from '../connection.ts';
import { UsageError } from '../exit.ts';
import {
  collect,
  collectFile,
  collectInputs,
  collectNames,
  collectNeeds,
  collectPairs,
  collectPermissions,
  collectVariables,
  parseCount,
  parseGb,
  parseMinutes,
  quote,
  toShell,
} from '../options.ts';
import { type JobOptions, nameFor } from '../sdk/job-input.ts';
import { pushSnapshot } from '../snapshot.ts';
import { note, print, printJson, StatusLine, safeText } from '../terminal.ts';
import { downloadArtifacts } from './artifacts.ts';
import { announced, followToEnd } from './follow.ts';

/** How long the creation of the job is retried while the server is away. Once there is a job, it is followed without a limit. */
const CREATE_MS = 15_000;

export function addRunCommand(program: Program): void {
  program
    .command('run')
    .description('Run a command on the server, in the working directory as it is')
    .usage('[options] -- COMMAND [ARGUMENT...]')
    .argument('<command...>', 'the command; a single argument is shell text')
    .option('--gpu <model[:n]>', 'GPU model and number, such as A100-80GB:2')
    .option('--cpu <n>', 'vCPUs', parseCount)
    .option('--memory <size>', 'memory, such as 64G', parseGb)
    .option('--disk <size>', 'disk, such as 200G', parseGb)
    .option('--region <region>', 'region, such as us-east-1')
    .option('--image <image>', 'container image')
    .option('--repo <repo[@branch]>', 'run this repository instead of the working directory')
    .option('--env <name[=value]>', 'environment variable (repeatable)', collectVariables)
    .option('--env-file <file>', 'file of NAME=VALUE lines', collectFile)
    .option('--secret <name>', 'secret: a variable that is set here (repeatable)', collectNames)
    .option('--secret-file <file>', 'file of NAME=VALUE lines with secrets', collectFile)
    .option('--use-secret <names>', 'secrets of the repository or its namespace', collect)
    .option('--use-variable <names>', 'variables of the repository or its namespace', collect)
    .option('--label <key=value>', 'label (repeatable)', collectPairs)
    .option('--timeout <time>', 'timeout of an attempt, such as 90m or 4h', parseMinutes)
    .option('--max-cost <amount>', 'cancel the job at this cost, such as 5.00')
    .option(
      '--idle-timeout <time>',
      'cancel the job when its GPUs are idle for so long',
      parseMinutes,
    )
    .option('--retries <n>', 'how often a failed job is retried', parseCount)
    .option('--output <path>', 'files under this path are kept as artifacts')
    .option(
      '--permission <what=access>',
      'what the job may do with its own token: repo or jobs, read or write (repeatable)',
      collectPermissions,
    )
    .option(
      '--id-token <name=audience>',
      'identity token for another system, in this variable (repeatable)',
      collectPairs,
    )
    .option(
      '--after <job[:how]>',
      'start when this job or array has succeeded, :failed or :finished (repeatable)',
      collectNeeds,
    )
    .option('--array <n>', 'create n jobs with JOB_ARRAY_INDEX from 0, and end', parseCount)
    .option('--max-parallel <n>', 'how many jobs of the array run at once', parseCount)
    .option('--concurrency <group>', 'run when no other job of this group does')
    .addOption(
      new Option('--on-conflict <what>', 'what happens while the group is taken').choices([
        'queue',
        'cancel-running',
        'skip',
      ] as const),
    )
    .option(
      '--input <job[:path[:to]]>',
      'copy artifacts of another job into the working directory (repeatable)',
      collectInputs,
    )
    .option('--namespace <name>', 'namespace of the job, if not that of the repository')
    .option('--name <name>', 'name of the job')
    .option('-d, --detach', 'print the name of the job and end')
    .option('--get <folder>', 'download the artifacts at the end')
    .option('--json', 'print JSON, one object per line and event of the log')
    .action(async (args, options) => {
      if (!process.argv.includes('--'))
        throw new UsageError('Put the command after "--": loam run -- python train.py');
      const connection = await connectHere(program.opts());
      const source = await prepareSource(connection, options);
      const command = enter(source.folder) + toShell(args);
      const job = await connection.client.run(
        command,
        {
          namespace: options.namespace,
          name: options.name ?? nameFor(toShell(args)),
          ...source.job,
          image: options.image,
          gpu: options.gpu,
          cpu: options.cpu,
          memoryGb: options.memory,
          diskGb: options.disk,
          region: options.region,
          timeoutMinutes: options.timeout,
          maxCost: options.maxCost,
          idleTimeoutMinutes: options.idleTimeout,
          retries: options.retries,
          outputPath: options.output,
          needs: options.after,
          array: toArray(options),
          concurrency: toConcurrency(options),
          inputs: options.input,
          env: merge(options.envFile, options.env),
          secrets: merge(options.secretFile, options.secret),
          secretNames: options.useSecret,
          variableNames: options.useVariable,
          labels: options.label,
          permissions: options.permission,
          idTokens: options.idToken,
        },
        announced({ forMs: CREATE_MS }),
      );
      if (options.detach || options.array !== undefined) {
        if (options.json) printJson(await job.info());
        else print(safeText(`${job.namespace}/${job.name}`));
        return;
      }
      note(`Job ${job.namespace}/${job.name}: ${job.url}`);
      const { code, info } = await followToEnd(job, options);
      process.exitCode = code;
      if (options.get !== undefined && info?.artifacts)
        await downloadArtifacts(job, { folder: options.get });
    });
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

/** The folder begins with a dot, because `cd` takes `-` for the previous folder and searches other names in CDPATH. */
function enter(folder: string): string {
  return folder === '' ? '' : `cd ${quote(`./${folder}`)} || exit; `;
}

type Source = {
  job: Pick<JobOptions, 'repo' | 'snapshot'>;
  /** The folder of the checkout in which the command runs. */
  folder: string;
};

/** Chooses the checkout of the job: the repository of `--repo`, else a snapshot of the working directory. */
async function prepareSource(
  { remote, server, username, token }: LocalConnection,
  { repo, image }: { repo?: string | undefined; image?: string | undefined },
): Promise<Source> {
  if (repo !== undefined) return { job: { repo }, folder: '' };
  if (remote === null) {
    if (image !== undefined) return { job: {}, folder: '' };
    throw new UsageError(
      `This folder is not in a clone of a repository of ${server}. Name a repository with --repo or an image with --image.`,
    );
  }
  const line = new StatusLine();
  line.show('pushing the working directory');
  try {
    const snapshot = await pushSnapshot({ server, username, token, ...remote });
    return {
      job: { repo: `${remote.namespace}/${remote.name}`, snapshot },
      folder: await readPrefix(),
    };
  } finally {
    line.clear();
  }
}

function merge(...values: (Record<string, string> | undefined)[]) {
  const given = Object.assign({}, ...values) as Record<string, string>;
  return Object.keys(given).length === 0 ? undefined : given;
}
