/**
 * Rows in the form of a Prisma `select`, read by one prepared statement through pg.
 *
 * What requests ask for most goes through here: of the CPU of a REST read of one row, Prisma's client took a quarter. It
 * knows columns, relations to one row, and what a model describes by hand. Whatever else a `select` has, Prisma reads:
 * `statement` then says null.
 */
import { isDeepStrictEqual } from 'node:util';
import type pg from 'pg';
import { Prisma } from '../../prisma/generated/client.ts';
import { getDatamodel } from '../../prisma/generated/pothos.ts';
import { columnOf } from './keyset.ts';

/** How a model is read. In SQL its rows are called `r`, and those of a relation as `alias` says. */
export type RowSource = {
  model: Prisma.ModelName;
  /** Behind `from`: the table with what is joined to it. */
  from: string;
  /** Relations to one row. Of one that may be absent, the `id` shows whether it is there. */
  relations?: Record<
    string,
    { model: Prisma.ModelName; alias: string; optional?: boolean } & Handmade
  >;
} & Handmade;

/** Fields that are no columns: a `select` of just this form is read by this SQL. */
type Handmade = { handmade?: Record<string, { select: object; sql: string; read?: Read }> };

export type RowStatement<Row = object> = {
  /** The rows, in the statement's order. */
  read(pool: pg.Pool, values: unknown[]): Promise<Row[]>;
};

type Read = (value: never) => unknown;
/** `at`: where the value goes in the row, for example `['namespace', 'name']`. */
type Column = { at: readonly [string] | readonly [string, string]; sql: string; read?: Read };

export type Rows = {
  /**
   * @param columns further columns, always the same
   * @param ending SQL behind `from`; it is not made of what users give, because each text is prepared and kept
   * @returns null when Prisma must read this `select`
   */
  statement(select: object, columns: object, ending: string): RowStatement | null;
};

/** A server sees few forms of `select`; clients that make up ever new ones get statements without a name. */
const MAX_STATEMENTS = 300;

export function rowsOf(source: RowSource): Rows {
  const known = new Map<string, RowStatement | null>();
  /** A stored operation has its `select` once, and then no text has to be made to find the statement. */
  const bySelect = new WeakMap<object, Map<string, RowStatement | null>>();

  function find(select: object, columns: object, ending: string) {
    const key = `${JSON.stringify(select)} ${ending}`;
    const found = known.get(key);
    if (found !== undefined) return found;
    const isKept = known.size < MAX_STATEMENTS;
    const name = isKept ? `${source.model}.${known.size}` : undefined;
    const whole = { ...columns, ...select };
    const read = columnsOf(source, whole);
    const statement = read && prepare(name, source, { select: whole, columns: read }, ending);
    if (isKept) known.set(key, statement);
    return statement;
  }

  return {
    statement(select, columns, ending) {
      const endings = bySelect.get(select) ?? new Map<string, RowStatement | null>();
      const found = endings.get(ending);
      if (found !== undefined) return found;
      const statement = find(select, columns, ending);
      bySelect.set(select, endings.set(ending, statement));
      return statement;
    },
  };
}

function prepare(
  name: string | undefined,
  { from, relations = {} }: RowSource,
  { select, columns }: { select: object; columns: readonly Column[] },
  ending: string,
): RowStatement {
  const text = `select ${columns.map(({ sql }) => sql).join(', ')} from ${from} ${ending}`;
  const optional = Object.keys(relations).filter((field) => relations[field]?.optional);
  return {
    async read(pool, values) {
      const { rows } = await pool.query<unknown[]>({ name, text, values, rowMode: 'array' });
      return rows.map((row) => toRow(select, columns, row, optional));
    },
  };
}

/** Where a row says with which `select` it was read, so that nobody asks for what it has. */
export const SELECTED: unique symbol = Symbol('select');

type Row = Record<string | symbol, unknown>;

function toRow(
  select: object,
  columns: readonly Column[],
  values: readonly unknown[],
  optional: string[],
): object {
  const row: Row = { [SELECTED]: select };
  for (let i = 0; i < columns.length; i++) {
    const { at, read } = columns[i] as Column;
    const value = values[i];
    const [field, inner] = at;
    const shown = read && value !== null ? read(value as never) : value;
    if (inner === undefined) row[field] = shown;
    else {
      row[field] ??= {};
      (row[field] as Row)[inner] = shown;
    }
  }
  for (const field of optional) if ((row[field] as Row | undefined)?.id === null) row[field] = null;
  return row;
}

/** Null for a `select` with anything that is not known here. */
function columnsOf(source: RowSource, select: object): Column[] | null {
  const columns: Column[] = [];
  for (const [field, selected] of Object.entries(select)) {
    const relation = source.relations?.[field];
    if (!relation) {
      const column = columnFor(source, 'r', [field], field, selected);
      if (!column) return null;
      columns.push(column);
      continue;
    }
    if (typeof selected !== 'object' || Object.keys(selected).join() !== 'select') return null;
    const inner = relation.optional ? { id: true, ...selected.select } : selected.select;
    for (const [name, it] of Object.entries(inner)) {
      const column = columnFor(relation, relation.alias, [field, name], name, it);
      if (!column) return null;
      columns.push(column);
    }
  }
  return columns;
}

function columnFor(
  { model, handmade }: { model: Prisma.ModelName } & Handmade,
  alias: string,
  at: Column['at'],
  field: string,
  selected: unknown,
): Column | null {
  const byHand = handmade?.[field];
  if (byHand && isDeepStrictEqual(byHand.select, selected))
    return { at, sql: byHand.sql, read: byHand.read };
  const read = selected === true ? readerOf(model, field) : null;
  return (
    read && { at, sql: `${alias}.${columnOf(field)}`, read: read === AS_IT_IS ? undefined : read }
  );
}

const AS_IT_IS: Read = (value) => value;

/** From pg's form of a value to Prisma's; null for what is no column that is read here. */
function readerOf(model: Prisma.ModelName, name: string): Read | null {
  const field = models[model]?.fields.find((one) => one.name === name);
  if (!field || field.kind === 'object' || (field.isList && field.type !== 'String')) return null;
  if (field.type === 'BigInt') return (value: string) => BigInt(value);
  if (field.type === 'Decimal') return (value: string) => new Prisma.Decimal(value);
  return field.type === 'Bytes' ? null : AS_IT_IS;
}

type Field = { name: string; kind: string; type: string; isList: boolean };
const { models } = getDatamodel().datamodel as unknown as {
  models: Partial<Record<Prisma.ModelName, { fields: Field[] }>>;
};
