/** Takes a request apart into the values of a route's parameters, each from its one place. */
import type { Request } from 'express';
import { invalid } from '../../base/errors.ts';
import type { JsonObject } from './body.ts';
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
