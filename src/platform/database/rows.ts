/**
 * Rows in the form of a Prisma `select`, read by one prepared statement through pg.
 *
 * What requests ask for most goes through here: of the CPU of a REST read of one row, Prisma's client took a quarter. It
 * knows columns, relations to one row, and what a model describes by hand. Whatever else a `select` has, Prisma reads:
 * `statement` then says null.
 */
import { isDeepStrictEqual } from 'node:util';
import { LRUCache } from 'lru-cache';
import type pg from 'pg';
import { Prisma } from '../../../prisma/generated/client.ts';
import { getDatamodel } from '../../../prisma/generated/pothos.ts';
import { columnOf } from './keyset.ts';
import { type Runs, statementNames } from './statement.ts';

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
  read(on: Runs, values: unknown[]): Promise<Row[]>;
};

type Read = (value: never) => unknown;
/** `at`: where the value goes in the row, for example `['namespace', 'name']`. */
type Column = { at: readonly [string] | readonly [string, string]; sql: string; read?: Read };

/** What of a row is read, for statements by hand: SQL after `select`, and the row out of its values. */
export type RowColumns = { sql: string; toRow(values: readonly unknown[]): object };

export type Rows = {
  /** Behind `from`, for the columns: the row is `r`. */
  from: string;
  /** As of `statement`, for a statement by hand that calls the row `r`. */
  columns(select: object): RowColumns | null;
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
  const statement = remembered((select: object, columns: object, ending: string) => {
    const read = readColumns(source, { ...columns, ...select });
    return read && prepare(read, `select ${read.sql} from ${source.from} ${ending}`);
  });
  const columns = remembered((select: object) => readColumns(source, select));
  return { from: source.from, columns: (select) => columns(select, {}, ''), statement };
}

/** What `make` made of a `select`, which is always the same for the same ending. */
function remembered<T>(make: (select: object, columns: object, ending: string) => T) {
  /** A stored operation has its `select` once, and then no text has to be made to find what was made of it. */
  const bySelect = new WeakMap<object, Map<string, T>>();
  const byText = new LRUCache<string, { made: T }>({ max: MAX_STATEMENTS });
  return (select: object, columns: object, ending: string): T => {
    const endings = bySelect.get(select) ?? new Map<string, T>();
    const found = endings.get(ending);
    if (found !== undefined) return found;
    const text = `${JSON.stringify(select)} ${ending}`;
    const { made } = byText.get(text) ?? { made: make(select, columns, ending) };
    byText.set(text, { made });
    bySelect.set(select, endings.set(ending, made));
    return made;
  };
}

function prepare(columns: RowColumns, text: string): RowStatement {
  const name = nameOf(text);
  return {
    async read(on, values) {
      return (await readValues(on, { name, text }, values)).map(columns.toRow);
    },
  };
}

/** The rows as lists of values in the order of the columns. Without a name the statement is planned for its values. */
export async function readValues(
  on: Runs,
  { name, text }: { name: string | undefined; text: string },
  values: unknown[],
): Promise<unknown[][]> {
  const query: pg.QueryArrayConfig = { name, text, values, rowMode: 'array' };
  return (await on.query(query)).rows as unknown[][];
}

/** For statements with what clients select. */
export const nameOf = statementNames('rows.', MAX_STATEMENTS);

/** Where a row says with which `select` it was read, so that nobody asks for what it has. */
export const SELECTED: unique symbol = Symbol('select');

type Row = Record<string | symbol, unknown>;

/** Null for a `select` with anything that is not known here. */
function readColumns(source: RowSource, select: object): RowColumns | null {
  const columns = columnsOf(source, select);
  if (!columns) return null;
  const relations = Object.entries(source.relations ?? {});
  const optional = relations.flatMap(([field, { optional }]) => (optional ? field : []));
  return {
    sql: columns.map(({ sql }) => sql).join(', '),
    toRow: (values) => toRow(select, columns, values, optional),
  };
}

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
