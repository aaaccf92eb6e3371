/** What names, values and refs of secrets and variables may be. */
import { invalid } from '../../base/errors.ts';
import { matchesPattern, validatePattern } from '../repositories.ts';

export const VALUE_RULES = {
  name: { maxLength: 100, pattern: /^[A-Za-z_][A-Za-z0-9_]*$/ },
  /** For the values of a job, each kind with their names, so that both fit into the environment of a process. */
  maxBytes: 64 * 1024,
  /** Secrets, and as many variables, of one owner. */
  maxEntries: 100,
  maxRefs: 20,
} as const;

/** Names that Loam sets, and names by which a value could replace the programs of a job. */
const RESERVED =
  /^(?:JOB_.*|LOAM_.*|LD_.*|PATH|HOME|TMPDIR|USER|SHELL|ENV|BASH_ENV|CI|GPU_COUNT|CPU_CORES|MEMORY_GB)$/i;

export function isValueName(text: string): boolean {
  const { maxLength, pattern } = VALUE_RULES.name;
  return text.length <= maxLength && pattern.test(text);
}

/** @throws AppError 400 naming `name` */
export function checkValueName(name: string): void {
  if (!isValueName(name))
    throw invalid(
      'name',
      `must be 1 to ${VALUE_RULES.name.maxLength} letters, digits and _, not starting with a digit`,
    );
  if (RESERVED.test(name))
    throw invalid(
      'name',
      `${name} is reserved: choose a name that does not begin with JOB_ or LOAM_, and is no variable of the system`,
    );
}

/** @throws AppError 400 naming `value`, without the value */
export function checkValue(name: string, value: string): void {
  if (value.includes('\0') || !value.isWellFormed())
    throw invalid('value', 'must be well-formed Unicode without NUL');
  const { maxBytes } = VALUE_RULES;
  if (name.length + Buffer.byteLength(value) > maxBytes)
    throw invalid('value', `must not be longer than ${maxBytes} bytes, together with the name`);
}

/** The pattern for every job of the owner, also without a branch. */
const ANY_JOB = '**';
const TAGS = 'tags/';

/** @returns the patterns without duplicates @throws AppError 400 naming `refs` */
export function checkRefs(refs: readonly string[]): string[] {
  const { maxRefs } = VALUE_RULES;
  if (refs.length > maxRefs) throw invalid('refs', `must have at most ${maxRefs} patterns`);
  for (const pattern of refs) {
    const problem = validatePattern(
      pattern.startsWith(TAGS) ? pattern.slice(TAGS.length) : pattern,
    );
    if (problem) throw invalid('refs', problem);
  }
  return [...new Set(refs)];
}

export function allowsAnyJob(refs: readonly string[]): boolean {
  return refs.includes(ANY_JOB);
}

/** Whether one of the patterns allows a branch. A pattern that begins with `tags/` is for tags, never for branches. */
export function allowsBranch(refs: readonly string[], branch: string): boolean {
  return refs.some((pattern) => !pattern.startsWith(TAGS) && matchesPattern(pattern, branch));
}

export function allowsTag(refs: readonly string[], tag: string): boolean {
  return refs.some(
    (pattern) => pattern.startsWith(TAGS) && matchesPattern(pattern.slice(TAGS.length), tag),
  );
}
