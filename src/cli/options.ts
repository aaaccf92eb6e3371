/** Parsers of option values, which several commands share. Each throws a usage error that commander shows. */
import { readFileSync } from 'node:fs';
import { InvalidArgumentError } from '@commander-js/extra-typings';
import type { Gpu, JobStatus } from './sdk/job-info.ts';
import {
  fromEnum,
  gpuOf,
  type InputArtifacts,
  type InputRepository,
  type JobCache,
  type MetricCheck,
  type NeededJob,
  type VolumeMount,
} from './sdk/job-input.ts';

export function parseCount(text: string): number {
  if (!/^\d{1,9}$/.test(text)) throw new InvalidArgumentError('It must be a whole number.');
  return Number(text);
}

/** Checks a number of rows. */
export function parseLimit(text: string): number {
  const limit = parseCount(text);
  if (limit === 0) throw new InvalidArgumentError('It must be at least 1.');
  return limit;
}

/** Collects an option such as `50,80,100`, which may be repeated. */
export function collectCounts(text: string, before: number[] = []): number[] {
  return [...before, ...text.split(',').map(parseCount)];
}

const STATUSES: Record<JobStatus, true> = {
  QUEUED: true,
  RUNNING: true,
  SUCCEEDED: true,
  FAILED: true,
  TIMED_OUT: true,
  CANCELLED: true,
};

export const STATUS_NAMES = (Object.keys(STATUSES) as JobStatus[]).map(fromEnum);

/** Checks a model and a number, such as `A100-80GB:2`. The server knows the models. @returns the text */
export function parseGpus(text: string): string {
  if (!/^[\w./-]+(:[1-9]\d{0,2})?$/.test(text))
    throw new InvalidArgumentError('It must be a model and a number, such as A100-80GB:2.');
  return text;
}

/** Collects GPU models. */
export function collectGpus(text: string, before: readonly Gpu[] = []): Gpu[] {
  return [...before, ...collect(text).map(gpuOf)];
}

/** Collects statuses of jobs. */
export function collectStatuses(text: string, before: readonly JobStatus[] = []): JobStatus[] {
  const parse = (name: string) =>
    parseName(name.replaceAll('_', '-'), Object.keys(STATUSES) as JobStatus[], fromEnum);
  return [...before, ...collect(text).map(parse)];
}

/** An amount of money, such as `5.00`. @returns the text */
export function parseAmount(text: string): string {
  if (!/^\d{1,10}(\.\d{1,4})?$/.test(text))
    throw new InvalidArgumentError('It must be an amount such as 500.00.');
  return text;
}

/** `90m`, `4h`, `2d` or a number of minutes → minutes. */
export function parseMinutes(text: string): number {
  const [, count, unit = 'm'] = /^(\d{1,6})([mhd])?$/.exec(text) ?? [];
  if (count === undefined)
    throw new InvalidArgumentError('It must be a length of time such as 90m, 4h or 2d.');
  return Number(count) * ({ m: 1, h: 60, d: 1_440 }[unit] ?? 1);
}

/** As `parseMinutes`, also such as `90s` → seconds. */
export function parseSeconds(text: string): number {
  const [, seconds] = /^(\d{1,9})s$/.exec(text) ?? [];
  return seconds === undefined ? parseMinutes(text) * 60 : Number(seconds);
}

/** `32`, `32G` or `32GB`, also with `T` → GB. */
export function parseGb(text: string): number {
  const [, count, unit = 'G'] = /^(\d{1,6})(?:([GT])i?B?)?$/i.exec(text) ?? [];
  if (count === undefined) throw new InvalidArgumentError('It must be a size such as 64G.');
  return Number(count) * (unit.toUpperCase() === 'T' ? 1_024 : 1);
}

/** A time, or how long ago: `2026-01-31T12:00:00Z`, `10m`, `36h`. */
export function parseSince(text: string): Date {
  const [, count, unit = 's'] = /^(\d{1,9})([smhd])$/.exec(text) ?? [];
  if (count !== undefined) {
    const seconds = Number(count) * ({ s: 1, m: 60, h: 3_600, d: 86_400 }[unit] ?? 1);
    return new Date(Date.now() - seconds * 1_000);
  }
  const time = new Date(text);
  if (Number.isNaN(time.getTime()))
    throw new InvalidArgumentError('It must be a time, or a length of time such as 10m.');
  return time;
}

/** Collects a repeatable option `KEY=VALUE`. */
export function collectPairs(text: string, before: Record<string, string> = {}) {
  const at = text.indexOf('=');
  if (at < 1) throw new InvalidArgumentError('It must be KEY=VALUE.');
  return { ...before, [text.slice(0, at)]: text.slice(at + 1) };
}

type Permissions = { repo?: 'read' | 'write'; jobs?: 'read' | 'write' };

/** Collects a repeatable option such as `repo=write`. */
export function collectPermissions(text: string, before: Permissions = {}): Permissions {
  if (!/^(repo|jobs)=(read|write)$/.test(text))
    throw new InvalidArgumentError('It must be repo=read, repo=write, jobs=read or jobs=write.');
  return { ...before, ...collectPairs(text) };
}

/** Collects a repeatable option `NAME=VALUE`, or `NAME` for the value of this variable here. */
export function collectVariables(text: string, before: Record<string, string> = {}) {
  return text.includes('=') ? collectPairs(text, before) : collectNames(text, before);
}

/** Collects a repeatable option `NAME`, whose value is that of this variable here. */
export function collectNames(name: string, before: Record<string, string> = {}) {
  if (name.includes('='))
    throw new InvalidArgumentError(
      'Other users of this machine can read values on a command line. Set the variable and give only its name, or use --secret-file.',
    );
  const value = process.env[name];
  if (value === undefined) throw new InvalidArgumentError(`The variable ${name} is not set.`);
  return { ...before, [name]: value };
}

type Input = InputArtifacts | InputRepository;

/** A slash in the name says that it is a repository. Names of refs have no colon. */
const INPUT_REPOSITORY = /^([^/:=@]+\/[^/:=@]+)(?:@([^:=]+))?(?::([^=]*))?(?:=(.*?)(:ro)?)?$/s;

/**
 * Collects a repeatable option `JOB`, `JOB:PATH` or `JOB:PATH:TO`, or `NAMESPACE/REPO`, `@REF`, `:PATH` and `=TO` or `=TO:ro`. An
 * empty path is the root.
 */
export function collectInputs(text: string, before: readonly Input[] = []): Input[] {
  if (/^[^:=@]*\//.test(text)) {
    const [, repo, ref, path, to, mode] = INPUT_REPOSITORY.exec(text) ?? [];
    if (repo === undefined || (to === undefined && text.endsWith(':ro')))
      throw new InvalidArgumentError('It must be NAMESPACE/REPO[@REF][:PATH][=TO[:ro]].');
    const paths = { ...(ref && { ref }), ...(path && { path }), ...(to && { to }) };
    return [...before, { repo, ...paths, ...(mode && { readOnly: true }) }];
  }
  const [job = '', path, to, ...more] = text.split(':');
  if (job === '' || more.length > 0)
    throw new InvalidArgumentError('It must be JOB, JOB:PATH or JOB:PATH:TO.');
  return [...before, { job, ...(path && { path }), ...(to && { to }) }];
}

/** `NAME:TO`, or `NAME:TO:ro` or `NAME:TO:rw`. */
export function collectVolumes(text: string, before: readonly VolumeMount[] = []): VolumeMount[] {
  const [, name, to, mode] = /^([^:]+):([^:]+)(?::(ro|rw))?$/.exec(text) ?? [];
  if (name === undefined || to === undefined)
    throw new InvalidArgumentError('It must be NAME:TO, NAME:TO:ro or NAME:TO:rw.');
  return [...before, { name, to, ...(mode && { readOnly: mode === 'ro' }) }];
}

/** `PATH=KEY`, or `PATH=KEY|RESTORE_KEY|…`. */
export function collectCaches(text: string, before: readonly JobCache[] = []): JobCache[] {
  const [first = '', ...restoreKeys] = text.split('|').map((part) => part.trim());
  const [, path, key] = /^([^=]+)=(.+)$/s.exec(first) ?? [];
  if (path === undefined || key === undefined)
    throw new InvalidArgumentError('It must be PATH=KEY, or PATH=KEY|RESTORE_KEY.');
  return [...before, { path, key, ...(restoreKeys.length > 0 && { restoreKeys }) }];
}

/** `PATH` or `PATH:MINUTES`. */
export function parseCheckpoint(text: string): { path: string; minutes: number | undefined } {
  const [, path, minutes] = /^([^:]+)(?::(\d{1,5}))?$/.exec(text) ?? [];
  if (path === undefined) throw new InvalidArgumentError('It must be PATH or PATH:MINUTES.');
  return { path, minutes: minutes === undefined ? undefined : Number(minutes) };
}

const CHECK_FORM =
  'It must be METRIC>=NUMBER, METRIC<=NUMBER, or METRIC regress=PERCENT% job=JOB, also with better=lower.';

/** `METRIC>=NUMBER`, `METRIC<=NUMBER`, or `METRIC regress=PERCENT% job=JOB better=lower`. */
export function collectChecks(text: string, before: readonly MetricCheck[] = []): MetricCheck[] {
  const refuse = () => new InvalidArgumentError(CHECK_FORM);
  const [, metric, sign, bound] = /^\s*([^\s<>=]+)\s*([<>])=\s*(\S+)\s*$/.exec(text) ?? [];
  if (metric !== undefined) {
    const value = Number(bound);
    if (!Number.isFinite(value)) throw refuse();
    return [...before, { metric, ...(sign === '>' ? { min: value } : { max: value }) }];
  }
  const [name = '', ...words] = text.trim().split(/\s+/);
  const given: { regress?: string; job?: string; better?: string } = {};
  for (const word of words) {
    const [, key, value] = /^(regress|job|better)=(.+)$/.exec(word) ?? [];
    if (key === undefined || key in given) throw refuse();
    given[key as keyof typeof given] = value;
  }
  const { regress, job, better } = given;
  const [, percent] = /^(\d+(?:\.\d+)?)%$/.exec(regress ?? '') ?? [];
  if (percent === undefined || job === undefined) throw refuse();
  if (better !== undefined && better !== 'higher' && better !== 'lower') throw refuse();
  const check = { metric: name, regressPercent: Number(percent), baselineJob: job };
  return [...before, { ...check, ...(better && { better }) }];
}

/** `JOB`, or `JOB:failed` or `JOB:finished`. */
export function collectNeeds(text: string, before: readonly NeededJob[] = []): NeededJob[] {
  const [, job, when] = /^([\w-]+)(?::(succeeded|failed|finished))?$/.exec(text) ?? [];
  if (job === undefined)
    throw new InvalidArgumentError('It must be JOB, JOB:failed or JOB:finished.');
  return [...before, { job, ...(when && { when: when as NonNullable<NeededJob['when']> }) }];
}

/** A file of lines `NAME=VALUE`. Empty lines and lines that begin with `#` are skipped; quotes around a value are removed. */
export function collectFile(path: string, before: Record<string, string> = {}) {
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    throw new InvalidArgumentError(`It cannot be read: ${(error as Error).message}`);
  }
  const values = { ...before };
  for (const [index, line] of text.split(/\r?\n/).entries()) {
    if (/^\s*(#|$)/.test(line)) continue;
    const [, name, value = ''] = /^\s*(?:export\s+)?([^=\s]+)=(.*)$/.exec(line) ?? [];
    if (name === undefined) throw new InvalidArgumentError(`Line ${index + 1} is not NAME=VALUE.`);
    values[name] = value.replace(/^(['"])(.*)\1$/, '$2');
  }
  return values;
}

/**
 * Collects an option that may be repeated, each time with one value or several separated by commas or spaces.
 * @throws InvalidArgumentError for no value: the server takes an empty list as no restriction
 */
export function collect(text: string, before: readonly string[] = []): string[] {
  const values = text.split(/[,\s]+/).filter((part) => part !== '');
  if (values.length === 0) throw new InvalidArgumentError('It must not be empty.');
  return [...before, ...values];
}

/** The event type as its receivers see it: `JOB_COMPLETED` is `job.completed`. */
export function eventName(type: string): string {
  return type.toLowerCase().replace('_', '.');
}

/** The scope as credentials name it: `REPO_READ` is `repo:read`. */
export function scopeName(scope: string): string {
  return scope.toLowerCase().replace('_', ':');
}

/**
 * Finds a value of the schema by the name that people use.
 * @throws InvalidArgumentError that lists the names
 */
export function parseName<Value extends string>(
  text: string,
  values: readonly Value[],
  nameOf: (value: Value) => string,
): Value {
  const found = values.find((value) => nameOf(value).toLowerCase() === text.toLowerCase());
  if (found === undefined)
    throw new InvalidArgumentError(`${text} must be one of ${values.map(nameOf).join(', ')}.`);
  return found;
}

/** A command line for a shell: one argument is shell text itself, several are quoted. */
export function toShell(args: readonly string[]): string {
  const [first = '', ...more] = args;
  return more.length === 0 ? first : args.map(quote).join(' ');
}

export function quote(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}
