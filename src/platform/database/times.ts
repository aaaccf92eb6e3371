/** Times with microseconds, which lines of logs have, and reading of times that clients send. */

/** A time in microseconds, which JavaScript's dates do not have. */
export class Moment extends Date {
  /** Since the epoch. */
  readonly micros: number;

  constructor(micros: number) {
    super(Math.floor(micros / 1_000));
    this.micros = micros;
  }

  override toISOString(): string {
    const below = String(this.micros - this.getTime() * 1_000).padStart(3, '0');
    return `${super.toISOString().slice(0, -1)}${below}Z`;
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
