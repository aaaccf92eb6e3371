/**
 * A Pothos plugin that makes fields of rows read the row directly.
 *
 * Pothos wraps each field of a row in a resolver that checks by path whether the row was loaded with the columns of the field.
 * Checking the row itself costs far less: without this file a list costs 1.7 times the CPU over REST, and 1.5 times over
 * GraphQL. If the row lacks a column, Pothos's resolver still loads it.
 */
import { isDeepStrictEqual } from 'node:util';
import SchemaBuilder, {
  BasePlugin,
  type PothosOutputFieldConfig,
  type SchemaTypes,
} from '@pothos/core';
import { defaultFieldResolver, type GraphQLFieldResolver } from 'graphql';
import { SELECTED } from '../database/rows.ts';

declare global {
  export namespace PothosSchemaTypes {
    export interface Plugins<Types extends SchemaTypes> {
      loadedRows: LoadedRowsPlugin<Types>;
    }
  }
}

type Row = Record<string, unknown> & { [SELECTED]?: object };

/** Facts about a field, stored in its `extensions`. */
type RowAccess = {
  /** Whether the field returns the property of its name. */
  isProperty?: boolean;
  /** Whether the field needs the columns that Pothos selects for the operation. Other fields work with any row that has their columns. */
  needsPlan?: boolean;
};

export function rowAccessOf({ extensions }: { extensions?: object | null }): RowAccess {
  return (extensions ?? {}) as RowAccess;
}

/** Must be the first plugin, whose wrapper is the outermost. */
class LoadedRowsPlugin<Types extends SchemaTypes> extends BasePlugin<Types> {
  override onOutputFieldConfig(
    field: PothosOutputFieldConfig<Types>,
  ): PothosOutputFieldConfig<Types> {
    // Pothos gives this resolver to a field that exposes the property of its name.
    const isProperty = field.resolve === defaultFieldResolver || this.#isNodeId(field);
    const needsPlan = field.kind === 'PrismaObject' && !isProperty && !selectOf(field);
    return { ...field, extensions: { ...field.extensions, isProperty, needsPlan } };
  }

  override wrapResolve(
    resolve: GraphQLFieldResolver<unknown, Types['Context'], object>,
    field: PothosOutputFieldConfig<Types>,
  ): GraphQLFieldResolver<unknown, Types['Context'], object> {
    if (rowAccessOf(field).isProperty)
      return (row, args, context, info) => {
        const value = (row as Row)[field.name];
        return value === undefined ? resolve(row, args, context, info) : value;
      };
    const select = selectOf(field);
    const { resolve: original } = field;
    if (!select || !original) return resolve;
    const isLoaded = createLoadedCheck(select);
    return (row, args, context, info) =>
      (isLoaded(row as Row) ? original : resolve)(row, args, context, info);
  }

  #isNodeId({ name, parentType }: PothosOutputFieldConfig<Types>): boolean {
    const parent = this.buildCache.getTypeConfig(parentType);
    const interfaces = parent.kind === 'Object' ? parent.interfaces : [];
    return (
      name === 'id' &&
      interfaces.some((ref) => this.buildCache.getTypeConfig(ref, 'Interface').name === 'Node')
    );
  }
}

SchemaBuilder.registerPlugin('loadedRows', LoadedRowsPlugin);

/** The columns of a row that the field needs; undefined if they depend on the operation. */
function selectOf<Types extends SchemaTypes>(
  field: PothosOutputFieldConfig<Types>,
): object | undefined {
  const { select } = field.pothosOptions as { select?: unknown };
  const isStatic = field.kind === 'PrismaObject' && typeof select === 'object' && select !== null;
  return isStatic ? select : undefined;
}

/** Returns a check whether a row has the columns of `select`. */
function createLoadedCheck(select: object): (row: Row) => boolean {
  const hasProperties = createPropertyCheck(select);
  const bySelect = new WeakMap<object, boolean>();
  return (row) => {
    const loaded = row[SELECTED];
    if (!loaded) return hasProperties?.(row) ?? false;
    const cached = bySelect.get(loaded);
    if (cached !== undefined) return cached;
    const isContained = contains(loaded, select);
    bySelect.set(loaded, isContained);
    return isContained;
  };
}

/** Whether `whole` has all columns of `some`, those of relations under the same filters. */
function contains(whole: object, some: object): boolean {
  return Object.entries(some).every(([field, selected]) => {
    const loaded = (whole as Record<string, unknown>)[field];
    if (typeof loaded !== 'object' || loaded === null || typeof selected !== 'object')
      return loaded === selected;
    const { select: columns = {}, ...filters } = loaded as { select?: object };
    const { select: wanted = {}, ...wantedFilters } = selected;
    return isDeepStrictEqual(filters, wantedFilters) && contains(columns, wanted);
  });
}

/** Returns a check of the row's properties; undefined if they do not show it, as with filters. */
function createPropertyCheck(select: unknown): ((row: Row) => boolean) | undefined {
  if (typeof select !== 'object' || select === null) return undefined;
  const checks: ((row: Row) => boolean)[] = [];
  for (const [name, selected] of Object.entries(select)) {
    if (selected === true) {
      checks.push((row) => row[name] !== undefined);
      continue;
    }
    const isOnlySelect = Object.keys(selected).join() === 'select' && name !== '_count';
    const inner = isOnlySelect ? createPropertyCheck(selected.select) : undefined;
    if (!inner) return undefined;
    checks.push((row) => {
      const value = row[name];
      return value === null || (typeof value === 'object' && inner(value as Row));
    });
  }
  return (row) => checks.every((check) => check(row));
}
