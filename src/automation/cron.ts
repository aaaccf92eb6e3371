/**
 * Cron expressions with five fields, as in crontab(5), in a time zone. Daylight saving: a time that does not exist runs
 * at the first time after the gap, and a time that occurs twice runs once, except for expressions that run at intervals.
 */
import { Cron } from 'croner';

/** Runs of one schedule are at least this far apart. */
const MIN_INTERVAL_MS = 5 * 60_000;
/** Enough to see all minutes of an hour at this distance, and the step from one hour to the next. */
const CHECKED_RUNS = 64;
/** The hours of a day, and the step to the next day. */
const CHECKED_MS = 25 * 60 * 60_000;
const MAX_EXPRESSION = 100;
const MAX_TIMEZONE = 64;
export const DEFAULT_TIMEZONE = 'UTC';

export type CronTime = { cron: string; timezone: string };

/** Returns why the expression is refused, or null. */
export function cronProblem({
  cron,
  timezone,
}: CronTime): { field: keyof CronTime; message: string } | null {
  if (timezone.length > MAX_TIMEZONE || !isTimezone(timezone))
    return { field: 'timezone', message: 'must be a time zone such as Europe/Berlin' };
  const problem = (message: string) => ({ field: 'cron', message }) as const;
  if (cron.length > MAX_EXPRESSION)
    return problem(`must have at most ${MAX_EXPRESSION} characters`);
  // Croner requires both days to match then, and may search years for each time.
  if (cron.includes('+')) return problem('must not have "+"');
  try {
    if (!parse({ cron, timezone }).nextRun()) return problem('never runs');
  } catch (error) {
    const { message } = error as Error;
    return problem(
      `is not a cron expression of five fields: ${message.replace(/^CronPattern: /, '')}`,
    );
  }
  return runsTooOften(cron) ? problem('must not run more often than every 5 minutes') : null;
}

/** Looks at the minutes and hours alone, because the search for rare days takes long. */
function runsTooOften(cron: string): boolean {
  const [minutes, hours] = cron.trim().split(/\s+/);
  if (minutes === undefined || hours === undefined) return false; // A word such as `@daily`.
  const daily = parse({ cron: `${minutes} ${hours} * * *`, timezone: 'UTC' });
  let before = daily.nextRun();
  const end = (before?.getTime() ?? 0) + CHECKED_MS;
  for (let i = 0; before && before.getTime() < end && i < CHECKED_RUNS; i++) {
    const next = daily.nextRun(before);
    if (next && next.getTime() - before.getTime() < MIN_INTERVAL_MS) return true;
    before = next;
  }
  return false;
}

/** The next times after `after`, of a valid expression; null if there is none. */
export function nextTime(time: CronTime, after: Date): Date | null {
  return parse(time).nextRun(after);
}

export function nextTimes(time: CronTime, count: number, after: Date): Date[] {
  return parse(time).nextRuns(count, after);
}

function parse({ cron, timezone }: CronTime): Cron {
  return new Cron(cron, { mode: '5-part', timezone, paused: true });
}

function isTimezone(timeZone: string): boolean {
  try {
    new Intl.DateTimeFormat('en', { timeZone });
    return !/^[+-]/.test(timeZone);
  } catch {
    return false;
  }
}
