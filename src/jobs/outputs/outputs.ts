/**
 * Outputs of jobs: lines `NAME=value` that a job writes to the file `$JOB_OUTPUTS` become environment variables of the jobs that
 * need it. They are only set as variables, never put into a command.
 */
import type pg from 'pg';

export type Output = { name: string; value: string };

export const OUTPUT_RULES = {
  name: /^[A-Za-z_][A-Za-z0-9_]{0,99}$/,
  maxEntries: 100,
  /** Of the file, and of all outputs that a job gets from others. */
  maxBytes: 64 * 1024,
} as const;

/** Variables that belong to Loam, the machine, the shell or the dynamic linker. */
const RESERVED =
  /^(?:PATH|HOME|TMPDIR|USER|LOGNAME|SHELL|IFS|ENV|BASH_ENV|PS4|CI|GPU_COUNT|CPU_CORES|MEMORY_GB|CUDA_VISIBLE_DEVICES|(?:LD|LOAM|JOB|NVIDIA)_.*)$/i;

/** Lines of the log about mistakes in one file. */
const MAX_PROBLEMS = 5;

/** `problems`: lines for the log. */
export type ReadOutputs = { outputs: Output[]; problems: string[] };

export function readStoredOutputs({ outputs }: { outputs: unknown }): Output[] {
  return (outputs ?? []) as Output[];
}

export function measureOutputs(outputs: readonly Output[]): number {
  return outputs.reduce((sum, { name, value }) => sum + name.length + Buffer.byteLength(value), 0);
}

/** @param file its bytes; `unreadable`: it is too large, or no ordinary file; null: there is none */
export function toOutputs(
  file: Uint8Array | 'unreadable' | null,
  mask: (text: string) => string,
): ReadOutputs {
  if (file === null) return { outputs: [], problems: [] };
  if (file !== 'unreadable') return parseOutputs(file, mask);
  const problem = `it is larger than ${OUTPUT_RULES.maxBytes / 1024} KiB, or no ordinary file`;
  return { outputs: [], problems: [describe(problem)] };
}

/** The last line with a name counts. Values are all that follows the first `=`, quotes included. */
export function parseOutputs(bytes: Uint8Array, mask: (text: string) => string): ReadOutputs {
  const { name: pattern, maxEntries } = OUTPUT_RULES;
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    return { outputs: [], problems: [describe('it is not valid UTF-8')] };
  }
  const values = new Map<string, string>();
  const problems: string[] = [];
  for (const [index, line] of text.split(/\r?\n/).entries()) {
    if (line === '') continue;
    const at = line.indexOf('=');
    const name = line.slice(0, Math.max(at, 0));
    const refuse = (problem: string) => problems.push(describe(`line ${index + 1} ${problem}`));
    if (at < 0 || !pattern.test(name)) refuse('is not NAME=value');
    // A name that is a secret could not be shown.
    else if (RESERVED.test(name) || mask(name) !== name)
      refuse(`sets ${mask(name)}, which is reserved`);
    else if (line.includes('\0')) refuse('has a NUL character');
    else if (values.size === maxEntries && !values.has(name))
      refuse(`is one of more than ${maxEntries} names`);
    else {
      values.delete(name);
      values.set(name, mask(line.slice(at + 1)));
    }
  }
  const others = problems.length - MAX_PROBLEMS;
  return {
    outputs: [...values].map(([name, value]) => ({ name, value })),
    problems: [
      ...problems.slice(0, MAX_PROBLEMS),
      ...(others > 0 ? [describe(`${others} more lines have mistakes`)] : []),
    ],
  };
}

function describe(problem: string): string {
  return `An output was not kept: ${problem} ($JOB_OUTPUTS).`;
}

/**
 * The variables that a job gets from jobs that it needs. Those of a later job replace those of an earlier one.
 * @param job.outputsOf ids of jobs, in the order of the needs
 * @returns the reason if the job cannot start with them
 */
export async function readNeededOutputs(
  { pool }: { pool: pg.Pool },
  { outputsOf }: { outputsOf: readonly string[] },
): Promise<{ env: Record<string, string> } | { problem: string }> {
  if (outputsOf.length === 0) return { env: {} };
  const { rows } = await pool.query<{ outputs: Output[] }>({
    name: 'loam-needed-outputs',
    text: `
      select outputs from unnest($1::text[]) with ordinality as needed (id, place) join jobs using (id)
      where outputs is not null order by place`,
    values: [outputsOf],
  });
  const values = new Map<string, string>();
  for (const { outputs } of rows) for (const { name, value } of outputs) values.set(name, value);
  const { maxBytes } = OUTPUT_RULES;
  const all = Array.from(values, ([name, value]) => ({ name, value }));
  if (measureOutputs(all) > maxBytes)
    return {
      problem: `The outputs of the jobs that it needs have more than ${maxBytes / 1024} KiB together`,
    };
  // Not by assignment, which would lose the name `__proto__`.
  return { env: Object.fromEntries(values) };
}
