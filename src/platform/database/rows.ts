/**
 * Compiles a Prisma `select` to SQL, and reads its rows by one prepared statement with `pg`.
 *
 * Lists and the most frequent lookups use this module, because Prisma's client takes a quarter of the CPU of a REST read of one
 * row, and the SQL that Prisma generates for a page reads the whole list. A relation is a subquery that returns JSON.
 */
import { LRUCache } from 'lru-cache';
import pg from 'pg';
import { Prisma } from '../../../prisma/generated/client.ts';
import { getDatamodel } from '../../../prisma/generated/pothos.ts';
import { toColumnName } from './keyset.ts';
import { createStatementNamer, type Queryable } from './statement.ts';

/** How a model is read. In SQL its row is called `r`. */
type RowSource = {
  model: Prisma.ModelName;
  /** SQL after `from`: the table and its joins. */
  from: string;
  /** Aliases of relations to one row that are joined in `from`. */
  joined?: Record<string, string>;
};

type RowStatement<Row = object> = {
  /** Returns the rows in the order of the statement. */
  read(queryable: Queryable, values: unknown[]): Promise<Row[]>;
};

/** Columns for a hand-written statement: SQL after `select`, and the conversion of its values to a row. */
export type RowColumns = { sql: string; toRow(values: readonly unknown[]): object };

/** The functions throw if `select` is not supported. `test/api/rows.test.ts` checks that the schema has no such `select`. */
export type RowReader = {
  /** SQL after `from` that these columns need; the row is `r`. */
  from: string;
  /** Columns for a hand-written statement in which the row is `r`. */
  columns(select: object): RowColumns;
  /**
   * @param columns additional columns
   * @param ending SQL after `from`. It must not contain user input, because each text is prepared and kept
   */
  statement(select: object, columns: object, ending: string): RowStatement;
};

/** A server uses few different `select`s. If clients send more of them, their statements get no name. */
const MAX_STATEMENTS = 300;

export function createRowReader(source: RowSource): RowReader {
  const statement = cacheBySelect((select: object, columns: object, ending: string) => {
    const compiled = compileColumns(source, { ...columns, ...select });
    return prepare(compiled, `select ${compiled.sql} from ${source.from} ${ending}`);
  });
  const columns = cacheBySelect((select: object) => compileColumns(source, select));
  return { from: source.from, columns: (select) => columns(select, {}, ''), statement };
}

/** Caches the results of `make` by its arguments. */
function cacheBySelect<T>(make: (select: object, columns: object, ending: string) => T) {
  /** A stored operation always passes the same `select` object, so its text need not be built for a lookup. */
  const bySelect = new WeakMap<object, Map<string, T>>();
  const byText = new LRUCache<string, { made: T }>({ max: MAX_STATEMENTS });
  return (select: object, columns: object, ending: string): T => {
    const cache = bySelect.get(select) ?? new Map<string, T>();
    const key = `${JSON.stringify(columns)} ${ending}`;
    const cached = cache.get(key);
    if (cached !== undefined) return cached;
    const text = `${JSON.stringify(select)} ${key}`;
    const { made } = byText.get(text) ?? { made: make(select, columns, ending) };
    byText.set(text, { made });
    bySelect.set(select, cache.set(key, made));
    return made;
  };
}

function prepare(columns: RowColumns, text: string): RowStatement {
  const name = nameOf(text);
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

const nameOf = createStatementNamer('rows.', MAX_STATEMENTS);

/** Key under which a row stores the `select` it was read with, so that nothing is read twice. */
export const SELECTED: unique symbol = Symbol('select');

type Row = Record<string | symbol, unknown>;
type Selection = {
  select?: object;
  where?: object;
  orderBy?: Record<string, 'asc' | 'desc'>;
  take?: number;
};

/** A field of a row: its SQL, and the conversion of a value that is not null to the value of Prisma. */
type Field = { name: string; sql: string; read?: (value: never) => unknown };

function compileColumns({ model, joined = {} }: RowSource, select: object): RowColumns {
  const fields = Object.entries(select).map(([name, selected]): Field => {
    const alias = joined[name];
    return alias
      ? compileObject(name, compileFields(fieldOf(model, name).type, alias, selected.select))
      : compileField(model, 'r', name, selected);
  });
  return {
    sql: fields.map(({ sql }) => sql).join(', '),
    toRow: (values) => toRow(fields, values, { [SELECTED]: select }),
  };
}

function toRow(fields: readonly Field[], values: readonly unknown[], row: Row = {}): Row {
  for (let i = 0; i < fields.length; i++) {
    const { name, read } = fields[i] as Field;
    const value = values[i];
    row[name] = read && value !== null ? read(value as never) : value;
  }
  return row;
}

/** @param select default: all columns */
function compileFields(model: string, alias: string, select?: object): Field[] {
  if (select)
    return Object.entries(select).map(([name, value]) => compileField(model, alias, name, value));
  const columns = fieldsOf(model).filter(({ kind }) => kind !== 'object');
  return columns.map((column) => compileColumn(column, alias));
}

function compileField(
  model: string,
  alias: string,
  name: string,
  selected: true | Selection,
): Field {
  if (name === '_count') return compileCounts(model, alias, selected as Selection);
  const field = fieldOf(model, name);
  if (field.kind !== 'object') return compileColumn(field, alias);
  const { select, take, ...range } = selected === true ? {} : selected;
  const inner = `${alias}_${toColumnName(name)}`;
  const row = compileObject(name, compileFields(field.type, inner, select));
  const limit = take === undefined ? '' : ` limit ${Number(take)}`;
  const rows = `select ${row.sql} ${compileRange(model, alias, field, range)}${limit}`;
  if (!field.isList) return { ...row, sql: `(${rows})` };
  return {
    name,
    sql: `to_json(array(${rows}))`,
    read: (list: never[]) => list.map((values) => row.read(values)),
  };
}

/** An object is an array of its values in JSON. */
function compileObject(name: string, fields: Field[]) {
  return {
    name,
    sql: `json_build_array(${fields.map(({ sql }) => sql).join(', ')})`,
    read: (values: readonly unknown[]) => toRow(fields, values),
  };
}

function compileCounts(model: string, alias: string, { select = {} }: Selection): Field {
  const counts = Object.entries(select).map(([name, selected]): Field => {
    const range = compileRange(model, alias, fieldOf(model, name), selected);
    return { name, sql: `(select count(*) ${range})` };
  });
  return compileObject('_count', counts);
}

/** The rows of a relation of the row `alias`: SQL from `from` on. */
function compileRange(
  model: string,
  alias: string,
  relation: DataField,
  { where = {}, orderBy = {}, ...rest }: Selection,
): string {
  if (Object.keys(rest).length > 0) throw unsupported(model, relation.name);
  const table = TABLES[relation.type as Prisma.ModelName];
  if (!table) throw unsupported(model, relation.name);
  const inner = `${alias}_${toColumnName(relation.name)}`;
  // One of both sides has the foreign key, which refers to the id of the other.
  const [key] = relation.relationFromFields ?? [];
  const conditions = [
    key
      ? `${inner}.id = ${alias}.${toColumnName(key)}`
      : `${inner}.${toColumnName(foreignKeyOf(relation))} = ${alias}.id`,
  ];
  for (const [name, condition] of Object.entries(where)) {
    const conditionSql = compileCondition(`${inner}.${toColumnName(name)}`, condition);
    if (conditionSql === null) throw unsupported(model, relation.name);
    conditions.push(conditionSql);
  }
  const order = Object.entries(orderBy).map(([name, to]) => {
    if (to !== 'asc' && to !== 'desc') throw unsupported(model, relation.name);
    return `${inner}.${toColumnName(name)} ${to}`;
  });
  const orderSql = order.length > 0 ? ` order by ${order.join(', ')}` : '';
  return `from ${table} ${inner} where ${conditions.join(' and ')}${orderSql}`;
}

/** @returns null for a condition other than `null`, a boolean and `{ in: texts }` */
function compileCondition(column: string, condition: unknown): string | null {
  if (condition === null) return `${column} is null`;
  if (typeof condition === 'boolean') return `${column} = ${condition}`;
  if (typeof condition !== 'object') return null;
  const { in: values, ...rest } = condition as { in?: unknown };
  const isSupported = Array.isArray(values) && values.every((value) => typeof value === 'string');
  if (!isSupported || Object.keys(rest).length > 0) return null;
  // SQL has no empty list.
  if (values.length === 0) return 'false';
  return `${column} in (${values.map((value) => pg.escapeLiteral(value)).join(', ')})`;
}

function compileColumn({ name, type, isList }: DataField, alias: string): Field {
  const column = `${alias}.${toColumnName(name)}`;
  // Values of a relation come from JSON.
  const isJson = alias !== 'r';
  if (isList && type !== 'String') throw unsupported(alias, name);
  if (type === 'BigInt')
    return { name, sql: `${column}::text`, read: (text: string) => BigInt(text) };
  if (type === 'Decimal')
    return { name, sql: `${column}::text`, read: (text: string) => new Prisma.Decimal(text) };
  if (type === 'DateTime' && isJson)
    return { name, sql: column, read: (text: string) => new Date(text) };
  if (type === 'Bytes' && isJson) throw unsupported(alias, name);
  return { name, sql: column };
}

function unsupported(model: string, name: string): Error {
  return new Error(`rows: ${model}.${name} cannot be selected in this form`);
}

/** Tables of the models that are relations of rows. */
const TABLES: Partial<Record<Prisma.ModelName, string>> = {
  Checkpoint: 'checkpoints',
  JobArray: 'job_arrays',
  JobAttempt: 'job_attempts',
  JobLabel: 'job_labels',
  JobNeed: 'job_needs',
  JobSummary: 'job_summaries',
  Member: 'members',
  Namespace: 'namespaces',
  Repository: 'repositories',
  TestReport: 'test_reports',
  User: 'users',
};

type DataField = {
  name: string;
  kind: string;
  type: string;
  isList: boolean;
  relationName?: string;
  relationFromFields?: string[];
};
const { models } = getDatamodel().datamodel as unknown as {
  models: Record<string, { fields: DataField[] }>;
};

function fieldsOf(model: string): DataField[] {
  return models[model]?.fields ?? [];
}

function fieldOf(model: string, name: string): DataField {
  const field = fieldsOf(model).find((candidate) => candidate.name === name);
  if (!field) throw unsupported(model, name);
  return field;
}

function foreignKeyOf({ type, name, relationName }: DataField): string {
  const opposite = fieldsOf(type).find(
    (field) => field.relationName === relationName && field.relationFromFields?.[0],
  );
  const key = opposite?.relationFromFields?.[0];
  if (!key) throw unsupported(type, name);
  return key;
}
