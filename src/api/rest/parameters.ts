/**
 * Reads the parameters of a route from a request, each from its one location. Checks are strict, because a client finds
 * a silently converted value only later. Path and query (text) and body (JSON) have their own rules.
 */
import { isUtf8 } from 'node:buffer';
import type { IncomingMessage } from 'node:http';
import type { Request, RequestHandler } from 'express';
import {
  type GraphQLInputType,
  type GraphQLList,
  type GraphQLScalarType,
  getNullableType,
  isListType,
} from 'graphql';
import { AppError, invalid } from '../../base/errors.ts';
import { parseBody, readBodyBytes } from '../../platform/web/request-body.ts';
import type { Operation, Parameter } from './operations.ts';
import { enumValues } from './rest-schema.ts';
import type { Route } from './routes.ts';

type ParameterLocation = 'path' | 'query' | 'body';

/** In the path if the path names it; otherwise in the body, or in the query if the method has no body. */
export function locationOf({ method, paths }: Route, name: string): ParameterLocation {
  if (new RegExp(`\\{${name}\\*?\\}`).test(paths[0])) return 'path';
  return method === 'GET' || method === 'DELETE' ? 'query' : 'body';
}

/** @returns a function from a request to the variables of the operation. It throws AppError 400 that names the field. */
export function createParameterReader(route: Route, { parameters }: Operation) {
  const slots = parameters.map((parameter) => toSlot(route, parameter));
  const bodyFields = new Set(slots.filter((s) => s.location === 'body').map((s) => s.name));
  const queryNames = new Set(slots.filter((s) => s.location === 'query').map((s) => s.name));

  return (req: Request): Record<string, unknown> => {
    const body: JsonObject = req.json ?? {};
    const unknown = Object.keys(body).filter((name) => !bodyFields.has(name));
    if (unknown.length > 0) throw invalid(null, `Unknown body fields: ${toShortList(unknown)}`);
    const query = queryNames.size > 0 ? parseQuery(req.url, queryNames) : undefined;
    // No prototype, so that it has only parameters of the request.
    const values: Record<string, unknown> = Object.create(null);
    for (const { name, location, required, read } of slots) {
      const value =
        location === 'path'
          ? toPath(req.params[name])
          : location === 'query'
            ? query?.get(name)
            : Object.hasOwn(body, name)
              ? body[name]
              : undefined;
      if (value !== undefined) values[name] = read(value);
      else if (required) throw missingParameter(name);
    }
    return values;
  };
}

type Slot = { name: string; location: ParameterLocation; required: boolean; read: Reader };

function toSlot(route: Route, parameter: Parameter): Slot {
  const { name, required } = parameter;
  const location = locationOf(route, name);
  const read = createValueReader(parameter, location === 'body' ? 'json' : 'text');
  return { name, location, required, read };
}

/** Express passes the rest of a path as decoded segments, and omits the parameter if there are none. */
function toPath(value: string | string[] | undefined): string | undefined {
  return Array.isArray(value) ? value.join('/') : value;
}

/**
 * Reads the query parameters in `names` and ignores all others.
 * @throws AppError 400 for bad percent-encoding, and for a repeated name, because no rule says which value counts
 */
function parseQuery(url: string, names: ReadonlySet<string>): Map<string, string> {
  const values = new Map<string, string>();
  const at = url.indexOf('?');
  if (at < 0) return values;
  for (const pair of url.slice(at + 1).split('&')) {
    if (!pair) continue;
    const [name = '', ...rest] = pair.split('=');
    const key = decode(name);
    const value = decode(rest.join('='));
    if (!names.has(key)) continue;
    if (values.has(key)) throw invalid(key, 'is given more than once');
    values.set(key, value);
  }
  return values;
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text.replaceAll('+', ' '));
  } catch {
    throw invalid(null, 'The query is not valid percent-encoded UTF-8');
  }
}

/** Shortens names that came from a client, for a message. */
function toShortList(names: string[]): string {
  const short = names.slice(0, 10).map((name) => JSON.stringify(name.slice(0, 60)).slice(1, -1));
  return short.join(', ') + (names.length > short.length ? ', …' : '');
}

type JsonObject = Record<string, unknown>;

declare global {
  namespace Express {
    interface Request {
      /** The bytes of the body, which `Idempotency-Key` compares; undefined without a body. */
      rawBody?: Buffer;
      /** The parsed body; undefined without a body. */
      json?: JsonObject;
    }
  }
}

/** Reads and parses the body. @throws AppError 400 */
export const readBody: RequestHandler = async (req, _res, next) => {
  if (!mayHaveBody(req)) return next();
  const bytes = await readBodyBytes(req);
  if (bytes.length > 0) {
    requireJsonType(req.headers);
    req.rawBody = bytes;
    req.json = parse(bytes);
  }
  next();
};

function mayHaveBody({ headers }: IncomingMessage): boolean {
  return headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0;
}

function requireJsonType(headers: IncomingMessage['headers']): void {
  const [type = '', ...parameters] = (headers['content-type'] ?? '').toLowerCase().split(';');
  if (type.trim() !== 'application/json')
    throw invalid(null, 'A request with a body needs the header Content-Type: application/json');
  const charset = parameters.map((p) => p.trim()).find((p) => p.startsWith('charset='));
  if (charset && !/^charset="?(utf-?8|us-ascii)"?$/.test(charset))
    throw invalid(null, 'The body must be UTF-8');
  if ((headers['content-encoding'] ?? 'identity') !== 'identity')
    throw invalid(null, 'The body must not be compressed');
}

function parse(bytes: Buffer): JsonObject {
  if (!isUtf8(bytes)) throw invalid(null, 'The body is not valid UTF-8');
  const value = parseBody(bytes.toString('utf8'));
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw invalid(null, 'The body must be a JSON object');
  return value as JsonObject;
}

type Reader = (value: unknown) => unknown;

/** @returns a function from a present value to a variable. It throws AppError 400 that names the field. */
function createValueReader(parameter: Parameter, from: 'text' | 'json'): Reader {
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

function missingParameter(name: string): AppError {
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

/** The properties of a parameter, besides its type, that determine how its value is read. */
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
