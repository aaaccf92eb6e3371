/**
 * Fields of rows that look at the row.
 *
 * Pothos wraps each field of a row in a resolver that looks up, by the path, whether the row was loaded with what the
 * field selects. Looking at the row costs far less; one without it still takes the wrapper, which loads it.
 */
import { isDeepStrictEqual } from 'node:util';
import {
  defaultFieldResolver,
  type GraphQLField,
  type GraphQLObjectType,
  type GraphQLSchema,
  isObjectType,
} from 'graphql';
import { SELECTED } from '../database/rows.ts';

type Row = Record<string, unknown> & { [SELECTED]?: object };
type Field = GraphQLField<Row, unknown>;
type Resolve = NonNullable<Field['resolve']>;

/** What is known of a field, in its `extensions`. */
type Known = {
  /** The property of the row that it shows. */
  shownProperty?: string;
  /** It needs nothing of what Pothos notes of a plan. */
  looksAtRow?: boolean;
};

/** Changes the schema that it is given. */
export function lookAtRows(schema: GraphQLSchema): GraphQLSchema {
  for (const type of Object.values(schema.getTypeMap()))
    if (isObjectType(type))
      for (const field of Object.values(type.getFields())) lookAtRow(field, type);
  return schema;
}

export function knownOf({ extensions }: { extensions?: object | null }): Known {
  return (extensions ?? {}) as Known;
}

/** Whether it finds what it needs in its row, however the row was read. */
export function needsNoPlan(field: GraphQLField<unknown, unknown>): boolean {
  return !field.extensions.pothosPrismaSelect || knownOf(field).looksAtRow === true;
}

function lookAtRow(field: Field, type: GraphQLObjectType): void {
  const { pothosExposedField: exposed, pothosPrismaSelect: select } = field.extensions;
  const original = field.extensions.pothosOriginalResolve as Resolve | undefined;
  const { resolve = defaultFieldResolver } = field;
  const isNodeId = field.name === 'id' && type.getInterfaces().some(({ name }) => name === 'Node');
  const property = isNodeId ? 'id' : exposed;
  if (typeof property === 'string') {
    note(field, { shownProperty: property, looksAtRow: true });
    field.resolve = (row, args, context, info) => {
      const value = row[property];
      return value === undefined ? resolve(row, args, context, info) : value;
    };
    return;
  }
  if (!original || typeof select !== 'object' || select === null) return;
  const isLoaded = loadedWith(select);
  note(field, { looksAtRow: true });
  field.resolve = (row, args, context, info) =>
    (isLoaded(row) ? original : resolve)(row, args, context, info);
}

function note(field: Field, known: Known): void {
  field.extensions = { ...field.extensions, ...known };
}

/** A check that a row has what is selected. */
function loadedWith(select: object): (row: Row) => boolean {
  const isShown = shownWith(select);
  const bySelect = new WeakMap<object, boolean>();
  return (row) => {
    const read = row[SELECTED];
    if (!read) return isShown?.(row) ?? false;
    const known = bySelect.get(read);
    if (known !== undefined) return known;
    const isIn = contains(read, select);
    bySelect.set(read, isIn);
    return isIn;
  };
}

/** Whether all columns of `some` are in `whole`, those of relations under the same filters. */
function contains(whole: object, some: object): boolean {
  return Object.entries(some).every(([field, selected]) => {
    const read = (whole as Record<string, unknown>)[field];
    if (typeof read !== 'object' || read === null || typeof selected !== 'object')
      return read === selected;
    const { select: columns = {}, ...filters } = read as { select?: object };
    const { select: asked = {}, ...under } = selected;
    return isDeepStrictEqual(filters, under) && contains(columns, asked);
  });
}

/** A check by the row alone; undefined where the row does not show it, as with filters. */
function shownWith(select: unknown): ((row: Row) => boolean) | undefined {
  if (typeof select !== 'object' || select === null) return undefined;
  const checks: ((row: Row) => boolean)[] = [];
  for (const [name, selected] of Object.entries(select)) {
    if (selected === true) {
      checks.push((row) => row[name] !== undefined);
      continue;
    }
    const isOnlySelect = Object.keys(selected).join() === 'select' && name !== '_count';
    const inner = isOnlySelect ? shownWith(selected.select) : undefined;
    if (!inner) return undefined;
    checks.push((row) => {
      const value = row[name];
      return value === null || (typeof value === 'object' && inner(value as Row));
    });
  }
  return (row) => checks.every((check) => check(row));
}
