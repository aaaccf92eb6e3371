/**
 * Reads the rows of a Prisma `select` by one prepared statement with `pg`.
 *
 * The most frequent reads use this module, because Prisma's client takes a quarter of the CPU of a REST read of one row. It
 * supports columns, relations to one row, and fields with SQL of their own. For any other `select`, it returns null and the
 * caller uses Prisma.
 */
import { isDeepStrictEqual } from 'node:util';
import { LRUCache } from 'lru-cache';
import type pg from 'pg';
import { Prisma } from '../../../prisma/generated/client.ts';
import { getDatamodel } from '../../../prisma/generated/pothos.ts';
import { toColumnName } from './keyset.ts';
import { createStatementNamer, type Queryable } from './statement.ts';

/** How a model is read. In SQL its row is called `r`, and the row of a relation has the name `alias`. */
type RowSource = {
  model: Prisma.ModelName;
  /** SQL after `from`: the table and its joins. */
  from: string;
  /** Relations to one row. An optional relation is absent if its `id` is null. */
  relations?: Record<
    string,
    { model: Prisma.ModelName; alias: string; optional?: boolean } & CustomFields
  >;
} & CustomFields;

/** Fields that are not columns. A field whose selection equals `select` is read by `sql`. */
type CustomFields = {
  customFields?: Record<string, { select: object; sql: string; read?: Read }>;
};

type RowStatement<Row = object> = {
  /** Returns the rows in the order of the statement. */
  read(queryable: Queryable, values: unknown[]): Promise<Row[]>;
};

/** Converts a value of `pg` to the value of Prisma. */
type Read = (value: never) => unknown;
type Column = {
  /** Path of the value in the row, such as `['namespace', 'name']`. */
  path: readonly [string] | readonly [string, string];
  sql: string;
  read?: Read;
};

/** Columns for a hand-written statement: SQL after `select`, and the conversion of its values to a row. */
export type RowColumns = { sql: string; toRow(values: readonly unknown[]): object };

export type RowReader = {
  /** SQL after `from` that these columns need; the row is `r`. */
  from: string;
  /** Columns for a hand-written statement in which the row is `r`; null if Prisma must read this `select`. */
  columns(select: object): RowColumns | null;
  /**
   * @param columns additional columns, which must be the same in all calls with the same `ending`
   * @param ending SQL after `from`. It must not contain user input, because each text is prepared and kept
   * @returns null if Prisma must read this `select`
   */
  statement(select: object, columns: object, ending: string): RowStatement | null;
};

/** A server uses few different `select`s. If clients send more of them, their statements get no name. */
const MAX_STATEMENTS = 300;

export function createRowReader(source: RowSource): RowReader {
  const statement = cacheBySelect((select: object, columns: object, ending: string) => {
    const compiled = compileColumns(source, { ...columns, ...select });
    return compiled && prepare(compiled, `select ${compiled.sql} from ${source.from} ${ending}`);
  });
  const columns = cacheBySelect((select: object) => compileColumns(source, select));
  return { from: source.from, columns: (select) => columns(select, {}, ''), statement };
}

/** Caches the results of `make` by `select` and `ending`. */
function cacheBySelect<T>(make: (select: object, columns: object, ending: string) => T) {
  /** A stored operation always passes the same `select` object, so its text need not be built for a lookup. */
  const bySelect = new WeakMap<object, Map<string, T>>();
  const byText = new LRUCache<string, { made: T }>({ max: MAX_STATEMENTS });
  return (select: object, columns: object, ending: string): T => {
    const endings = bySelect.get(select) ?? new Map<string, T>();
    const cached = endings.get(ending);
    if (cached !== undefined) return cached;
    const text = `${JSON.stringify(select)} ${ending}`;
    const { made } = byText.get(text) ?? { made: make(select, columns, ending) };
    byText.set(text, { made });
    bySelect.set(select, endings.set(ending, made));
    return made;
  };
}

function prepare(columns: RowColumns, text: string): RowStatement {
  const name = statementNameFor(text);
  return {
    async read(queryable, values) {
      return (await queryRowArrays(queryable, { name, text }, values)).map(columns.toRow);
    },
  };
}

/** Returns each row as an array of its columns. Without a name, PostgreSQL plans the statement for its values. */
export async function queryRowArrays(
  queryable: Queryable,
  { name, text }: { name: string | undefined; text: string },
  values: unknown[],
): Promise<unknown[][]> {
  const query: pg.QueryArrayConfig = { name, text, values, rowMode: 'array' };
  return (await queryable.query(query)).rows as unknown[][];
}

/** Names of statements whose columns clients select. */
export const statementNameFor = createStatementNamer('rows.', MAX_STATEMENTS);

/** Key under which a row stores the `select` it was read with, so that nothing is read twice. */
export const SELECTED: unique symbol = Symbol('select');

type Row = Record<string | symbol, unknown>;

/** @returns null if the `select` has a field that is not supported */
function compileColumns(source: RowSource, select: object): RowColumns | null {
  const columns = listColumns(source, select);
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
    const { path, read } = columns[i] as Column;
    const value = values[i];
    const [field, inner] = path;
    const converted = read && value !== null ? read(value as never) : value;
    if (inner === undefined) row[field] = converted;
    else {
      row[field] ??= {};
      (row[field] as Row)[inner] = converted;
    }
  }
  for (const field of optional) if ((row[field] as Row | undefined)?.id === null) row[field] = null;
  return row;
}

function listColumns(source: RowSource, select: object): Column[] | null {
  const columns: Column[] = [];
  for (const [field, selected] of Object.entries(select)) {
    const relation = source.relations?.[field];
    if (!relation) {
      const column = findColumn(source, 'r', [field], field, selected);
      if (!column) return null;
      columns.push(column);
      continue;
    }
    if (typeof selected !== 'object' || Object.keys(selected).join() !== 'select') return null;
    const inner = relation.optional ? { id: true, ...selected.select } : selected.select;
    for (const [name, selectedInner] of Object.entries(inner)) {
      const column = findColumn(relation, relation.alias, [field, name], name, selectedInner);
      if (!column) return null;
      columns.push(column);
    }
  }
  return columns;
}

function findColumn(
  { model, customFields }: { model: Prisma.ModelName } & CustomFields,
  alias: string,
  path: Column['path'],
  field: string,
  selected: unknown,
): Column | null {
  const custom = customFields?.[field];
  if (custom && isDeepStrictEqual(custom.select, selected))
    return { path, sql: custom.sql, read: custom.read };
  const read = selected === true ? findConverter(model, field) : null;
  return (
    read && {
      path,
      sql: `${alias}.${toColumnName(field)}`,
      read: read === unchanged ? undefined : read,
    }
  );
}

const unchanged: Read = (value) => value;

/** @returns null for fields that are not supported */
function findConverter(model: Prisma.ModelName, name: string): Read | null {
  const field = models[model]?.fields.find((candidate) => candidate.name === name);
  if (!field || field.kind === 'object' || (field.isList && field.type !== 'String')) return null;
  if (field.type === 'BigInt') return (value: string) => BigInt(value);
  if (field.type === 'Decimal') return (value: string) => new Prisma.Decimal(value);
  return field.type === 'Bytes' ? null : unchanged;
}

type Field = { name: string; kind: string; type: string; isList: boolean };
const { models } = getDatamodel().datamodel as unknown as {
  models: Partial<Record<Prisma.ModelName, { fields: Field[] }>>;
};
