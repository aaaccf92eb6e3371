/** The draft of a new job as a `loam` command, and as a request for curl or GraphQL. */
import { formatCurl, joinCommand, quoteForShell } from '../../../ui/shell.ts';
import { formatInput, type Input } from './draft.ts';
import type { JobOptions } from './queries.ts';

/** Options that equal the server's defaults are left out. Values of secrets are not shown. */
export function formatLoamRun(input: Input, options: JobOptions): string {
  const { namespace, repo, branch, snapshot, image, gpuCount } = input;
  const parts = ['loam run'];
  const add = (option: string, value: string | number) =>
    parts.push(`--${option} ${quoteForShell(String(value))}`);
  // Without `--repo`, the job gets the working directory.
  if (repo && !snapshot) add('repo', branch ? `${repo}@${branch}` : repo);
  if (image) add('image', image);
  if (namespace !== repo?.split('/')[0]) add('namespace', namespace);
  if (input.name) add('name', input.name);
  if (input.gpu !== 'NONE')
    add('gpu', restName(input.gpu) + (gpuCount && gpuCount > 1 ? `:${gpuCount}` : ''));
  add('cpu', input.cpu ?? options.defaultCpu);
  const settings = [
    ['memory', input.memoryGb, 'G', options.memoryGb.default],
    ['disk', input.diskGb, 'G', options.diskGb.default],
    ['timeout', input.timeoutMinutes, 'm', options.timeoutMinutes.default],
    ['idle-timeout', input.idleTimeoutMinutes, 'm', null],
    ['max-cost', input.maxCost, '', null],
    ['retries', input.retries, '', options.retries.default],
    ['hold', input.holdOnFailureMinutes, 'm', options.holdOnFailureMinutes.default],
  ] as const;
  for (const [option, value, unit, byDefault] of settings)
    if (value != null && value !== byDefault) add(option, `${value}${unit}`);
  if (input.shellAccess === 'NONE') parts.push('--no-shell');
  if (input.region && input.region !== options.defaultRegion)
    add('region', restName(input.region).toLowerCase());
  if (input.outputPath) add('output', input.outputPath);
  for (const path of input.testReports ?? []) add('test-reports', path);
  for (const one of input.inputs ?? []) add('input', formatInput(one));
  for (const { name, to, readOnly } of input.volumes ?? [])
    add('volume', `${name}:${to}${readOnly == null ? '' : readOnly ? ':ro' : ':rw'}`);
  for (const { path, key, restoreKeys } of input.cache ?? [])
    add('cache', [`${path}=${key}`, ...(restoreKeys ?? [])].join('|'));
  if (input.checkpointPath) add('checkpoint', `${input.checkpointPath}:${input.checkpointMinutes}`);
  for (const check of input.checks ?? [])
    for (const text of formatChecks(check)) add('check', text);
  for (const { job, when } of input.needs ?? [])
    add('after', when && when !== 'SUCCEEDED' ? `${job}:${when.toLowerCase()}` : job);
  const { group, onConflict } = input.concurrency ?? {};
  if (group !== undefined) add('concurrency', group);
  if (onConflict && onConflict !== 'QUEUE') add('on-conflict', restName(onConflict).toLowerCase());
  for (const { name, value } of input.env ?? []) add('env', `${name}=${value}`);
  for (const { name } of input.secrets ?? []) add('secret', name);
  for (const name of input.secretNames ?? []) add('use-secret', name);
  for (const name of input.variableNames ?? []) add('use-variable', name);
  for (const { key, value } of input.labels ?? []) add('label', `${key}=${value ?? ''}`);
  for (const [what, access] of Object.entries(input.permissions ?? {}))
    if (access) add('permission', `${what}=${access.toLowerCase()}`);
  for (const { variable, audience } of input.idTokens ?? [])
    add('id-token', `${variable}=${audience}`);
  // `loam run` takes a single argument as text for a shell, as the form does.
  parts.push(`-- ${quoteForShell(input.command)}`);
  return joinCommand(parts);
}

/** A check as `loam run --check` takes it, which has one condition at a time. */
function formatChecks({
  metric,
  min,
  max,
  regressPercent,
  better,
  baselineJob,
}: NonNullable<Input['checks']>[number]): string[] {
  const isLower = better === 'LOWER' ? ' better=lower' : '';
  return [
    ...(min == null ? [] : [`${metric}>=${min}`]),
    ...(max == null ? [] : [`${metric}<=${max}`]),
    ...(regressPercent == null
      ? []
      : [`${metric} regress=${regressPercent}%${isLower} job=${baselineJob}`]),
  ];
}

/** A value of the schema as REST and the command name it: `A100_80GB` is `A100-80GB`. */
function restName(value: string): string {
  return value.replaceAll('_', '-');
}

/** The input fields that REST has, by their names there. */
const REST_NAMES: Partial<Record<keyof Input, string>> = {
  name: 'name',
  command: 'command',
  repo: 'repo',
  branch: 'branch',
  image: 'image',
  gpu: 'gpu',
  gpuCount: 'gpu_count',
  cpu: 'cpu',
  memoryGb: 'memory_gb',
  diskGb: 'disk_gb',
  region: 'region',
  timeoutMinutes: 'timeout_minutes',
  retries: 'retries',
  outputPath: 'output_path',
  env: 'env',
};

/** Whether REST can set all of the job. */
export function isRestEnough({ namespace, ...input }: Input): boolean {
  return Object.keys(input).every((name) => name in REST_NAMES);
}

export function formatJobCurl({ namespace, ...input }: Input, origin: string): string {
  const body = Object.entries(input).flatMap(([name, value]) => {
    const rest = REST_NAMES[name as keyof Input];
    if (rest === undefined) return [];
    return [[rest, toRestValue(name, value)]];
  });
  const url = `${origin}/auth/v1/seed/${encodeURIComponent(namespace)}/jobs`;
  return formatCurl(url, JSON.stringify(Object.fromEntries(body), null, 2));
}

function toRestValue(name: string, value: unknown): unknown {
  if (name === 'gpu') return value === 'NONE' ? 'none' : restName(String(value));
  if (name === 'region') return restName(String(value)).toLowerCase();
  if (name !== 'env') return value;
  const variables = value as NonNullable<Input['env']>;
  return Object.fromEntries(variables.map((variable) => [variable.name, variable.value]));
}

/** Input fields whose values are enums. */
const ENUMS = new Set(['gpu', 'region', 'shellAccess', 'better', 'when', 'onConflict']);

export function formatJobGraphql({ secrets, permissions, ...input }: Input): string {
  const literal = (value: unknown, name = ''): string => {
    if (ENUMS.has(name)) return String(value);
    if (Array.isArray(value)) return `[${value.map((each) => literal(each)).join(', ')}]`;
    if (typeof value !== 'object' || value === null) return JSON.stringify(value);
    const fields = Object.entries(value).map(
      ([field, each]) => `${field}: ${literal(each, field)}`,
    );
    return `{${fields.join(', ')}}`;
  };
  // Values of secrets are not shown.
  const hidden = secrets?.map(({ name }) => ({ name, value: '…' }));
  const fields = Object.entries({ ...input, ...(hidden && { secrets: hidden }) })
    .map(([name, value]) => `    ${name}: ${literal(value, name)}`)
    .concat(permissions ? `    permissions: ${formatPermissions(permissions)}` : [])
    .join('\n');
  return `mutation {\n  createJob(input: {\n${fields}\n  }) {\n    job { id name status }\n  }\n}`;
}

function formatPermissions(permissions: NonNullable<Input['permissions']>): string {
  const given = Object.entries(permissions).filter(([, access]) => access);
  return `{${given.map(([what, access]) => `${what}: ${access}`).join(', ')}}`;
}
