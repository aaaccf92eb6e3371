/** The draft of a new job as a `loam` command, and as a request for curl or GraphQL. */
import { formatCurl, joinCommand, quoteForShell } from '../../../ui/shell.ts';
import { formatInput, type Input } from './draft.ts';
import type { JobOptions } from './queries.ts';

/** Options that equal the server's defaults are left out. Values of secrets are not shown. */
export function formatLoamRun(input: Input, options: JobOptions): string {
  const { namespace, repo, branch, image, gpuCount } = input;
  const parts = ['loam run'];
  const add = (option: string, value: string | number) =>
    parts.push(`--${option} ${quoteForShell(String(value))}`);
  if (repo) add('repo', branch ? `${repo}@${branch}` : repo);
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
    ['retries', input.retries, '', options.retries.default],
    ['hold', input.holdOnFailureMinutes, 'm', options.holdOnFailureMinutes.default],
  ] as const;
  for (const [option, value, unit, byDefault] of settings)
    if (value != null && value !== byDefault) add(option, `${value}${unit}`);
  if (input.shellAccess === 'NONE') parts.push('--no-shell');
  if (input.region && input.region !== options.defaultRegion)
    add('region', restName(input.region).toLowerCase());
  if (input.outputPath) add('output', input.outputPath);
  for (const one of input.inputs ?? []) add('input', formatInput(one));
  for (const { name, to, readOnly } of input.volumes ?? [])
    add('volume', `${name}:${to}${readOnly == null ? '' : readOnly ? ':ro' : ':rw'}`);
  for (const { path, key, restoreKeys } of input.cache ?? [])
    add('cache', [`${path}=${key}`, ...(restoreKeys ?? [])].join('|'));
  if (input.checkpointPath) add('checkpoint', `${input.checkpointPath}:${input.checkpointMinutes}`);
  for (const check of input.checks ?? [])
    for (const text of formatChecks(check)) add('check', text);
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

/** REST names of input fields. */
const REST_NAMES: Partial<Record<keyof Input, string>> = {
  gpuCount: 'gpu_count',
  memoryGb: 'memory_gb',
  diskGb: 'disk_gb',
  timeoutMinutes: 'timeout_minutes',
  outputPath: 'output_path',
};

/** REST has only a part of the fields. */
export function formatJobCurl(
  {
    namespace,
    secrets,
    secretNames,
    variableNames,
    labels,
    inputs,
    volumes,
    cache,
    checkpointPath,
    checkpointMinutes,
    checks,
    permissions,
    idTokens,
    holdOnFailureMinutes,
    shellAccess,
    ...input
  }: Input,
  origin: string,
): string {
  const body = Object.entries(input).map(([name, value]) => {
    const rest = REST_NAMES[name as keyof Input] ?? name;
    if (name === 'gpu') return [rest, value === 'NONE' ? 'none' : restName(String(value))];
    if (name === 'region') return [rest, restName(String(value)).toLowerCase()];
    if (name === 'env')
      return [
        rest,
        Object.fromEntries(
          (value as { name: string; value: string }[]).map((e) => [e.name, e.value]),
        ),
      ];
    return [rest, value];
  });
  const url = `${origin}/auth/v1/seed/${encodeURIComponent(namespace)}/jobs`;
  return formatCurl(url, JSON.stringify(Object.fromEntries(body), null, 2));
}

export function formatJobGraphql(
  { secrets, permissions, shellAccess, ...input }: Input,
  options: JobOptions,
): string {
  const enums = new Set<unknown>([
    ...options.gpus.map(({ gpu }) => gpu),
    ...options.regions.map(({ region }) => region),
  ]);
  const literal = (value: unknown): string => {
    if (enums.has(value)) return String(value);
    if (Array.isArray(value)) return `[${value.map(literal).join(', ')}]`;
    if (typeof value === 'object' && value !== null)
      return `{${Object.entries(value)
        .map(([name, each]) => `${name}: ${name === 'better' ? each : literal(each)}`)
        .join(', ')}}`;
    return JSON.stringify(value);
  };
  // Values of secrets are not shown.
  const hidden = secrets?.map(({ name }) => ({ name, value: '…' }));
  const fields = Object.entries({ ...input, ...(hidden && { secrets: hidden }) })
    .map(([name, value]) => `    ${name}: ${literal(value)}`)
    .concat(shellAccess ? `    shellAccess: ${shellAccess}` : [])
    .concat(permissions ? `    permissions: ${formatPermissions(permissions)}` : [])
    .join('\n');
  return `mutation {\n  createJob(input: {\n${fields}\n  }) {\n    job { id name status }\n  }\n}`;
}

function formatPermissions(permissions: NonNullable<Input['permissions']>): string {
  const given = Object.entries(permissions).filter(([, access]) => access);
  return `{${given.map(([what, access]) => `${what}: ${access}`).join(', ')}}`;
}
