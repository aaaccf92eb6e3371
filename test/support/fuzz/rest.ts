/**
 * Random requests from the OpenAPI document, from valid to arbitrary: no answer may be a 5xx, and each answer must be one
 * that the document describes.
 */
import fc from 'fast-check';
import { expect } from 'vitest';
import { templateOf } from '../../../src/api/rest/openapi/document.ts';
import { type Route, routes } from '../../../src/api/rest/routes.ts';
import type { Loam } from '../harness.ts';
import { type Document, openDocument } from '../openapi.ts';
import { fromSchema, type JsonSchema, mostly, nastyJson, nastyString } from './values.ts';
import { type Call, openWire, rawPath } from './wire.ts';
import { createWorld, type World } from './world.ts';

const BATCH = 16;

/**
 * Sends this many requests, in batches.
 * @returns the number of answers with each status
 * @throws Error with the seed and the smallest batch that fails
 */
export async function fuzzRest(loam: Loam, requests: number): Promise<Map<number, number>> {
  const document = await openDocument(loam.anonymous);
  const world = await createWorld(loam);
  using wire = openWire(loam.base);
  const calls = fc.array(fc.tuple(world.callers, callsOf(document, world)), {
    minLength: BATCH,
    maxLength: BATCH,
  });

  let batches = 0;
  let sent = 0;
  const seen = new Map<number, number>();
  const property = fc.asyncProperty(calls, async (batch) => {
    if (batches++ % 25 === 0) await world.restore();
    await Promise.all(
      batch.map(async ([client, call]) => {
        const reply = await wire.send(client, call);
        const shown = `${call.method} ${call.path} ${call.body ?? ''}\n→ ${reply.status} ${reply.text.slice(0, 500)}`;
        expect(reply.status, shown).toBeLessThan(500);
        expect(document.problems(call.method, call.path, reply), shown).toEqual([]);
        sent++;
        seen.set(reply.status, (seen.get(reply.status) ?? 0) + 1);
      }),
    );
  });
  // The message of a failure has the seed and the smallest failing batch.
  await fc.assert(property, { numRuns: Math.ceil(requests / BATCH) });
  console.log(`REST: ${sent} requests, answers by status:`, Object.fromEntries([...seen].sort()));
  // Fuzzing is useless if validation refuses all requests. Even a short run has many answers of these kinds.
  expectAnswers(seen, [200, 400, 401, 404]);
  return seen;
}

export function expectAnswers(seen: ReadonlyMap<number, number>, statuses: number[]): void {
  for (const status of statuses) expect(seen.get(status) ?? 0, `${status}`).toBeGreaterThan(0);
}

function callsOf(document: Document, world: World): fc.Arbitrary<Call> {
  const operations = everywhere(document).map(({ method, path, parameters, body }) => {
    const segments = path.split(/(\{[^}]+\})/).map((part) => {
      const name = /^\{(.+)\}$/.exec(part)?.[1]?.replace(/^id$/, idOf(path)).replace(/\*$/, '');
      return name
        ? mostly(world.known(name) ?? nastyString, nastyString, 9).map((v) => encode(String(v)))
        : fc.constant(part);
    });
    const query = parameters
      .filter((p) => p.in === 'query')
      .map(({ name, schema }) => [name, value(schema, name)] as const);
    const queries = fc.record(Object.fromEntries(query), { requiredKeys: [] }).map(asQuery);
    const bodies = body
      ? mostly(value(body, ''), nastyJson, 12).map((json) => JSON.stringify(json))
      : mostly(fc.constant(undefined), fc.constantFrom('{}', '{"a":1}', '[]'), 30);
    return fc.record({
      method: fc.constant(method),
      path: fc
        .tuple(fc.tuple(...segments), queries)
        .map(([parts, q]) => rawPath(parts.join('') + q)),
      body: body
        ? mostly(bodies, fc.oneof(nastyString, fc.constant('{'), fc.constant(undefined)), 15)
        : bodies,
      headers: headers(Boolean(body)),
    }) as fc.Arbitrary<Call>;
  });
  const beside = fc
    .record({
      method: fc.constantFrom('GET', 'POST', 'PUT', 'DELETE', 'PATCH', 'OPTIONS', 'HEAD'),
      rest: nastyString,
      headers: headers(false),
    })
    .map(({ rest, ...call }) => {
      // A proxy refuses characters such as `#` in a path itself, and HAProxy does so with a body even for HEAD.
      const part = call.method === 'HEAD' ? encodeURIComponent(rest.toWellFormed()) : rest;
      return { ...call, path: rawPath(`/auth/v1/${part}`) };
    });
  return fc.oneof(
    { arbitrary: fc.oneof(...operations), weight: 30 },
    { arbitrary: beside, weight: 1 },
  );

  function value(schema: JsonSchema, name: string) {
    return fromSchema(schema, document.resolve, world.known, name);
  }
}

/** The type of object that an `{id}` refers to. */
function idOf(path: string): string {
  return path.includes('/webhooks/') ? 'webhook_id' : 'repository_id';
}

/** The documented paths, and their alternative forms, which the document does not list separately. */
function everywhere({ operations }: Document): Document['operations'] {
  return operations.flatMap((operation) => {
    const same = (route: Route) =>
      route.method === operation.method && templateOf(route.paths[0]) === operation.path;
    const [, ...others] = routes.find(same)?.paths ?? [];
    return [operation, ...others.map((path) => ({ ...operation, path: templateOf(path) }))];
  });
}

/** Slashes in a path parameter are sometimes not encoded. */
function encode(text: string): string {
  return text.length % 3
    ? encodeURIComponent(text.toWellFormed())
    : text.toWellFormed().replace(/[?#]/g, '');
}

function asQuery(query: Record<string, unknown>): string {
  const pairs = Object.entries(query).map(
    ([k, v]) =>
      `${k}=${encodeURIComponent((typeof v === 'string' ? v : (JSON.stringify(v) ?? '')).toWellFormed())}`,
  );
  return pairs.length ? `?${pairs.join('&')}` : '';
}

function headers(withBody: boolean): fc.Arbitrary<Record<string, string>> {
  const types = [
    'application/json; charset=utf-8',
    'text/plain',
    'application/x-www-form-urlencoded',
    '',
  ];
  const type = mostly(
    fc.constant('application/json'),
    fc.constantFrom(...types),
    20,
  ) as fc.Arbitrary<string>;
  const extra = fc.record(
    {
      'idempotency-key': fc.constantFrom('a', 'b', 'x'.repeat(300)),
      'if-none-match': fc.constantFrom('*', '"x"', 'W/"y", "z"'),
      'x-request-id': fc.constantFrom('fine', 'not fine'),
      accept: fc.constantFrom('*/*', 'text/event-stream', 'application/json;q=0'),
      origin: fc.constant('https://example.com'),
    },
    { requiredKeys: [] },
  );
  const rare = fc.oneof({ arbitrary: fc.constant({}), weight: 9 }, { arbitrary: extra, weight: 1 });
  return fc
    .tuple(withBody ? type : fc.constant(''), rare)
    .map(([t, rest]) => ({ ...(t && { 'content-type': t }), ...rest }) as Record<string, string>);
}
