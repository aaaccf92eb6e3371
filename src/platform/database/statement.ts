/** Hand-written statements: in a transaction of Prisma's or of a connection, or each by itself on the pool. */
import type pg from 'pg';
import type { Prisma } from '../../../prisma/generated/client.ts';

/** What one statement with its values can be given to. */
export type Runs = { query(query: pg.QueryConfig): Promise<{ rows: unknown[] }> };
export type Transaction = Prisma.TransactionClient | Runs;

/**
 * Names under which PostgreSQL keeps statements for the life of a connection. Undefined for those beyond `most`: they are
 * planned at each request.
 */
export function statementNames(prefix: string, most: number): (text: string) => string | undefined {
  const names = new Map<string, string>();
  return (text) => {
    const known = names.get(text);
    if (known !== undefined || names.size >= most) return known;
    const name = `${prefix}${names.size}`;
    names.set(text, name);
    return name;
  };
}

/** Of texts that stand in this program. What clients select has names of its own (`rows.ts`), so that it takes none of these. */
const nameOf = statementNames('loam-tx-', 200);

/**
 * @returns the rows as the driver gives them: Prisma gives large numbers as `bigint` and exact ones as `Decimal`, a
 * connection both as text
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
 * Runs the statements of `work` on a pipelined connection, each without waiting for the answer to the one before. If one
 * fails, PostgreSQL ignores those after it, so nothing is committed. `work` receives no rows.
 * @throws the error of the first statement that failed
 */
export async function pipeline<T>(
  client: pg.PoolClient,
  work: (tx: Runs) => Promise<T>,
): Promise<T> {
  const sent: Promise<unknown>[] = [];
  const asked = work({
    async query(query) {
      sent.push(client.query(query));
      return { rows: [] };
    },
  });
  const [done] = await Promise.allSettled([asked]);
  for (const end of [...(await Promise.allSettled(sent)), done])
    if (end.status === 'rejected') throw end.reason;
  return asked;
}

/** Begins a transaction in the round trip of its first statement. `begin`: with what is set for it. */
export async function beginPipeline<R extends object>(
  client: pg.PoolClient,
  text: string,
  values: readonly unknown[],
  begin = 'begin',
): Promise<R[]> {
  const [, rows] = await Promise.all([client.query(begin), runStatement<R>(client, text, values)]);
  return rows;
}

/** A statement out of several parts, each `name as (…)`, and the values of its parameters. */
export type Parts = {
  parts: string[];
  values: unknown[];
  /** @returns how the statement calls the value. `type`: where that does not follow from its place. */
  parameter(value: unknown, type?: string): string;
};

export function openParts(): Parts {
  const values: unknown[] = [];
  const parameter = (value: unknown, type?: string) => {
    const name = `$${values.push(value)}`;
    return type ? `${name}::${type}` : name;
  };
  return { parts: [], values, parameter };
}
