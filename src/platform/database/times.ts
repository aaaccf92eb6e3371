/** Times with microseconds, for log lines, and the parsing of times from clients. */

/** A date with microseconds; JavaScript's dates have milliseconds. */
export class MicrosecondDate extends Date {
  /** Microseconds since the epoch. */
  readonly micros: number;

  constructor(micros: number) {
    super(Math.floor(micros / 1_000));
    this.micros = micros;
  }

  override toISOString(): string {
    const microDigits = String(this.micros - this.getTime() * 1_000).padStart(3, '0');
    return `${super.toISOString().slice(0, -1)}${microDigits}Z`;
  }
}

/** Microseconds since the epoch. */
export function toMicroseconds(time: Date): number {
  return time instanceof MicrosecondDate ? time.micros : time.getTime() * 1_000;
}

/** The last microsecond of the millisecond in which `time` lies. */
export function endOfMillisecond(time: Date): MicrosecondDate {
  return new MicrosecondDate(time.getTime() * 1_000 + 999);
}

const ISO_8601 = /^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(?::\d{2}(?:\.(\d{1,9}))?)?(?:Z|[+-]\d{2}:?\d{2})$/;

/**
 * Parses ISO 8601 with an offset; returns null for any other text. In a query string `+` means a space, so a space before
 * the offset is read as `+`. Digits below a microsecond are dropped.
 */
export function parseTime(text: string): Date | null {
  const whole = text.replace(/ (\d{2}:?\d{2})$/, '+$1');
  const match = ISO_8601.exec(whole);
  const time = new Date(whole);
  if (!match || Number.isNaN(time.getTime()) || !isDay(whole.slice(0, 10))) return null;
  const micros = Number(match[1]?.slice(3, 6).padEnd(3, '0') ?? 0);
  return micros === 0 ? time : new MicrosecondDate(time.getTime() * 1_000 + micros);
}

/** Whether the date exists. `Date` alone accepts February 30, as March 2. */
export function isDay(day: string): boolean {
  return new Date(`${day}T00:00Z`).toISOString().startsWith(day);
}
