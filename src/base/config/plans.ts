/** Rate limits and quotas of each plan, in one table. */
import type { Plan } from '../../../prisma/generated/enums.ts';

type Limits = {
  /** Requests per minute and credential; shown in `X-RateLimit-Limit`. */
  perMinute: number;
  /** Requests per second and credential. */
  perSecond: number;
  repositories: number;
  /** Bytes of all repositories and artifacts of a namespace. */
  storageBytes: number;
  /** Queued and running jobs of a namespace. */
  activeJobs: number;
  webhooks: number;
  /** Bytes (UTF-8, with line ends) in the log of one job. */
  logBytes: number;
  /** Lines in the log of one job. */
  logLines: number;
  /** Points of metrics of one job. */
  metricPoints: number;
};
export type PlanLimits = Record<Plan, Limits>;

const GiB = 2 ** 30;
/** Larger than any real use, and small enough to be shown as an integer. */
export const UNLIMITED = 1_000_000;

const LARGEST_OUTPUT = { logBytes: 10 * GiB, logLines: 200_000_000, metricPoints: 10_000_000 };

export const PLAN_LIMITS: PlanLimits = {
  free: limits(60, 10, {
    repositories: 100,
    storageBytes: 10 * GiB,
    activeJobs: 20,
    webhooks: 10,
    logBytes: GiB / 4,
    logLines: 5_000_000,
    metricPoints: 1_000_000,
  }),
  team: limits(300, 30, {
    repositories: 1_000,
    storageBytes: 250 * GiB,
    activeJobs: 200,
    webhooks: 50,
    logBytes: GiB,
    logLines: 20_000_000,
    metricPoints: 2_000_000,
  }),
  enterprise: limits(1_000, 100, {
    repositories: 50_000,
    storageBytes: 10_240 * GiB,
    activeJobs: 5_000,
    webhooks: 500,
    ...LARGEST_OUTPUT,
  }),
  unlimited: limits(UNLIMITED, UNLIMITED, {
    repositories: UNLIMITED,
    storageBytes: Number.MAX_SAFE_INTEGER,
    activeJobs: UNLIMITED,
    webhooks: UNLIMITED,
    // Even this plan has a limit, because a job that prints in a loop would fill the operator's disk.
    ...LARGEST_OUTPUT,
  }),
};

function limits(
  perMinute: number,
  perSecond: number,
  quotas: Omit<Limits, 'perMinute' | 'perSecond'>,
): Limits {
  return { perMinute, perSecond, ...quotas };
}

/**
 * Returns the table with some limits replaced, such as `{"free": {"perMinute": 120}}`.
 * @throws Error that names the unknown plan or limit, or the invalid number
 */
export function overrideLimits(table: PlanLimits, overrides: unknown): PlanLimits {
  if (!isRecord(overrides)) throw new Error('must be a JSON object of plans');
  const result = structuredClone(table);
  for (const [plan, numbers] of Object.entries(overrides)) {
    const row = result[plan as Plan];
    if (!Object.hasOwn(result, plan))
      throw new Error(`has an unknown plan ${JSON.stringify(plan)}`);
    if (!isRecord(numbers)) throw new Error(`"${plan}" must be an object of limits`);
    for (const [name, value] of Object.entries(numbers)) {
      if (!Object.hasOwn(row, name))
        throw new Error(`"${plan}" has no limit ${JSON.stringify(name)}`);
      if (!Number.isSafeInteger(value) || (value as number) < 0)
        throw new Error(`"${plan}.${name}" must be a whole number`);
      row[name as keyof Limits] = value as number;
    }
  }
  return result;
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
