/**
 * Walks the route table: each route succeeds at each of its paths with the documented fields, and gives each of its
 * documented errors. Every answer is also checked against the OpenAPI document.
 */
import { beforeAll, describe, expect, test } from 'vitest';
import { templateOf } from '../../../src/api/rest/openapi/document.ts';
import { errorsOf, type Route, routes } from '../../../src/api/rest/routes.ts';
import { openWire } from '../fuzz/wire.ts';
import type { Answer, Client, Loam } from '../harness.ts';
import { type Document, type Operation, openDocument } from '../openapi.ts';
import { type Call, type Case, cases, createWorld, type World } from './cases.ts';
import * as fields from './fields.ts';
import { type Schema, wrongTexts, wrongValues } from './wrong.ts';

const CODES: Record<number, string[]> = {
  400: ['invalid_request'],
  401: ['authentication_failed'],
  403: ['permission_denied'],
  404: ['not_found'],
  409: ['already_exists', 'conflict'],
  422: ['invalid_request'],
  429: ['rate_limit_exceeded'],
};

export type Walked = {
  loam: Loam;
  /** A new user with a limit of one request per minute. */
  limited(username: string): Promise<Client>;
};

let loam: Loam;
let limited: Walked['limited'];
let world: World;
let document: Document;

/** Declares the tests of the walk. `open` is called before the first of them; the caller closes what it opened. */
export function walkRoutes(open: () => Promise<Walked>): void {
  beforeAll(async () => {
    ({ loam, limited } = await open());
    world = await createWorld(loam);
    document = await openDocument(loam.anonymous);
  });

  test('every route has a case, and every case has a route', () => {
    expect(Object.keys(cases).sort()).toEqual(routes.map((r) => r.operation).sort());
  });

  describe.each(routes.map((route) => [`${route.method} ${route.paths[0]}`, route] as const))(
    '%s',
    (_title, route) => {
      const of = cases[route.operation] as Case;

      test.each(route.paths)('succeeds at %s', async (path) => {
        const call = await of.call(world);
        const answer = await send(route, call, path);
        expect(answer.status, answer.text).toBe(of.status);
        expect(answer.headers.get('x-ratelimit-limit')).toMatch(/^\d+$/);
        if (of.status === 204) expect(answer.text).toBe('');
        else if (typeof of.body === 'function') of.body(answer.body as never, call);
        else expect(answer.body).toEqual(of.body);
        if (route.method === 'GET') await answersHeadAndNotModified(route, call, path, answer);
      });

      test('names each invalid parameter', async () => {
        const call = await of.call(world);
        const { parameters, body } = document.operations.find(
          ({ method, path }) => method === route.method && path === templateOf(route.paths[0]),
        ) as Operation;
        const whole = (schema: Schema): Schema =>
          schema.$ref ? { ...document.resolve(schema.$ref), ...schema } : schema;
        const refuses = async (name: string, change: Partial<Call>) => {
          const answer = await send(route, { ...call, ...change });
          expect([answer.status, answer.body.error.message]).toEqual([
            400,
            expect.stringMatching(new RegExp(`^${name}: `)),
          ]);
        };
        for (const { name, in: place, schema } of parameters)
          if (place === 'query')
            for (const value of wrongTexts(whole(schema)))
              await refuses(name, { query: { ...call.query, [name]: value } });
        for (const [name, schema] of Object.entries(body?.properties ?? {})) {
          for (const value of wrongValues(whole(schema)))
            await refuses(name, { json: { ...call.json, [name]: value } });
          if (body?.required?.includes(name))
            await refuses(name, { json: { ...call.json, [name]: undefined } });
        }
        if (!body) return;
        const unknown = await send(route, { ...call, json: { ...call.json, nmae: 1, __proto: 1 } });
        expect([unknown.status, unknown.body.error.message]).toEqual([
          400,
          'Unknown body fields: nmae, __proto',
        ]);
      });

      // Server errors are tested elsewhere (faults.test.ts, database-loss.test.ts).
      test.each(errorsOf(route).filter((status) => status < 500))('gives %i', async (status) => {
        const answer = await failing(route, of, status);
        expect(answer.status, answer.text).toBe(status);
        const { error } = answer.body;
        expect(CODES[status]).toContain(error.code);
        const isOwn = status === 409 && of.errors?.[409];
        if (isOwn) expect([error.code, error.message]).toEqual(route.conflict);
        expect(error).toEqual({
          code: error.code,
          message: expect.any(String),
          ...(status === 429
            ? { retry_after: Number(answer.headers.get('retry-after')) }
            : { request_id: answer.headers.get('x-request-id') }),
        });
        if (status === 401) expect(answer.headers.get('www-authenticate')).toContain('Bearer');
      });
    },
  );

  test('fields that a job does not have yet, or that were not requested, are absent', async () => {
    const { alice, unique } = world;
    const name = unique();
    // No worker has this hardware, so the job stays queued.
    const json = { name, command: 'sleep 60', image: 'busybox', gpu: 'T4' };
    const created = await alice.post('/auth/v1/seed/alice/jobs', json);
    const { image } = json;
    const imageOnly = { image, repo: null, branch: null, commit_sha: null, output_path: null };
    expect(created.body).toEqual({ ...fields.createdJob, ...imageOnly, env: {} });
    const { body } = await alice.get(`/alice/job/${name}`);
    expect(body).toEqual({ ...fields.job, ...imageOnly });
  });
}

async function failing(route: Route, of: Case, status: number): Promise<Answer> {
  if (status === 429) return pastTheRate(route, of);
  const call = await of.call(world);
  if (status === 400) return sendBody(route, call, '["not an object"]');
  if (status === 401) return send(route, { ...call, as: loam.anonymous });
  const change = of.errors?.[status as keyof typeof of.errors];
  if (change) return send(route, { ...call, ...(await change(world, call)) });
  // The remaining errors are those of `Idempotency-Key`, which every POST accepts.
  const own = [...(route.errors ?? []), ...(route.conflict ? [409] : [])];
  expect(own, 'a case for each error of the route').not.toContain(status);
  const key = world.unique();
  const once = () => send(route, call, undefined, { 'Idempotency-Key': key });
  await once();
  if (status === 422) call.json = { ...call.json, other: true };
  // As if the first request were still running.
  const running = `update idempotent_requests set status = null where key = $1`;
  if (status === 409) await loam.pool.query(running, [key]);
  return once();
}

async function pastTheRate(route: Route, of: Case): Promise<Answer> {
  const carol = await limited(`carol-${world.unique()}`);
  // Each server counts separately.
  while ((await carol.get('/auth/v1/whoami')).status !== 429);
  return send(route, { ...(await of.call(world)), as: carol });
}

async function send(
  { method, paths }: Route,
  { as, params, query, json }: Call,
  path: string = paths[0],
  headers: Record<string, string> = {},
): Promise<Answer> {
  const url = pathOf(path, params);
  const search = query ? `?${new URLSearchParams(query)}` : '';
  const answer = await as.request(method, url + search, { json, headers });
  const reply = { ...answer, headers: Object.fromEntries(answer.headers) };
  expect(document.problems(method, url, reply), answer.text).toEqual([]);
  return answer;
}

/** Any body with any method: `fetch` sends none with GET. */
async function sendBody(route: Route, { as, params }: Call, body: string): Promise<Answer> {
  using wire = openWire(loam.base);
  const path = pathOf(route.paths[0], params);
  const headers = { 'content-type': 'application/json' };
  const reply = await wire.send(as, { method: route.method, path, headers, body });
  expect(document.problems(route.method, path, reply), reply.text).toEqual([]);
  const given = new Headers(reply.headers as Record<string, string>);
  return { ...reply, headers: given, body: JSON.parse(reply.text) };
}

function pathOf(template: string, params: Call['params']): string {
  return template.replaceAll(/\{(\w+)\*?\}/g, (_, name) => encodeURIComponent(params[name] ?? ''));
}

async function answersHeadAndNotModified(
  route: Route,
  call: Call,
  path: string,
  { headers, text }: Answer,
): Promise<void> {
  const head = await send({ ...route, method: 'HEAD' as never }, call, path);
  expect([head.status, head.text]).toEqual([200, '']);
  expect(head.headers.get('content-length')).toBe(String(Buffer.byteLength(text)));
  const conditional = (etag: string | null) =>
    send(route, call, path, { 'If-None-Match': `"x", ${etag}` });
  let etag = headers.get('etag');
  let again = await conditional(etag);
  if (again.status === 200) {
    // A signed link in the answer changes if a minute has ended in between (signing.ts).
    etag = again.headers.get('etag');
    again = await conditional(etag);
  }
  expect([again.status, again.text]).toEqual([304, '']);
  expect(again.headers.get('etag')).toBe(etag);
}
