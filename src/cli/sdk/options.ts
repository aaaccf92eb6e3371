/** Options at run time: TypeScript does not check those of JavaScript, and no objects that come from elsewhere. */
import { LoamError } from './errors.ts';

/** The names of all options of a type. */
export type OptionNames<T> = { [K in keyof T]-?: true };

export const RETRY_OPTIONS = { signal: true, onRetry: true, onRecovered: true } as const;

/**
 * @param parent the option that has these options, such as `array`
 * @throws LoamError `invalid_request` for an option that does not exist, with the most similar one that does
 */
export function checkOptions<T extends object>(
  options: T,
  names: OptionNames<T>,
  parent?: string,
): void {
  for (const given of Object.keys(options)) {
    if (Object.hasOwn(names, given)) continue;
    const place = parent === undefined ? '' : `${parent}.`;
    throw new LoamError(
      'invalid_request',
      `${place}${given}: there is no such option. Did you mean ${place}${mostSimilar(given, Object.keys(names))}?`,
      { status: 400, field: `${place}${given}` },
    );
  }
}

function mostSimilar(name: string, known: readonly string[]): string {
  const simple = (text: string) => text.toLowerCase().replaceAll(/[_-]/g, '');
  const distances = known.map((one) => ({ one, distance: distance(simple(name), simple(one)) }));
  return distances.toSorted((a, b) => a.distance - b.distance)[0]?.one ?? '';
}

/** The number of characters to insert, delete or replace (Levenshtein). */
function distance(from: string, to: string): number {
  let row = Array.from({ length: to.length + 1 }, (_, i) => i);
  for (const [i, character] of [...from.slice(0, 100)].entries()) {
    const next = [i + 1];
    for (let j = 1; j <= to.length; j++) {
      const replaced = (row[j - 1] ?? 0) + (character === to[j - 1] ? 0 : 1);
      next.push(Math.min(replaced, (row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1));
    }
    row = next;
  }
  return row.at(-1) ?? 0;
}
