/** Formats numbers, times and names for people. */
import { startData } from '../start.ts';

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];

export function formatBytes(bytes: number): string {
  let unit = 0;
  while (bytes >= 1_024 && unit < UNITS.length - 1) {
    bytes /= 1_024;
    unit++;
  }
  return `${unit === 0 || bytes >= 100 ? Math.round(bytes) : bytes.toFixed(1)} ${UNITS[unit]}`;
}

/** 3 h 05 min, 2 min 09 s, 12 s. */
export function formatDuration(seconds: number): string {
  const total = Math.round(seconds);
  const two = (value: number) => String(value).padStart(2, '0');
  if (total >= 86_400)
    return `${Math.floor(total / 86_400)} d ${Math.floor((total % 86_400) / 3_600)} h`;
  if (total >= 3_600)
    return `${Math.floor(total / 3_600)} h ${two(Math.floor((total % 3_600) / 60))} min`;
  if (total >= 60) return `${Math.floor(total / 60)} min ${two(total % 60)} s`;
  return `${total} s`;
}

const whole = new Intl.NumberFormat('en');

export function formatCount(value: number, one: string, many = `${one}s`): string {
  return `${whole.format(value)} ${value === 1 ? one : many}`;
}

/**
 * A price. The contract has it as text, so that no cent is lost; what is shown is rounded, below a dollar to a hundredth
 * of a cent.
 */
export function formatMoney(amount: string | number): string {
  const value = Number(amount);
  const digits = value !== 0 && Math.abs(value) < 1 ? 4 : 2;
  const shown = value.toFixed(digits).replace(/(\.\d\d\d*?)0+$/, '$1');
  const { currency } = startData;
  const sign = CURRENCY_SIGNS[currency];
  return sign ? `${sign}${shown}` : `${shown} ${currency}`;
}

const CURRENCY_SIGNS: Readonly<Record<string, string>> = { USD: '$', EUR: '€', GBP: '£' };

/** The first line of a commit message. */
export function commitSubject(message: string): string {
  return message.split('\n', 1)[0] || '(no message)';
}

export function shortSha(sha: string): string {
  return sha.slice(0, 7);
}

/** The values of a combination of a matrix: `seed=1 lr=0.1`. */
export function describeValues(values: readonly { key: string; value: string }[]): string {
  return values.map(({ key, value }) => `${key}=${value}`).join(' ');
}

/** Formats an enum value of the schema: `TIMED_OUT` becomes `timed out`. */
export function formatEnum(value: string): string {
  return value.toLowerCase().replaceAll('_', ' ');
}
