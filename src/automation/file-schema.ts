/**
 * The keys of `.loam/jobs.yml`. The JSON Schema for editors is derived from the same schema, so its descriptions are for
 * users.
 */
import { z } from 'zod';
import { type Catalogue, gpuCounts, gpuNames, isRange } from '../base/hardware.ts';
import { BETTER, CHECK_RULES } from '../jobs/metrics/checks.ts';
import { DEFAULT_TIMEZONE } from './cron.ts';
import { MAX_COMBINATIONS } from './matrix.ts';
import { describeInputProblem, INPUT_TYPES } from './run-inputs.ts';

export const JOBS_FILE = '.loam/jobs.yml';

/** Leaves room for the numbers of the run and of the combination in the name of a job, which has at most 100 characters. */
export const JOB_KEY = /^[A-Za-z0-9][A-Za-z0-9_-]{0,59}$/;
const VARIABLE = /^[A-Za-z_][A-Za-z0-9_]*$/;
const VARIABLE_RULE = 'must be at most 60 letters, digits and _, and not begin with a digit';

/** Characters, before and after the values of the matrix are put in. */
export const MAX_IMAGE = 512;
const MAX_JOBS_IN_FILE = 100;
const MAX_PATTERNS = 50;
const MAX_SCHEDULES = 10;
const MAX_MATRIX_KEYS = 10;
const MAX_NAMES = 100;
const MAX_INPUTS = 25;
const MAX_OPTIONS = 100;

const jobKey = z
  .string()
  .regex(JOB_KEY, 'must be 1 to 60 letters, digits, - and _, and begin with a letter or digit');
const variable = z
  .string()
  .max(200)
  .regex(VARIABLE, 'must be letters, digits and _, and not begin with a digit');
const pattern = z.string().min(1).max(240);
const patterns = z.array(pattern).min(1).max(MAX_PATTERNS);
/** YAML reads `3` and `true` as a number and a boolean, which users mean as text here. */
const scalar = z
  .union([z.string().max(65_536), z.number(), z.boolean()], 'must be text, a number or a boolean')
  .transform(String);

const push = z
  .strictObject({
    branches: patterns
      .optional()
      .describe(
        'Branches that start the job. `*` matches within a part of the name, `**` across parts. `!` excludes; the last match decides. Default: all.',
      ),
    paths: patterns
      .optional()
      .describe('The job starts only if one of these files has changed. Patterns as for branches.'),
  })
  .describe('Start the job when a branch is pushed.');

const runInput = z
  .strictObject({
    type: z.enum(INPUT_TYPES).default('string').describe('The type of its value. Default: string.'),
    description: z.string().max(200).optional().describe('Text for the form.'),
    default: scalar
      .optional()
      .describe('The value when none is given. Without it, users must give one.'),
    options: z.array(scalar).min(1).max(MAX_OPTIONS).optional().describe('The values of a choice.'),
    min: z.number().optional().describe('The smallest number.'),
    max: z.number().optional().describe('The largest number.'),
  })
  .superRefine((input, ctx) => {
    const report = (message: string, key: keyof typeof input) =>
      ctx.addIssue({ code: 'custom', message, path: [key] });
    const isNumber = input.type === 'integer' || input.type === 'number';
    if (input.type === 'choice' && !input.options) report('is required for a choice', 'options');
    if (input.type !== 'choice' && input.options)
      report('can only be given for a choice', 'options');
    for (const key of ['min', 'max'] as const)
      if (input[key] !== undefined && !isNumber) report('can only be given for a number', key);
    const problem = input.default === undefined ? null : describeInputProblem(input, input.default);
    if (problem) report(problem, 'default');
  });

const manual = z
  .strictObject({
    inputs: z
      .record(z.string().max(60).regex(VARIABLE, VARIABLE_RULE), runInput)
      .refine(
        (inputs) => Object.keys(inputs).length <= MAX_INPUTS,
        `must have at most ${MAX_INPUTS} keys`,
      )
      .optional()
      .describe(
        'Values that users give when they start the job. Each is an environment variable of all jobs of the run: `epochs` sets EPOCHS.',
      ),
  })
  .describe('Users can start the job in the dashboard or with `loam start`.');

const on = z
  .strictObject({
    push: z
      .union([z.literal(true), push], 'must be true, or an object with branches and paths')
      .optional()
      .describe('Start the job when a branch is pushed: `true` for all branches.'),
    tag: patterns.optional().describe('Start the job when a tag is pushed whose name matches.'),
    schedule: z
      .array(
        z.strictObject({
          cron: z.string().describe('Five fields: minute, hour, day of month, month, day of week.'),
          timezone: z
            .string()
            .default(DEFAULT_TIMEZONE)
            .describe('A name such as Europe/Berlin. Default: UTC.'),
        }),
      )
      .min(1)
      .max(MAX_SCHEDULES)
      .optional()
      .describe('Start the job at these times, from the file on the default branch.'),
    manual: z
      .union([z.boolean(), manual], 'must be true, false, or an object with inputs')
      .optional()
      .describe('Whether users can start the job in the dashboard or with `loam start`.'),
  })
  .describe('What starts the job. A job without `on` runs in each run that has all jobs it needs.');

const hardware = {
  image: z.string().max(MAX_IMAGE).optional().describe(
    // biome-ignore lint/suspicious/noTemplateCurlyInString: the text of the file has it.
    'The container image in which the command runs. `${key}` stands for a value of the matrix.',
  ),
  gpu: z.string().max(100).optional().describe('The GPU model. Default: none.'),
  gpu_count: z.int().optional().describe('The number of GPUs.'),
  cpu: z.int().optional().describe('The number of vCPUs.'),
  memory_gb: z.int().optional().describe('Memory in GB.'),
  disk_gb: z.int().optional().describe('Disk in GB.'),
  region: z.string().max(100).optional().describe('The region.'),
  timeout_minutes: z.int().optional().describe('Each attempt of the job is ended after this time.'),
  retries: z.int().optional().describe('How often the job is retried after a failure.'),
  env: z.record(variable, scalar).optional().describe('Environment variables.'),
  labels: z
    .record(z.string(), scalar)
    .optional()
    // biome-ignore lint/suspicious/noTemplateCurlyInString: the text of the file has it.
    .describe('Labels of the job. `${branch}` stands for the branch or tag.'),
};

const defaults = z.strictObject(hardware).describe('Values for all jobs that do not set them.');

const need = z
  .union(
    [
      jobKey,
      z.strictObject({
        job: jobKey,
        when: z
          .enum(['succeeded', 'failed', 'finished'])
          .default('succeeded')
          .describe(
            'How the other job must have ended. Default: succeeded. Of a matrix, all jobs must have succeeded, or at least one must have failed.',
          ),
      }),
    ],
    'must be the name of a job, or an object with job and when',
  )
  .transform((given) =>
    typeof given === 'string' ? ({ job: given, when: 'succeeded' } as const) : given,
  );

/** Of some keys of a matrix, one value each. */
const combinations = z
  .array(
    z
      .record(z.string().max(60).regex(VARIABLE, VARIABLE_RULE), scalar)
      .refine((values) => Object.keys(values).length > 0, 'must have a key'),
  )
  .min(1)
  .max(MAX_COMBINATIONS);

const matrix = z
  .object({
    include: combinations
      .optional()
      .describe(
        'Values that are added to each combination whose values they do not change, or else are a combination of their own.',
      ),
    exclude: combinations
      .optional()
      .describe('Combinations that are left out: those that have all values of an entry.'),
  })
  .catchall(z.array(scalar).min(1).max(MAX_COMBINATIONS))
  .transform(({ include = [], exclude = [], ...axes }) => ({ axes, include, exclude }))
  .superRefine(({ axes, include, exclude }, ctx) => {
    const report = (message: string, path: (string | number)[]) =>
      ctx.addIssue({ code: 'custom', message, path });
    const keys = new Set([...Object.keys(axes), ...include.flatMap(Object.keys)]);
    if (keys.size === 0) report('must have a key', []);
    if (keys.size > MAX_MATRIX_KEYS) report(`must have at most ${MAX_MATRIX_KEYS} keys`, []);
    for (const key of Object.keys(axes)) if (!isMatrixKey(key)) report(VARIABLE_RULE, [key]);
    for (const [i, entry] of exclude.entries())
      for (const key of Object.keys(entry))
        if (!Object.hasOwn(axes, key))
          report('is no key of the matrix with a list of values', ['exclude', i, key]);
  })
  .describe(
    'One job for each combination of the values. Each value is an environment variable: `seed: [1, 2]` sets SEED.',
  );

function isMatrixKey(key: string): boolean {
  return key.length <= 60 && VARIABLE.test(key);
}

/** A percentage such as `2%`. YAML reads it as text, with quotes and without them. */
const PERCENTAGE = /^(\d{1,4}(?:\.\d{1,6})?) ?%$/;

const check = z
  .strictObject({
    metric: z.string().max(100).describe('The name of a metric that the job prints.'),
    min: z.number().optional().describe('The lowest value with which the job succeeds.'),
    max: z.number().optional().describe('The highest value with which the job succeeds.'),
    regress: z
      .string('must be a percentage, such as 2%')
      .regex(PERCENTAGE, 'must be a percentage, such as 2%')
      .optional()
      .describe(
        'How much worse it may be than at the last success of this job on the default branch: 2%.',
      ),
    better: z
      .enum(BETTER)
      .optional()
      .describe('With regress: whether higher or lower values are better. Default: higher.'),
  })
  .describe('What a metric must meet for the job to succeed.');

const access = z.enum(['read', 'write']);

const job = z
  .strictObject({
    on: on.optional(),
    needs: z
      .array(need)
      .min(1)
      .max(MAX_JOBS_IN_FILE)
      .optional()
      .describe('Jobs of this file that must have ended before this job starts.'),
    command: z.string().describe('The shell command, run in a checkout of the commit.'),
    ...hardware,
    secrets: z
      .array(variable)
      .max(MAX_NAMES)
      .optional()
      .describe('Names of secrets of the repository or namespace, given as environment variables.'),
    variables: z
      .array(variable)
      .max(MAX_NAMES)
      .optional()
      .describe('Names of variables of the repository or namespace.'),
    output_path: z.string().optional().describe('Files under this path are kept as artifacts.'),
    inputs: z
      .array(
        z.strictObject({
          job: z
            .string()
            .min(1)
            .max(100)
            .optional()
            .describe('A job of this file that this job needs, or the name of an earlier job.'),
          repo: z
            .string()
            .min(1)
            .max(200)
            .optional()
            .describe('Instead of a job: a repository, `namespace/name`.'),
          ref: z
            .string()
            .min(1)
            .max(255)
            .optional()
            .describe(
              'A branch, a tag or a commit id of the repository. Default: the default branch.',
            ),
          path: z
            .string()
            .max(1_024)
            .optional()
            .describe('The path in the artifacts or the repository. Default: all.'),
          to: z.string().max(1_024).optional().describe('The folder to put the files into.'),
          read_only: z
            .boolean()
            .optional()
            .describe(
              'Whether a folder of a repository may be mounted instead of copied, so that the job cannot change it.',
            ),
        }),
      )
      .max(20)
      .optional()
      .describe(
        'Artifacts of other jobs and files of repositories, put into the working directory before the start. Each job of a matrix gets a folder, such as `seed=1,lr=0.1`.',
      ),
    volumes: z
      .array(
        z.strictObject({
          name: z.string().min(1).max(64).describe('The name of a volume of the server.'),
          to: z
            .string()
            .max(1_024)
            .describe(
              'The folder at which the job has it: data, below the working directory, or /data.',
            ),
          read_only: z
            .boolean()
            .optional()
            .describe('Whether the job can only read it. Default: as the volume permits.'),
        }),
      )
      .max(16)
      .optional()
      .describe('Data on the machines that the job mounts.'),
    cache: z
      .array(
        z.strictObject({
          path: z
            .string()
            .max(1_024)
            .describe('A folder in the working directory, or in the home folder: ~/.npm.'),
          key: z.string().min(1).max(512).describe(
            // biome-ignore lint/suspicious/noTemplateCurlyInString: the text of the file has it.
            'A name of its contents. `${hash:package-lock.json}` stands for the contents of a file, `${branch}`, `${os}` and `${arch}` for those of the job.',
          ),
          restore_keys: z
            .array(z.string().min(1).max(512))
            .max(10)
            .optional()
            .describe('Beginnings of keys that are restored if no cache has the key.'),
        }),
      )
      .max(16)
      .optional()
      .describe('Folders that the job finds as an earlier job has left them.'),
    checkpoint_path: z
      .string()
      .max(1_024)
      .optional()
      .describe('A folder in the working directory whose content the next attempt gets.'),
    checkpoint_minutes: z
      .int()
      .min(0)
      .max(1_440)
      .optional()
      .describe(
        'How often the folder is stored while the job runs; 0: only at the end of attempts. Default: 10.',
      ),
    check: z
      .union(
        [check, z.array(check).min(1).max(CHECK_RULES.maxEntries)],
        `must be a check, such as {metric: accuracy, min: 0.9}, or a list of at most ${CHECK_RULES.maxEntries}`,
      )
      .optional()
      .describe(
        'The job fails if its last value of a metric does not meet this. A list has several checks.',
      ),
    test_reports: z
      .union([z.string().min(1).max(500), z.array(z.string().min(1).max(500)).max(10)])
      .transform((given) => [given].flat())
      .optional()
      .describe(
        'JUnit files of the tests, relative to the working directory, such as `reports/*.xml`: a path, a pattern, or a list of them.',
      ),
    matrix: matrix.optional(),
    max_parallel: z
      .int()
      .min(1)
      .max(MAX_COMBINATIONS)
      .optional()
      .describe('How many jobs of the matrix may run at once.'),
    concurrency: z
      .strictObject({
        group: z
          .string()
          .min(1)
          .max(200)
          // biome-ignore lint/suspicious/noTemplateCurlyInString: the text of the file has it.
          .describe('One job of a group runs at a time. `${branch}` stands for the branch or tag.'),
        on_conflict: z
          .enum(['queue', 'cancel_running', 'skip'])
          .default('queue')
          .describe('What happens when the group is taken. Default: queue.'),
      })
      .optional(),
    max_cost: z
      .union([z.string(), z.number()], 'must be an amount such as "5.00"')
      .transform(String)
      .optional()
      .describe('The job is ended when it has cost this much, in US dollars.'),
    idle_timeout_minutes: z
      .int()
      .min(1)
      .optional()
      .describe('The job is ended when its GPUs were idle for this time.'),
    hold_minutes: z
      .int()
      .min(0)
      .max(1_440)
      .optional()
      .describe(
        'The sandbox stays this long when the last attempt fails, to look into it. Default: 0.',
      ),
    shell: z
      .enum(['allowed', 'none'])
      .optional()
      .describe('none: nobody can open a shell in the job, not even an admin. Default: allowed.'),
    permissions: z
      .strictObject({ repo: access.optional(), jobs: access.optional() })
      .optional()
      .describe('Gives the job a token of its own, LOAM_TOKEN. Default: none.'),
    id_tokens: z
      .array(z.strictObject({ variable, audience: z.string().min(1).max(255) }))
      .max(10)
      .optional()
      .describe('OpenID identity tokens for the job.'),
  })
  .describe('A job.');

export const fileSchema = z
  .strictObject({
    defaults: defaults.optional(),
    jobs: z
      .record(jobKey, job)
      .refine((jobs) => Object.keys(jobs).length > 0, 'must have a job')
      .refine(
        (jobs) => Object.keys(jobs).length <= MAX_JOBS_IN_FILE,
        `must have at most ${MAX_JOBS_IN_FILE} jobs`,
      )
      .describe('The jobs by name.'),
  })
  .describe('Jobs that start by themselves: `.loam/jobs.yml` of a repository on Loam.');

export type FileJob = z.output<typeof job>;
export type FileDefaults = z.output<typeof defaults>;

/** The JSON Schema with which editors complete and check the file. */
export function jobsJsonSchema(offer: Catalogue): object {
  const { cpus, regions } = offer;
  const limits = new Map<z.core.$ZodType, object>([
    [hardware.gpu, { enum: gpuNames(offer) }],
    [hardware.gpu_count, { enum: gpuCounts(offer) }],
    [hardware.cpu, isRange(cpus) ? { minimum: cpus.min, maximum: cpus.max } : { enum: cpus }],
    [hardware.region, { enum: regions }],
  ]);
  const schema = z.toJSONSchema(fileSchema, {
    io: 'input',
    override: ({ zodSchema, jsonSchema }) => void Object.assign(jsonSchema, limits.get(zodSchema)),
  });
  return { title: JOBS_FILE, ...schema };
}
