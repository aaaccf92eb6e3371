/** Runs hand-written SQL: in a transaction of Prisma or of a connection, or as a single statement on the pool. */
import type pg from 'pg';
import type { Prisma } from '../../../prisma/generated/client.ts';

/** Runs one statement: a pool, a connection or a pipeline. */
export type Queryable = { query(query: pg.QueryConfig): Promise<{ rows: unknown[] }> };
export type Transaction = Prisma.TransactionClient | Queryable;

/**
 * Returns a function that names statements. PostgreSQL keeps a named statement prepared for the life of a connection. After
 * `maxNames` names, further statements get undefined and are planned for each execution.
 */
export function createStatementNamer(
  prefix: string,
  maxNames: number,
): (text: string) => string | undefined {
  const names = new Map<string, string>();
  return (text) => {
    const existing = names.get(text);
    if (existing !== undefined || names.size >= maxNames) return existing;
    const name = `${prefix}${names.size}`;
    names.set(text, name);
    return name;
  };
}

/** For statements with a fixed text. Statements whose columns a client selects have names of their own (`rows.ts`). */
const nameOf = createStatementNamer('loam-tx-', 200);

/**
 * @returns the rows as the driver returns them: Prisma returns bigint columns as `bigint` and numeric columns as `Decimal`,
 *   and `pg` returns both as text
 */
export async function runStatement<R extends object>(
  tx: Transaction,
  text: string,
  values: readonly unknown[],
): Promise<R[]> {
  if ('$queryRawUnsafe' in tx) return tx.$queryRawUnsafe<R[]>(text, ...values);
  const { rows } = await tx.query({ name: nameOf(text), text, values: [...values] });
  return rows as R[];
}

/**
 * Sends the statements of `work` without waiting for each result. If a statement fails, PostgreSQL skips the statements after
 * it, so nothing is committed. `work` receives no rows.
 * @throws the error of the first statement that failed
 */
export async function pipeline<T>(
  client: pg.PoolClient,
  work: (tx: Queryable) => Promise<T>,
): Promise<T> {
  const sent: Promise<unknown>[] = [];
  const working = work({
    async query(query) {
      sent.push(client.query(query));
      return { rows: [] };
    },
  });
  const [result] = await Promise.allSettled([working]);
  for (const outcome of [...(await Promise.allSettled(sent)), result])
    if (outcome.status === 'rejected') throw outcome.reason;
  return working;
}

/** Begins a transaction in the same round trip as its first statement. `begin` may include settings. */
export async function beginPipeline<R extends object>(
  client: pg.PoolClient,
  text: string,
  values: readonly unknown[],
  begin = 'begin',
): Promise<R[]> {
  const [, rows] = await Promise.all([client.query(begin), runStatement<R>(client, text, values)]);
  return rows;
}

/** The common table expressions (`name as (…)`) from which a statement is built, and the values of its parameters. */
export type StatementParts = {
  parts: string[];
  values: unknown[];
  /** Adds a value and returns its placeholder. `type` is needed where PostgreSQL cannot infer the type. */
  parameter(value: unknown, type?: string): string;
};

export function createStatementParts(): StatementParts {
  const values: unknown[] = [];
  const parameter = (value: unknown, type?: string) => {
    const name = `$${values.push(value)}`;
    return type ? `${name}::${type}` : name;
  };
  return { parts: [], values, parameter };
}
