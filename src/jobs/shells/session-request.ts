/** What a client asks for in a running job: a shell, a command, or a connection to a port. */
import { z } from 'zod';
import { invalid } from '../../base/errors.ts';
import type { ExecSpec } from '../../runners/runner.ts';
import { connectSpec } from './ports.ts';

export type SessionRequest = { spec: ExecSpec; port?: number };

/** Those that SSH passes on, and TERM. */
const MAX_VARIABLES = 33;

/** Variables that clients may set in a job: those that SSH accepts (`api/ssh/front/connection.ts`), and TERM. */
const variable = z
  .string()
  .regex(/^(LANG|LC_\w{1,30}|COLORTERM|NO_COLOR|TERM)$/, 'this variable cannot be set');
const text = (length: number) =>
  z
    .string()
    .max(length)
    .regex(/^[^\0]*$/, 'contains NUL');
const length = z.int().min(1).max(1_000);
const execSpec = z.strictObject({
  command: text(60_000).min(1).nullable(),
  env: z
    .record(variable, text(200))
    .refine(
      (env) => Object.keys(env).length <= MAX_VARIABLES,
      `more than ${MAX_VARIABLES} variables`,
    ),
  terminal: z.strictObject({ columns: length, rows: length }).nullable(),
});

/** Of a connection to a port of the job; the first byte of the output then shows that it exists (`ports.ts`). */
const portSpec = z.strictObject({ port: z.int().min(1).max(65_535) });

/** @throws AppError 400 */
export function parseSessionRequest(value: unknown): SessionRequest {
  if (typeof value === 'object' && value !== null && 'port' in value) {
    const { port } = parse(portSpec, value);
    return { spec: connectSpec(port), port };
  }
  return { spec: parse(execSpec, value) };
}

/** @throws AppError 400 */
function parse<T>(schema: z.ZodType<T>, value: unknown): T {
  const { data, error } = schema.safeParse(value);
  if (error === undefined) return data;
  const [issue] = error.issues;
  throw invalid(issue?.path.join('.') || null, issue?.message ?? 'is not valid');
}
