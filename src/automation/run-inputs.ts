/** Inputs of a run: values that users give when they start jobs by hand (`on: { manual: { inputs } }` in the file). */
import { invalid } from '../base/errors.ts';

export const INPUT_TYPES = ['string', 'integer', 'number', 'boolean', 'choice'] as const;

export type RunInput = {
  type: (typeof INPUT_TYPES)[number];
  description?: string | undefined;
  /** Unset: users must give a value. */
  default?: string | undefined;
  /** The values of a choice. */
  options?: string[] | undefined;
  min?: number | undefined;
  max?: number | undefined;
};

/** A job of the file, as far as it declares inputs. */
type Job = {
  on?:
    | { manual?: boolean | { inputs?: Record<string, RunInput> | undefined } | undefined }
    | undefined;
};
type Jobs = ReadonlyMap<string, Job>;

/** As stored with the run, in the order of the file. */
export type RunValue = { name: string; value: string };

/** Characters of a value. */
const MAX_VALUE = 65_536;

/** What is wrong with a value, to follow its name; null if it is valid. */
export function describeInputProblem(
  { type, options = [], min, max }: RunInput,
  value: string,
): string | null {
  if (type === 'string')
    return value.length > MAX_VALUE ? `must not have more than ${MAX_VALUE} characters` : null;
  if (type === 'boolean')
    return value === 'true' || value === 'false' ? null : 'must be true or false';
  if (type === 'choice')
    return options.includes(value) ? null : `must be one of ${options.join(', ')}`;
  const number = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(value) ? Number(value) : Number.NaN;
  if (type === 'integer' && !Number.isSafeInteger(number)) return 'must be a whole number';
  if (!Number.isFinite(number)) return 'must be a number';
  if (min !== undefined && number < min) return `must be at least ${min}`;
  return max !== undefined && number > max ? `must be at most ${max}` : null;
}

/** The inputs that the job declares, by name. */
export function inputsOf({ on }: Job): [string, RunInput][] {
  return typeof on?.manual === 'object' ? Object.entries(on.manual.inputs ?? {}) : [];
}

/** The inputs of the jobs, in the order of the file. Jobs that declare the same input declare it alike. */
export function listInputs(jobs: Jobs, names: readonly string[]): [string, RunInput][] {
  const inputs = new Map<string, RunInput>();
  for (const name of names)
    for (const [key, input] of inputsOf(jobs.get(name) ?? {})) inputs.set(key, input);
  return [...inputs];
}

/**
 * Checks the given values, and adds the defaults.
 * @param names the jobs of the run
 * @throws AppError 400 naming `inputs`
 */
export function resolveRunInputs(
  jobs: Jobs,
  names: readonly string[],
  given: readonly RunValue[],
): RunValue[] {
  const inputs = listInputs(jobs, names);
  const values = new Map<string, string>();
  for (const { name, value } of given) {
    const input = inputs.find(([key]) => key === name)?.[1];
    if (!input) throw invalid('inputs', describeUnknown(name, inputs));
    if (values.has(name)) throw invalid('inputs', `${name} is given twice`);
    const problem = describeInputProblem(input, value);
    if (problem) throw invalid('inputs', `${name} ${problem}`);
    values.set(name, value);
  }
  const missing = inputs.filter(
    ([name, input]) => !values.has(name) && input.default === undefined,
  );
  if (missing.length > 0)
    throw invalid('inputs', `${missing.map(([name]) => name).join(', ')} must be given`);
  return listValues(inputs, values);
}

/** The values of a run that no user starts. Inputs without a default have none. */
export function defaultRunInputs(jobs: Jobs, names: readonly string[]): RunValue[] {
  return listValues(listInputs(jobs, names), new Map());
}

function listValues(
  inputs: readonly [string, RunInput][],
  values: ReadonlyMap<string, string>,
): RunValue[] {
  return inputs.flatMap(([name, input]) => {
    const value = values.get(name) ?? input.default;
    return value === undefined ? [] : [{ name, value }];
  });
}

function describeUnknown(name: string, inputs: readonly [string, RunInput][]): string {
  const names = inputs.map(([key]) => key).join(', ');
  const shown = JSON.stringify(name.slice(0, 60));
  return names ? `must be ${names}; there is no ${shown}` : `the jobs have no inputs: ${shown}`;
}
