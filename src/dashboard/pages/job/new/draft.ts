/** A job that is being written, what is wrong with it by the rules of the server, and what it would cost. */
import type { VariablesOf } from '../../../graphql/graphql.ts';
import type { CreateJob, JobOptions } from './queries.ts';

export type Input = VariablesOf<typeof CreateJob>['input'];

/** As it is typed: all text, so that nothing is corrected while somebody writes. */
export type Draft = {
  namespace: string;
  name: string;
  source: 'repository' | 'image';
  repo: string;
  branch: string;
  image: string;
  command: string;
  gpu: JobOptions['gpus'][number]['gpu'];
  gpuCount: string;
  cpu: string;
  memoryGb: string;
  diskGb: string;
  region: JobOptions['regions'][number]['region'];
  timeoutMinutes: string;
  retries: string;
  outputPath: string;
  /** Lines of `NAME=value`. */
  env: string;
  secrets: string;
  /** Lines of `key=value`. */
  labels: string;
};

export type Problems = Partial<Record<keyof Draft, string>>;

export function newDraft(options: JobOptions, given: Partial<Draft>): Draft {
  const text = (value: number | null) => String(value ?? '');
  return {
    namespace: '',
    name: '',
    source: given.image ? 'image' : 'repository',
    repo: '',
    branch: '',
    image: '',
    command: '',
    gpu: 'NONE',
    gpuCount: '1',
    cpu: text(options.defaultCpu),
    memoryGb: text(options.memoryGb.default),
    diskGb: text(options.diskGb.default),
    region: options.defaultRegion,
    timeoutMinutes: text(options.timeoutMinutes.default),
    retries: text(options.retries.default),
    outputPath: '',
    env: '',
    secrets: '',
    labels: '',
    ...given,
  };
}

/** The rules are the server's, which it tells; it has the last word in any case. */
export function problemsOf(draft: Draft, options: JobOptions): Problems {
  const problems: Problems = {};
  const { name, source, repo, image, command } = draft;
  const { maxLength, pattern } = options.name;
  if (!name) problems.name = 'A job needs a name';
  else if (name.length > (maxLength ?? Infinity) || !matches(pattern, name))
    problems.name = `At most ${maxLength} letters, digits, hyphens and underscores`;
  if (source === 'repository' && !repo) problems.repo = 'Choose a repository, or an image';
  if (source === 'image' && !image) problems.image = 'Name an image, or choose a repository';
  else if (source === 'image' && !matches(options.image.pattern, image))
    problems.image = 'This is no name of an image, such as python:3.12-slim';
  if (!command.trim()) problems.command = 'What is to be run?';
  else if (new TextEncoder().encode(command).length > (options.command.maxBytes ?? Infinity))
    problems.command = `At most ${options.command.maxBytes} bytes`;

  const gpuCount = Number(draft.gpuCount);
  const cpu = Number(draft.cpu);
  if (draft.gpu === 'NONE' && gpuCount > 1) problems.gpuCount = 'Without a model of GPU it is 1';
  if (cpu < gpuCount) problems.cpu = `${gpuCount} GPUs need at least ${gpuCount} vCPUs`;
  const least = Math.max(options.memoryGb.min, Math.ceil(cpu * options.minMemoryGbPerCpu));
  const most = Math.min(options.memoryGb.max, cpu * options.maxMemoryGbPerCpu);
  const ranges = {
    memoryGb: { min: least, max: most },
    diskGb: options.diskGb,
    timeoutMinutes: options.timeoutMinutes,
    retries: options.retries,
  };
  for (const [field, { min, max }] of Object.entries(ranges)) {
    const value = Number(draft[field as keyof typeof ranges]);
    if (!(Number.isInteger(value) && value >= min && value <= max))
      problems[field as keyof Draft] = `From ${min} to ${max}`;
  }
  if (/(^|\/)\.\.(\/|$)/.test(draft.outputPath)) problems.outputPath = 'No part of it may be ..';
  for (const field of ['env', 'secrets'] as const) {
    const wrong = pairsOf(draft[field]).find(
      (each) => !each || !matches(options.variables.namePattern, each[0]),
    );
    if (wrong !== undefined)
      problems[field] = 'Each line is NAME=value; names have letters, digits and underscores';
  }
  if (pairsOf(draft.labels, true).some((each) => !each)) problems.labels = 'Each line is key=value';
  return problems;
}

export function inputOf(draft: Draft): Input {
  const isOfRepository = draft.source === 'repository';
  const variables = (text: string) =>
    pairsOf(text).flatMap((pair) => (pair ? [{ name: pair[0], value: pair[1] }] : []));
  const labels = pairsOf(draft.labels, true).flatMap((pair) =>
    pair ? [{ key: pair[0], value: pair[1] }] : [],
  );
  return {
    namespace: draft.namespace,
    name: draft.name,
    command: draft.command,
    ...(isOfRepository && { repo: draft.repo, ...(draft.branch && { branch: draft.branch }) }),
    ...(draft.image && { image: draft.image }),
    gpu: draft.gpu,
    gpuCount: Number(draft.gpuCount),
    cpu: Number(draft.cpu),
    memoryGb: Number(draft.memoryGb),
    diskGb: Number(draft.diskGb),
    region: draft.region,
    timeoutMinutes: Number(draft.timeoutMinutes),
    retries: Number(draft.retries),
    ...(draft.outputPath && { outputPath: draft.outputPath }),
    ...(draft.env.trim() && { env: variables(draft.env) }),
    ...(draft.secrets.trim() && { secrets: variables(draft.secrets) }),
    ...(labels.length > 0 && { labels }),
  };
}

/** US dollars an hour: of the GPUs, vCPUs and memory; disk has no price. */
export function pricePerHour(draft: Draft, options: JobOptions): number {
  const gpu = options.gpus.find((each) => each.gpu === draft.gpu);
  const gpus = draft.gpu === 'NONE' ? 0 : Number(draft.gpuCount) * Number(gpu?.pricePerHour ?? 0);
  const cpus = Number(draft.cpu) * Number(options.cpuPricePerHour);
  return gpus + cpus + Number(draft.memoryGb) * Number(options.memoryGbPricePerHour);
}

/** Null for a line that is no pair. */
function pairsOf(text: string, valueMayMiss = false): ([name: string, value: string] | null)[] {
  return text
    .split('\n')
    .filter((line) => line.trim())
    .map((line) => {
      const at = line.indexOf('=');
      if (at < 0) return valueMayMiss ? [line.trim(), ''] : null;
      return at === 0 ? null : [line.slice(0, at).trim(), line.slice(at + 1)];
    });
}

function matches(pattern: string | null, text: string): boolean {
  return pattern === null || new RegExp(pattern, 'u').test(text);
}
