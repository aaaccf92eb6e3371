/**
 * Checks of metrics: a job whose command has succeeded fails if a metric of the successful attempt does not meet its checks. They
 * are decided when all points of the attempt are stored, and the results are written with the final status of the job.
 */
import type pg from 'pg';
import { invalid } from '../../base/errors.ts';
import { REF_PREFIX } from '../../git/objects/refs.ts';
import { type MatrixValue, readMatrixValues } from '../record/matrix-values.ts';
import { isMetricName } from './parse.ts';
import { readMetrics } from './summaries.ts';

export const BETTER = ['higher', 'lower'] as const;
type Better = (typeof BETTER)[number];

export type CheckRequest = {
  metric: string;
  min?: number | null;
  max?: number | null;
  /** How many percent worse than the baseline the metric may be. */
  regressPercent?: number | null;
  /** With `regressPercent`: which values are better. */
  better?: Better | null;
  /** With `regressPercent`: the job in `.loam/jobs.yml` whose last success on the default branch is the baseline. */
  baselineJob?: string | null;
};

/** As stored with the job. */
export type MetricCheck = {
  metric: string;
  min: number | null;
  max: number | null;
  regress: { percent: number; better: Better; job: string } | null;
};

/** As stored with the job when its command has succeeded. The results are in the order of the checks. */
export type CheckResult = {
  passed: boolean;
  /** As text, because JSON has neither NaN nor infinity; null if the attempt has not printed the metric. */
  value: string | null;
  message: string;
  /** The job with which it was compared; null if there was none. */
  baseline: Baseline | null;
};

type Baseline = { job: string; commitSha: string; value: number };

export const CHECK_RULES = {
  maxEntries: 20,
  regressPercent: { min: 0, max: 1_000 },
  baselineJob: /^[A-Za-z0-9][A-Za-z0-9_-]{0,59}$/,
} as const;

export function readChecks({ checks }: { checks: unknown }): MetricCheck[] {
  return checks as MetricCheck[];
}

/** Empty until the command has succeeded. */
export function readCheckResults({ checkResults }: { checkResults: unknown }): CheckResult[] {
  return (checkResults ?? []) as CheckResult[];
}

/** As `createJob` takes it. */
export function toCheckRequest({ metric, min, max, regress }: MetricCheck): CheckRequest {
  const { percent = null, better = null, job = null } = regress ?? {};
  return { metric, min, max, regressPercent: percent, better, baselineJob: job };
}

/** @throws AppError 400 naming `checks` */
export function checkMetricChecks(
  requests: readonly CheckRequest[],
  { hasRepository }: { hasRepository: boolean },
): MetricCheck[] {
  const { maxEntries } = CHECK_RULES;
  if (requests.length > maxEntries)
    throw invalid('checks', `must not have more than ${maxEntries} entries`);
  return requests.map((request, index) => {
    const refuse = (problem: string) => invalid('checks', `[${index}]${problem}`);
    const { metric, min = null, max = null } = request;
    if (!isMetricName(metric))
      throw refuse(
        '.metric must be 1 to 100 letters, digits and _ . / -, and begin with a letter or _',
      );
    const regress = checkRegress(request, hasRepository, refuse);
    if (min === null && max === null && !regress)
      throw refuse(' must have a minimum, a maximum or a percentage (regress)');
    for (const [name, value] of Object.entries({ min, max }))
      if (value !== null && !Number.isFinite(value)) throw refuse(`.${name} must be a number`);
    if (min !== null && max !== null && min > max) throw refuse('.min must not be above its max');
    return { metric, min, max, regress };
  });
}

function checkRegress(
  { regressPercent: percent, better, baselineJob: job }: CheckRequest,
  hasRepository: boolean,
  refuse: (problem: string) => Error,
): MetricCheck['regress'] {
  if (percent == null) {
    if (better != null) throw refuse('.better can only be given with a percentage (regress)');
    if (job != null) throw refuse('.baselineJob can only be given with regressPercent');
    return null;
  }
  const { min, max } = CHECK_RULES.regressPercent;
  if (!(percent >= min && percent <= max))
    throw refuse(`.regressPercent must be from ${min} to ${max}`);
  if (!hasRepository) throw refuse('.regressPercent can only be given with repo');
  if (job == null || !CHECK_RULES.baselineJob.test(job))
    throw refuse('.baselineJob must be the name of a job in .loam/jobs.yml');
  return { percent, better: better ?? 'higher', job };
}

/** A job that has ended successfully, as far as its checks need it. */
type CheckedJob = {
  id: string;
  namespaceId: string;
  repositoryId: string | null;
  checks: unknown;
  matrixValues: unknown;
};

/**
 * Decides the checks of a job by the points of its successful attempt, which must all be stored.
 * @param attempt its number: points of earlier attempts do not count
 */
export async function decideChecks(
  { pool }: { pool: pg.Pool },
  job: CheckedJob,
  attempt: number,
): Promise<CheckResult[]> {
  const checks = readChecks(job);
  if (checks.length === 0) return [];
  const names = [...new Set(checks.map(({ metric }) => metric))];
  const metrics = await readMetrics(pool, job.id, names);
  const printed = new Map(
    metrics.flatMap(({ name, last, lastAttempt }) =>
      lastAttempt === attempt ? [[name, last] as const] : [],
    ),
  );
  const results: CheckResult[] = [];
  for (const check of checks) {
    const baseline = check.regress && (await findBaseline({ pool }, job, check, check.regress));
    results.push(decideCheck(check, printed.get(check.metric), baseline));
  }
  return results;
}

/** Pure, for tests. @param value undefined if the attempt has not printed the metric */
export function decideCheck(
  { metric, min, max, regress }: MetricCheck,
  value: number | undefined,
  baseline: Baseline | null,
): CheckResult {
  const bounds = [
    min !== null && { isMet: (value ?? Number.NaN) >= min, text: `at least ${min}` },
    max !== null && { isMet: (value ?? Number.NaN) <= max, text: `at most ${max}` },
    regress && baseline && boundOf(regress, baseline, value ?? Number.NaN),
  ].filter((bound) => bound !== null && bound !== false);
  const isNumber = value !== undefined && !Number.isNaN(value);
  const missed = bounds.filter(({ isMet }) => !isMet);
  const passed = isNumber && missed.length === 0;
  const result = { passed, value: value === undefined ? null : String(value), baseline };
  if (!isNumber) {
    const required = bounds.map(({ text }) => text).join(' and ') || 'a number';
    const what = value === undefined ? 'was not printed' : 'is not a number';
    return { ...result, message: `${metric} ${what}, and ${required} is required` };
  }
  if (!passed) {
    const required = missed.map(({ text }) => text).join(' and ');
    return { ...result, message: `${metric} is ${value}, and ${required} is required` };
  }
  const met = bounds.map(({ text }) => text);
  if (regress && !baseline)
    met.push(
      `nothing to compare with: ${regress.job} has not succeeded on the default branch with this metric yet`,
    );
  return { ...result, message: `${metric} is ${value}: ${met.join(', ')}` };
}

function boundOf(
  { percent, better }: NonNullable<MetricCheck['regress']>,
  { job, commitSha, value: base }: Baseline,
  value: number,
): { isMet: boolean; text: string } {
  const tolerance = (Math.abs(base) * percent) / 100;
  const isHigher = better === 'higher';
  // Without the rounding error of the multiplication: a value of 0.5346 passes, and not only one of 0.5346000000000001.
  const rounded = Number((isHigher ? base - tolerance : base + tolerance).toPrecision(15));
  const bound = isHigher ? Math.min(base, rounded) : Math.max(base, rounded);
  const distance = percent === 0 ? '' : `${percent}% ${isHigher ? 'below' : 'above'} `;
  const origin = `${distance}the ${base} of ${job}, ${commitSha.slice(0, 10)}`;
  return isHigher
    ? { isMet: value >= bound, text: `at least ${bound} (${origin})` }
    : { isMet: value <= bound, text: `at most ${bound} (${origin})` };
}

/** The baseline is searched in at most so many runs of the default branch, and in so many successful jobs of these runs. */
const MAX_RUNS = 1_000;
const MAX_SUCCESSES = 10;

/**
 * The last success of a job of the file on the default branch, with the same values of the matrix, that has a number for the metric.
 * Runs of schedules with a file of their own do not count, because their author need not be allowed to push to the branch. For
 * the same reason, a rerun has the place of the run that its commit started.
 */
async function findBaseline(
  { pool }: { pool: pg.Pool },
  job: CheckedJob,
  { metric }: MetricCheck,
  { job: runJob }: NonNullable<MetricCheck['regress']>,
): Promise<Baseline | null> {
  const values: MatrixValue[] = readMatrixValues(job);
  const { rows } = await pool.query<{ id: string; name: string; sha: string; attempt: number }>({
    name: 'loam-check-baseline',
    text: `
      select j.id, j.name, j.commit_sha as sha,
        (select max(a.number) from job_attempts a where a.job_id = j.id) as attempt
      from (
        select runs.id, number, case when rerun_of_id is null then number else (
          select max(o.number) from runs o where o.repository_id = $1 and o.sha = runs.sha
            and o.ref = runs.ref and o.rerun_of_id is null
        ) end as place
        from runs join repositories r on r.id = repository_id
        where repository_id = $1 and ref = '${REF_PREFIX.branch}' || r.default_branch and file is null
        order by number desc limit ${MAX_RUNS}
      ) run join jobs j on j.run_id = run.id
      where j.run_job = $2 and j.status = 'succeeded' and j.namespace_id = $3 and j.id <> $4
        and coalesce(j.matrix_values, '[]') @> $5::jsonb
        and coalesce(j.matrix_values, '[]') <@ $5::jsonb
      order by run.place desc nulls last, run.number desc limit ${MAX_SUCCESSES}`,
    values: [job.repositoryId, runJob, job.namespaceId, job.id, JSON.stringify(values)],
  });
  for (const { id, name, sha, attempt } of rows) {
    const [found] = await readMetrics(pool, id, [metric]);
    // Only points of the attempt that succeeded count, as for the checked job.
    if (found && found.lastAttempt === attempt && Number.isFinite(found.last))
      return { job: name, commitSha: sha, value: found.last };
  }
  return null;
}

/** Why a job fails by its checks; null if all have passed. */
export function describeFailedChecks(results: readonly CheckResult[]): string | null {
  const failed = results.flatMap(({ passed, message }) => (passed ? [] : message));
  return failed.length === 0 ? null : failed.join('; ');
}
