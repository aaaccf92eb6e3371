/** Takes a request apart into the values of a route's parameters, each from its one place. */

import { isUtf8 } from 'node:buffer';
import type { IncomingMessage } from 'node:http';
import type { Request, RequestHandler } from 'express';
import { invalid } from '../../base/errors.ts';
import { parseBody, readBodyBytes } from '../../platform/web/request-body.ts';
import type { Operation, Parameter } from './operations.ts';
import type { Route } from './routes.ts';
import { missing, type Reader, reader } from './wire.ts';

export type ParameterLocation = 'path' | 'query' | 'body';

/** In the path where the path names it, else in the body, or in the query where the method has no body. */
export function placeOf({ method, paths }: Route, name: string): ParameterLocation {
  if (new RegExp(`\\{${name}\\*?\\}`).test(paths[0])) return 'path';
  return method === 'GET' || method === 'DELETE' ? 'query' : 'body';
}

/** @returns a function from a request to the operation's variables; it throws AppError 400 naming the field. */
export function parameterReader(route: Route, { parameters }: Operation) {
  const slots = parameters.map((parameter) => slot(route, parameter));
  const bodyFields = new Set(slots.filter((s) => s.place === 'body').map((s) => s.name));
  const queryNames = new Set(slots.filter((s) => s.place === 'query').map((s) => s.name));

  return (req: Request): Record<string, unknown> => {
    const body: JsonObject = req.json ?? {};
    const unknown = Object.keys(body).filter((name) => !bodyFields.has(name));
    if (unknown.length > 0) throw invalid(null, `Unknown body fields: ${shown(unknown)}`);
    const query = queryNames.size > 0 ? parseQuery(req.url, queryNames) : undefined;
    // No prototype: a parameter is there only when the request brought it.
    const values: Record<string, unknown> = Object.create(null);
    for (const { name, place, required, read } of slots) {
      const value =
        place === 'path'
          ? segment(req.params[name])
          : place === 'query'
            ? query?.get(name)
            : Object.hasOwn(body, name)
              ? body[name]
              : undefined;
      if (value !== undefined) values[name] = read(value);
      else if (required) throw missing(name);
    }
    return values;
  };
}

type Slot = { name: string; place: ParameterLocation; required: boolean; read: Reader };

function slot(route: Route, parameter: Parameter): Slot {
  const { name, required } = parameter;
  const place = placeOf(route, name);
  return { name, place, required, read: reader(parameter, place === 'body' ? 'json' : 'text') };
}

/** Express gives the rest of a path as its decoded segments; none at all is a parameter left out. */
function segment(value: string | string[] | undefined): string | undefined {
  return Array.isArray(value) ? value.join('/') : value;
}

/**
 * The values of the parameters called `names`; others are ignored.
 * @throws AppError 400 for bad percent-encoding, and for a name given twice: which value counts would be a guess.
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

/** Names from a client, short enough for a message. */
function shown(names: string[]): string {
  const short = names.slice(0, 10).map((name) => JSON.stringify(name.slice(0, 60)).slice(1, -1));
  return short.join(', ') + (names.length > short.length ? ', …' : '');
}

/**
 * Reads a REST request's body once, strictly, and keeps it on the request: the bytes to compare
 * requests (`Idempotency-Key`), the parsed object for the operation.
 */
type JsonObject = Record<string, unknown>;

declare global {
  namespace Express {
    interface Request {
      /** The body's bytes; undefined when there was none. */
      rawBody?: Buffer;
      /** The parsed body; undefined when there was none. */
      json?: JsonObject;
    }
  }
}

/** @throws AppError 400, passed on to the error edge. */
export const readBody: RequestHandler = async (req, _res, next) => {
  if (!mayHaveBody(req)) return next();
  const bytes = await readBodyBytes(req);
  if (bytes.length > 0) {
    demandJsonType(req.headers);
    req.rawBody = bytes;
    req.json = parse(bytes);
  }
  next();
};

function mayHaveBody({ headers }: IncomingMessage): boolean {
  return headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0;
}

function demandJsonType(headers: IncomingMessage['headers']): void {
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
