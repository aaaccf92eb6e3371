import {
  type GraphQLInputType,
  type GraphQLList,
  type GraphQLScalarType,
  getNullableType,
  isListType,
} from 'graphql';
import { AppError, invalid } from '../../base/errors.ts';
import { enumValues } from './executable.ts';
import type { Parameter } from './operations.ts';

export type Reader = (value: unknown) => unknown;

/** @returns a function from a present value to a variable of the operation. It throws AppError 400 that names the field. */
export function reader(parameter: Parameter, from: 'text' | 'json'): Reader {
  const { name, type, nullable } = parameter;
  const read = from === 'text' ? textReader(type) : jsonReader(type, parameter);
  return (value) => {
    try {
      return value === null && nullable ? null : read(value);
    } catch (problem) {
      if (problem instanceof AppError || !(problem instanceof Error)) throw problem;
      throw invalid(name, problem.message);
    }
  };
}

export function missing(name: string): AppError {
  return invalid(name, 'is required');
}

function textReader(type: GraphQLInputType): Reader {
  const scalar = getNullableType(type) as GraphQLScalarType;
  switch (scalar.name) {
    case 'Int':
      return (text) => {
        if (!/^-?\d+$/.test(text as string)) throw new Error('must be a whole number');
        return int32(Number(text));
      };
    case 'Boolean':
      return (text) => {
        if (text !== 'true' && text !== 'false') throw new Error('must be true or false');
        return text === 'true';
      };
    default:
      return jsonReader(type);
  }
}

/** What beside its type determines how a value is read. */
type Conversion = Partial<Pick<Parameter, 'stringMap' | 'among'>>;

function jsonReader(type: GraphQLInputType, { stringMap, among }: Conversion = {}): Reader {
  const nullable = getNullableType(type);
  if (stringMap) return readStringMap;
  if (isListType(nullable))
    return listReader((nullable as GraphQLList<GraphQLInputType>).ofType, { among });
  const known = among ?? enumValues(nullable);
  if (known) return enumReader(known);
  const scalar = nullable as GraphQLScalarType;
  switch (scalar.name) {
    case 'Int':
      return (value) => {
        if (!Number.isInteger(value)) throw new Error('must be a whole number');
        return int32(value as number);
      };
    case 'Boolean':
      return (value) => {
        if (typeof value !== 'boolean') throw new Error('must be true or false');
        return value;
      };
    case 'String':
    case 'ID':
      return readString;
    default:
      return (value) => {
        const text = readString(value);
        // The operation parses it again. Parsed here as well, so that an error names the field.
        scalar.parseValue(text);
        return text;
      };
  }
}

function listReader(type: GraphQLInputType, conversion: Conversion): Reader {
  const readItem = jsonReader(type, conversion);
  return (value) => {
    if (!Array.isArray(value)) throw new Error('must be an array');
    return value.map((item) => {
      try {
        return readItem(item);
      } catch (problem) {
        throw new Error(`each item ${(problem as Error).message}`);
      }
    });
  };
}

function enumReader(known: readonly string[]): Reader {
  return (value) => {
    if (typeof value !== 'string' || !known.includes(value))
      throw new Error(`must be one of ${known.join(', ')}`);
    return value;
  };
}

const readString: Reader = (value) => {
  if (typeof value !== 'string') throw new Error('must be a string');
  // PostgreSQL cannot store it.
  if (value.includes('\0')) throw new Error('must not contain the character NUL');
  return value;
};

/** Converts an object to the list of its names and values. */
const readStringMap: Reader = (value) => {
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw new Error('must be an object');
  for (const [key, item] of Object.entries(value)) {
    if (typeof item !== 'string') throw new Error('must be an object whose values are strings');
    if (`${key}${item}`.includes('\0')) throw new Error('must not contain the character NUL');
  }
  return Object.entries(value).map(([name, value]) => ({ name, value }));
};

function int32(value: number): number {
  if (value !== (value | 0)) throw new Error('must fit in 32 bits');
  return value;
}
