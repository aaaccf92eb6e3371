/**
 * Times as PostgreSQL sends them, and as answers have them. What pg and JavaScript have for both took a tenth of the CPU of a list.
 */
import pg from 'pg';

const { TIMESTAMPTZ } = pg.types.builtins;
const readAny = pg.types.getTypeParser(TIMESTAMPTZ) as (text: string) => Date;

/** For all statements of this process that Prisma does not make. */
export function readTimesPlainly(): void {
  pg.types.setTypeParser(TIMESTAMPTZ, readTime);
}

/** In UTC and in years of four digits, as nearly all are, `2026-11-23 05:11:52.403+00`; else as pg does. */
export function readTime(text: string): Date {
  if (!text.endsWith('+00') || text[4] !== '-' || text[10] !== ' ') return readAny(text);
  const time = new Date(`${text.slice(0, 10)}T${text.slice(11, -3)}Z`);
  return Number.isNaN(time.getTime()) ? readAny(text) : time;
}

const DAY_MS = 86_400_000;
/** The first millisecond after the years of four digits. */
const END_MS = Date.UTC(10_000, 0);
/** `2026-11-23T`, by the number of days since 1970: the times of a page are of few days. */
const days = new Map<number, string>();
const MAX_DAYS = 1_000;
const [TWO, THREE] = [numerals(2), numerals(3)];

/** A time in microseconds, which JavaScript's dates do not have. */
export class Moment extends Date {
  /** Since the epoch. */
  readonly micros: number;

  constructor(micros: number) {
    super(Math.floor(micros / 1_000));
    this.micros = micros;
  }

  override toISOString(): string {
    return `${super.toISOString().slice(0, -1)}${THREE[this.micros - this.getTime() * 1_000]}Z`;
  }
}

/** Since the epoch. */
export function microsOf(time: Date): number {
  return time instanceof Moment ? time.micros : time.getTime() * 1_000;
}

/** The last microsecond that is written like this one without its microseconds. */
export function endOfMillisecond(time: Date): Moment {
  return new Moment(time.getTime() * 1_000 + 999);
}

const ISO_8601 = /^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(?::\d{2}(?:\.(\d{1,9}))?)?(?:Z|[+-]\d{2}:?\d{2})$/;

/**
 * ISO 8601 with an offset; null for anything else. In a query `+` stands for a space, so one before the offset is taken for it.
 * What is below a microsecond is cut off.
 */
export function parseTime(text: string): Date | null {
  const whole = text.replace(/ (\d{2}:?\d{2})$/, '+$1');
  const match = ISO_8601.exec(whole);
  const time = new Date(whole);
  if (!match || Number.isNaN(time.getTime()) || !isDay(whole.slice(0, 10))) return null;
  const micros = Number(match[1]?.slice(3, 6).padEnd(3, '0') ?? 0);
  return micros === 0 ? time : new Moment(time.getTime() * 1_000 + micros);
}

/** Whether the date is in the calendar: `Date` takes February 30 for March 2. */
export function isDay(day: string): boolean {
  return new Date(`${day}T00:00Z`).toISOString().startsWith(day);
}

/**
 * ISO 8601 in UTC with milliseconds, to the letter as `toISOString` makes it, or with the microseconds of a moment.
 * @throws RangeError for what is no time
 */
export function writeTime(time: Date): string {
  const ms = time.getTime();
  if (!(ms >= 0 && ms < END_MS)) return time.toISOString();
  const number = Math.floor(ms / DAY_MS);
  let day = days.get(number);
  if (day === undefined) {
    if (days.size >= MAX_DAYS) days.clear();
    day = time.toISOString().slice(0, 11);
    days.set(number, day);
  }
  const rest = ms - number * DAY_MS;
  const [hour, minute] = [Math.floor(rest / 3_600_000), Math.floor(rest / 60_000) % 60];
  const second = Math.floor(rest / 1_000) % 60;
  const micros = time instanceof Moment ? THREE[time.micros - ms * 1_000] : '';
  return `${day}${TWO[hour]}:${TWO[minute]}:${TWO[second]}.${THREE[rest % 1_000]}${micros}Z`;
}

function numerals(width: number): readonly string[] {
  return Array.from({ length: 10 ** width }, (_, number) => String(number).padStart(width, '0'));
}
