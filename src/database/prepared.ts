/**
 * Statements that are read again and again.
 *
 * PostgreSQL keeps what it prepared of them for the life of a connection, and here is kept what it said of their columns. pg
 * asks for that with each execution, and makes objects of the answer: a twentieth of the CPU of a read of one row.
 */
import pg from 'pg';

/** The pool, or the connection of a transaction. */
export type Asked = pg.Pool | pg.ClientBase;

/** `name`: undefined where PostgreSQL is to keep nothing of the statement. */
export type Statement = { name: string | undefined; text: string };

/** Rows as lists of values, in the order of the columns. */
export async function readValues(
  on: Asked,
  { name, text }: Statement,
  values: unknown[],
): Promise<unknown[][]> {
  return (await read(on, new Reading(name, text, values))).found;
}

/** Rows by the names of the columns. */
export async function readObjects<Row extends object>(
  on: Asked,
  { name, text }: Statement,
  values: unknown[],
): Promise<Row[]> {
  const { columns, found } = await read(on, new Reading(name, text, values));
  return found.map((given) => {
    const row: Record<string, unknown> = {};
    for (let i = 0; i < columns.length; i++) row[(columns[i] as Column).name] = given[i];
    return row as Row;
  });
}

function read(on: Asked, reading: Reading): Promise<Found> {
  // The types of pg take what has a `submit` for something that is read as a stream.
  const { query } = on as unknown as { query(reading: Reading, done: Reading['callback']): void };
  return new Promise((resolve, reject) =>
    query.call(on, reading, (error, found) => (found ? resolve(found) : reject(error))),
  );
}

type Column = { name: string; read: (text: string) => unknown };
type Found = { columns: readonly Column[]; found: unknown[][] };

/** What pg tells a query of, and calls of it, beyond what its types name. */
type Connection = { describe(portal: object): void };
type Description = { fields: { name: string; dataTypeID: number; format?: 'text' }[] };
declare class Query {
  constructor(text: string, values: unknown[]);
  name: string | undefined;
  callback(error: unknown, found?: Found): void;
  prepare(connection: Connection): void;
}

/** What a connection has described, by the names of statements. */
type Described = { columns: Map<string, readonly Column[]>; undescribed: Connection };
const connections = new WeakMap<Connection, Described>();

function describedOn(connection: Connection): Described {
  const known = connections.get(connection);
  if (known) return known;
  // The connection itself, where asking for a description sends nothing.
  const undescribed: Connection = Object.create(connection, { describe: { value: () => {} } });
  const described = { columns: new Map(), undescribed };
  connections.set(connection, described);
  return described;
}

/**
 * A query of pg that knows its columns. It must be a `pg.Query`, because a connection takes no other in a pipeline; what is
 * overridden here is how pg prepares one, and what becomes of the messages that answer it.
 */
class Reading extends (pg.Query as unknown as typeof Query) {
  #described: Described | undefined;
  #columns: readonly Column[] = [];
  readonly #found: unknown[][] = [];
  #fault: unknown;

  constructor(name: string | undefined, text: string, values: unknown[]) {
    super(text, values);
    this.name = name;
  }

  override prepare(connection: Connection): void {
    const described = describedOn(connection);
    const columns = described.columns.get(this.name ?? '');
    if (columns) this.#columns = columns;
    else this.#described = described;
    super.prepare(columns ? described.undescribed : connection);
  }

  handleRowDescription({ fields }: Description): void {
    this.#columns = fields.map(({ name, dataTypeID, format = 'text' }) => ({
      name,
      read: pg.types.getTypeParser(dataTypeID, format),
    }));
    if (this.name) this.#described?.columns.set(this.name, this.#columns);
  }

  handleDataRow({ fields }: { fields: (string | null)[] }): void {
    if (this.#fault !== undefined) return;
    const row = new Array<unknown>(fields.length);
    try {
      for (let i = 0; i < fields.length; i++) {
        const value = fields[i] as string | null;
        row[i] = value === null ? null : (this.#columns[i] as Column).read(value);
      }
    } catch (error) {
      this.#fault = error;
    }
    this.#found.push(row);
  }

  handleCommandComplete(): void {}

  handleError(error: unknown): void {
    this.callback(this.#fault ?? error);
  }

  handleReadyForQuery(): void {
    if (this.#fault === undefined)
      this.callback(null, { columns: this.#columns, found: this.#found });
    else this.callback(this.#fault);
  }
}
