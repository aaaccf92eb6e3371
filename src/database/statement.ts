/** Hand-written statements in a transaction, be it Prisma's or a connection's own. */
import type pg from 'pg';
import type { Prisma } from '../../prisma/generated/client.ts';

export type Transaction = Prisma.TransactionClient | pg.PoolClient;

/** Prepared statements are kept for the life of a connection; beyond this many texts they are not named. */
const MAX_NAMES = 200;
const names = new Map<string, string>();

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
  const { rows } = await tx.query<R>({ name: nameOf(text), text, values: [...values] });
  return rows;
}

function nameOf(text: string): string | undefined {
  const known = names.get(text);
  if (known !== undefined || names.size >= MAX_NAMES) return known;
  const name = `loam-tx-${names.size}`;
  names.set(text, name);
  return name;
}
