/** Creating a job of the working directory, a repository or an image, for `loam run` and `loam shell`. */
import type { Command } from '@commander-js/extra-typings';
import { type Remote, readPrefix } from '../clone.ts';
import type { GlobalOptions, LocalConnection } from '../connection.ts';
import { UsageError } from '../exit.ts';
import { namingFlags } from '../flag-errors.ts';
import {
  collect,
  collectCaches,
  collectChecks,
  collectFile,
  collectInputs,
  collectNames,
  collectPairs,
  collectPermissions,
  collectVariables,
  collectVolumes,
  parseAmount,
  parseCheckpoint,
  parseCount,
  parseGb,
  parseGpus,
  parseMinutes,
  quote,
} from '../options.ts';
import { qualifyName } from '../repositories.ts';
import type { Client } from '../sdk/client.ts';
import { LoamError } from '../sdk/errors.ts';
import { graphql } from '../sdk/graphql.ts';
import type { Region } from '../sdk/job-info.ts';
import { createInput, enumOf, type JobOptions, parseGpu } from '../sdk/job-input.ts';
import type { Job } from '../sdk/jobs.ts';
import { demand } from '../sdk/pages.ts';
import { pushSnapshot } from '../snapshot.ts';
import { note, StatusLine } from '../terminal.ts';
import { announced } from './follow.ts';
import { listValueNames } from './secrets.ts';

const SUGGEST_SIZE = graphql(`
  query SuggestSize(
    $namespace: String, $gpu: Gpu, $gpuCount: Int, $region: Region, $image: String, $cpu: Int, $memoryGb: Int
  ) {
    jobOptions(namespace: $namespace) {
      suggestedSize(
        gpu: $gpu, gpuCount: $gpuCount, region: $region, image: $image, cpu: $cpu, memoryGb: $memoryGb
      ) { cpu memoryGb }
    }
  }
`);
const CHECK_JOB = graphql(`
  query CheckJob($input: CreateJobInput!, $unpushedSnapshot: Boolean!) {
    checkJob(input: $input, unpushedSnapshot: $unpushedSnapshot) { name warnings }
  }
`);

/** The options of the fields in errors of the server. */
const FLAGS: Readonly<Record<string, string>> = {
  gpu: '--gpu',
  gpuCount: '--gpu',
  cpu: '--cpu',
  memoryGb: '--memory',
  diskGb: '--disk',
  region: '--region',
  image: '--image',
  repo: '--repo',
  branch: '--repo',
  env: '--env',
  secrets: '--secret',
  secretNames: '--use-secret',
  variableNames: '--use-variable',
  labels: '--label',
  timeoutMinutes: '--timeout',
  maxCost: '--max-cost',
  idleTimeoutMinutes: '--idle-timeout',
  holdOnFailureMinutes: '--hold',
  shellAccess: '--no-shell',
  retries: '--retries',
  outputPath: '--output',
  permissions: '--permission',
  idTokens: '--id-token',
  needs: '--after',
  array: '--array',
  maxParallel: '--max-parallel',
  concurrency: '--concurrency',
  inputs: '--input',
  volumes: '--volume',
  cache: '--cache',
  checkpointPath: '--checkpoint',
  checkpointMinutes: '--checkpoint',
  checks: '--check',
  testReports: '--test-reports',
  namespace: '--namespace',
  name: '--name',
};

const NAME_TRIES = 5;
/** How long the creation of the job is retried while the server is away. Once there is a job, it is followed without a limit. */
const CREATE_MS = 15_000;

/** Adds the options that describe what a job gets. */
export function withJobOptions(command: Command<[], Record<never, never>, GlobalOptions>) {
  return command
    .option('--gpu <model[:n]>', 'GPU model and number, such as A100-80GB:2', parseGpus)
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
    .option('--max-cost <amount>', 'cancel the job at this cost, such as 5.00', parseAmount)
    .option(
      '--idle-timeout <time>',
      'cancel the job when its GPUs are idle for so long',
      parseMinutes,
    )
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
      '--input <input>',
      'copy artifacts of another job, job[:path[:to]], or files of a repository, namespace/name[@ref][:path][=to[:ro]], into the working directory (repeatable)',
      collectInputs,
    )
    .option(
      '-v, --volume <name:to[:ro]>',
      'mount a volume of the server at this folder, ro: only to read it (repeatable)',
      collectVolumes,
    )
    .option(
      '--cache <path=key[|restore-key]>',
      // biome-ignore lint/suspicious/noTemplateCurlyInString: the text of the key has it.
      "restore this folder from an earlier job of the repository, and save it if the key is new, such as '~/.npm=npm-${hash:package-lock.json}|npm-' (repeatable)",
      collectCaches,
    )
    .option(
      '--checkpoint <path[:minutes]>',
      'folder whose content the next attempt gets, with --retries or after a lost machine, and how often it is stored (default: 10 minutes)',
      parseCheckpoint,
    )
    .option(
      '--check <check>',
      "fail unless the last value of a metric meets this: 'accuracy>=0.9', 'loss<=0.5', or 'loss regress=2% better=lower job=train' against the last success of a job in .loam/jobs.yml (repeatable)",
      collectChecks,
    )
    .option(
      '--test-reports <path>',
      'JUnit files of the tests, a path or a pattern such as reports/*.xml (repeatable)',
      (path: string, before: readonly string[] = []) => [...before, path],
    )
    .option('--namespace <name>', 'namespace of the job, if not that of the repository')
    .option('--name <name>', 'name of the job');
}

export type NewJobOptions = ReturnType<ReturnType<typeof withJobOptions>['opts']>;

/**
 * Creates the job that the options describe.
 * @param about.name if the options name none
 * @param about.commandIn the command, for the folder of the checkout that is the current one here
 * @throws UsageError, LoamError
 */
export async function createNewJob(
  connection: LocalConnection,
  options: NewJobOptions,
  about: { name: string; commandIn(folder: string): string; more?: Partial<JobOptions> },
): Promise<Job> {
  const { client, username } = connection;
  const source = await findSource(connection, options);
  const { folder, repo } = source;
  const namespace = options.namespace ?? repo?.split('/')[0] ?? username;
  return namingFlags(FLAGS, async () => {
    const size = await chooseSize(client, namespace, options);
    const request = {
      namespace,
      name: options.name ?? about.name,
      repo,
      image: options.image,
      gpu: options.gpu,
      ...size,
      diskGb: options.disk,
      region: options.region,
      timeoutMinutes: options.timeout,
      maxCost: options.maxCost,
      idleTimeoutMinutes: options.idleTimeout,
      outputPath: options.output,
      inputs: options.input,
      volumes: options.volume,
      cache: options.cache,
      checkpointPath: options.checkpoint?.path,
      checkpointMinutes: options.checkpoint?.minutes,
      checks: options.check,
      testReports: options.testReports,
      env: merge(options.envFile, options.env),
      secrets: merge(options.secretFile, options.secret),
      secretNames: options.useSecret,
      variableNames: options.useVariable,
      labels: options.label,
      permissions: options.permission,
      idTokens: options.idToken,
      ...about.more,
    };
    return createJob(connection, about.commandIn(folder), request, source);
  });
}

/** The folder begins with a dot, because `cd` takes `-` for the previous folder and searches other names in CDPATH. */
export function enter(folder: string): string {
  return folder === '' ? '' : `cd ${quote(`./${folder}`)} || exit; `;
}

type Source = {
  /** As in `JobOptions`. */
  repo: string | undefined;
  /** The job runs a snapshot of the working directory. */
  isWorkingDirectory: boolean;
  /** The folder of the checkout in which the command runs. */
  folder: string;
};

/** Chooses the checkout of the job: the repository of `--repo`, else the working directory. */
async function findSource(
  { remote, server, username }: LocalConnection,
  { repo, image }: { repo?: string | undefined; image?: string | undefined },
): Promise<Source> {
  const elsewhere = { isWorkingDirectory: false, folder: '' };
  if (repo !== undefined) return { ...elsewhere, repo: qualifyName(repo, username) };
  if (remote !== null)
    return {
      repo: `${remote.namespace}/${remote.name}`,
      isWorkingDirectory: true,
      folder: await readPrefix(),
    };
  if (image !== undefined) return { ...elsewhere, repo: undefined };
  throw new UsageError(
    `This folder is not in a clone of a repository of ${server}. Name a repository with --repo or an image with --image.`,
  );
}

/** Asks the server for a size that fits one of its machines, because its defaults may be larger than all of them. */
async function chooseSize(
  client: Client,
  namespace: string,
  { gpu = 'none', cpu, memory, region, image }: SizeOptions,
): Promise<Pick<JobOptions, 'cpu' | 'memoryGb'>> {
  if (cpu !== undefined && memory !== undefined) return { cpu, memoryGb: memory };
  const { jobOptions } = await client.graphql(SUGGEST_SIZE, {
    namespace,
    ...parseGpu(gpu),
    region: region === undefined ? null : enumOf<Region>(region),
    image,
    cpu,
    memoryGb: memory,
  });
  return demand(jobOptions, 'Job options').suggestedSize;
}

type SizeOptions = {
  gpu?: string | undefined;
  cpu?: number | undefined;
  memory?: number | undefined;
  region?: string | undefined;
  image?: string | undefined;
};

/**
 * Lets the server check the job, and pushes the working directory only then. A name that is taken gets a number.
 * @throws LoamError
 */
async function createJob(
  connection: LocalConnection,
  command: string,
  request: JobOptions & { namespace: string; name: string },
  { isWorkingDirectory }: Source,
): Promise<Job> {
  const { client } = connection;
  let { name } = request;
  let snapshot: string | undefined;
  for (let tries = 1; ; tries++) {
    const { checkJob } = await client
      .graphql(CHECK_JOB, {
        input: createInput(command, { ...request, name }),
        unpushedSnapshot: isWorkingDirectory,
      })
      .catch((error) => explainNames(error, client, request));
    const checked = demand(checkJob, `Namespace ${request.namespace}`);
    if (tries === 1) for (const warning of checked.warnings) note(`loam: Warning: ${warning}`);
    if (checked.name !== name)
      note(`loam: The name ${name} is taken. The job gets the name ${checked.name}.`);
    name = checked.name;
    if (isWorkingDirectory) snapshot ??= await pushWorkingDirectory(connection);
    try {
      const options = { ...request, name, snapshot };
      return await client.run(command, options, announced({ forMs: CREATE_MS }));
    } catch (error) {
      // Somebody else has taken the name meanwhile.
      const isTaken = error instanceof LoamError && error.code === 'already_exists';
      if (!isTaken || tries === NAME_TRIES) throw error;
    }
  }
}

/** Adds to an error about a secret or a variable how to correct it. */
async function explainNames(
  error: unknown,
  client: Client,
  { namespace, repo }: JobOptions & { namespace: string },
): Promise<never> {
  if (!(error instanceof LoamError)) throw error;
  const { field, code, message } = error;
  if (field !== 'secretNames' && field !== 'variableNames') throw error;
  let advice: string | undefined;
  // A secret that is only for certain branches is never for a job of `loam run`, which runs none.
  const [, restricted] = /the secret (\w+) is only for .*"\*\*"/.exec(message) ?? [];
  if (restricted !== undefined) advice = `: loam secret set ${restricted} --keep-value --refs '**'`;
  else if (code === 'invalid_request') {
    const [owner, name] = repo?.split('@')[0]?.split('/') ?? [];
    const repository = owner === namespace && name ? name : null;
    // Not everybody who may create jobs may list them.
    const known = await listValueNames(client, { namespace, repository }).catch(() => null);
    const names = known?.[field] ?? [];
    if (names.length > 0) advice = `. There are: ${names.join(', ')}`;
  }
  throw advice === undefined
    ? error
    : new LoamError(code, message + advice, { ...error, cause: error });
}

/** @returns the id of the snapshot */
async function pushWorkingDirectory({ remote, ...connection }: LocalConnection): Promise<string> {
  const line = new StatusLine();
  line.show('pushing the working directory');
  try {
    return await pushSnapshot({ ...connection, ...(remote as Remote) });
  } finally {
    line.clear();
  }
}

function merge(...values: (Record<string, string> | undefined)[]) {
  const given = Object.assign({}, ...values) as Record<string, string>;
  return Object.keys(given).length === 0 ? undefined : given;
}
