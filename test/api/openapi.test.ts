/** The OpenAPI document. `rest.test.ts` and `fuzz/rest.test.ts` check that responses conform to it. */
import { Validator } from '@seriousme/openapi-schema-validator';
import { Ajv2020 } from 'ajv/dist/2020.js';
import formats from 'ajv-formats';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { parse } from 'yaml';
import { templateOf } from '../../src/api/rest/openapi/document.ts';
import { errorsOf, routes } from '../../src/api/rest/routes.ts';
import { PING, SPECIFIED_TYPES } from '../../src/webhooks/event-types.ts';
import { startApp, type TestApp } from '../support/harness.ts';

type Media = {
  schema: object;
  example?: unknown;
  examples?: Record<string, { value: unknown }>;
};
type Described = {
  operationId: string;
  summary: string;
  security?: object[];
  parameters: { name?: string; in?: string; schema?: object; example?: unknown }[];
  requestBody?: { content: Record<string, Media> };
  responses: Record<string, { content?: Record<string, Media>; headers?: object; $ref?: string }>;
};

let app: TestApp;
// biome-ignore lint/suspicious/noExplicitAny: the document is under test.
let document: any;
let ajv: Ajv2020;

beforeAll(async () => {
  app = await startApp({ config: { runner: 'process' } });
  document = (await app.anonymous.get('/openapi.json')).body;
  ajv = new Ajv2020({ strict: false, allErrors: true });
  formats.default(ajv);
  ajv.addSchema(document, 'https://loam.invalid/openapi.json');
});
afterAll(() => app[Symbol.asyncDispose]());

test('it is valid OpenAPI 3.1', async () => {
  const { valid, errors } = await new Validator().validate(structuredClone(document));
  expect(errors).toBeUndefined();
  expect(valid).toBe(true);
  expect(document.openapi).toMatch(/^3\.1\./);
});

test('it is the same in YAML', async () => {
  const { status, text, headers } = await app.anonymous.get('/openapi.yaml');
  expect([status, headers.get('content-type')]).toEqual([200, 'application/yaml; charset=utf-8']);
  expect(parse(text)).toEqual(document);
});

test('it has every route with all errors, and no others', () => {
  const described = Object.entries<Record<string, Described>>(document.paths).flatMap(
    ([path, item]) =>
      Object.entries(item).map(([method, { operationId, responses, security, summary }]) => {
        expect(summary, operationId).not.toBe('');
        return {
          route: `${method.toUpperCase()} ${path}`,
          operationId,
          statuses: Object.keys(responses).map(Number),
          public: security?.length === 0,
        };
      }),
  );
  const expected = routes.map((route) => ({
    route: `${route.method} ${templateOf(route.paths[0])}`,
    operationId: route.operation,
    statuses: [
      route.status,
      ...(route.method === 'GET' ? [304] : []),
      ...errorsOf(route),
      ...(route.degraded ? [route.degraded.status] : []),
    ],
    public: route.public === true,
  }));
  const beside = [
    ['GET /auth/v1/{namespace}/job/{name}/logs', 'streamJobLogs'],
    ['GET /artifacts/{namespace}/{job_id}/artifacts.tar.gz', 'downloadArtifacts'],
    ['GET /artifacts/{namespace}/{job_id}/files/{path}', 'downloadArtifactFile'],
    ['GET /repository/{id}/blobs/{oid}/{name}', 'downloadFile'],
    ['GET /repository/{id}/large-files/{oid}/{name}', 'downloadLargeFile'],
  ] as const;
  for (const [route, operationId] of beside) {
    const at = described.findIndex((one) => one.route === route);
    expect(described.splice(at, 1)).toMatchObject([{ route, operationId }]);
  }
  const byRoute = (a: { route: string }, b: { route: string }) => a.route.localeCompare(b.route);
  expect(described.sort(byRoute)).toEqual(expected.sort(byRoute));
});

type Example = { where: string; schema: object; value: unknown };

/** Every example in the document, with its schema. */
function examples(): Example[] {
  const found: Example[] = [];
  const media = (where: string, content: Record<string, Media> = {}) => {
    for (const [type, { schema, example, examples: named }] of Object.entries(content)) {
      if (type !== 'application/json') continue;
      const all = named ? Object.values(named).map(({ value }) => value) : [example];
      expect(all.length, where).toBeGreaterThan(0);
      for (const value of all) found.push({ where, schema, value });
    }
  };
  for (const [where, operation] of [...operations(), ...operations(document.webhooks)]) {
    for (const { name, schema = {}, example } of operation.parameters)
      if (example !== undefined) found.push({ where: `${where} ${name}`, schema, value: example });
    media(`${where} body`, operation.requestBody?.content);
    for (const [status, { content }] of Object.entries(operation.responses))
      media(`${where} ${status}`, content);
  }
  for (const [name, { content }] of Object.entries<{ content: Record<string, Media> }>(
    document.components.responses,
  ))
    media(name, content);
  return found;
}

function operations(from = document.paths): [where: string, Described][] {
  return Object.entries<Record<string, Described>>(from).flatMap(([path, item]) =>
    ['get', 'post', 'put', 'patch', 'delete'].flatMap((method) => {
      const operation = item[method];
      return operation
        ? [[`${method.toUpperCase()} ${path}`, operation] as [string, Described]]
        : [];
    }),
  );
}

function errorsIn(schema: object, value: unknown): unknown {
  const here = JSON.parse(
    JSON.stringify(schema).replaceAll('"#/', '"https://loam.invalid/openapi.json#/'),
  );
  const validate = ajv.compile(here);
  validate(value);
  return validate.errors;
}

test('its examples are valid, and every body has one', () => {
  for (const { where, schema, value } of examples()) {
    expect(value, where).toBeDefined();
    expect(errorsIn(schema, value), `${where}: ${JSON.stringify(value)}`).toBeNull();
  }
});

test('its example requests are accepted, and get its example responses', async () => {
  const alice = await app.user('alice');
  await app.admin.gql(
    `mutation {
      createOrganization(input: { name: "acme" }) { __typename }
      setMember(input: { namespace: "acme", username: "alice", role: ADMIN }) { __typename }
    }`,
  );
  const bodyOf = ({ requestBody }: Described) => requestBody?.content['application/json']?.example;
  const withBody = operations().filter(([, operation]) => bodyOf(operation));
  // These first, because the other requests use what they create.
  const order = [
    'createRepository',
    'createJob',
    'createAccessToken',
    'createApiKey',
    'createWebhook',
  ];
  withBody.sort(([, a], [, b]) => rank(a) - rank(b));
  function rank({ operationId }: Described) {
    const at = order.indexOf(operationId);
    return at < 0 ? order.length : at;
  }
  expect(withBody.length).toBeGreaterThan(6);

  let id = '';
  let webhook = '';
  const [, createRepository] = withBody[0] as [string, Described];
  for (const [where, operation] of withBody) {
    const [method = '', template = ''] = where.split(' ');
    if (template.includes('repository/{namespace}/{id}')) {
      // Each request starts with the repository of the examples.
      const base = '/auth/v1/repository/alice';
      await alice.delete(`${base}/${id}`);
      id = (await alice.post(base, bodyOf(createRepository))).body.id;
    }
    const example = (name: string) =>
      operation.parameters.find((parameter) => parameter.name === name)?.example as string;
    const path = template.replaceAll(/\{(\w+)\}/g, (_, name) =>
      name !== 'id' ? example(name) : template.includes('webhooks') ? webhook : id,
    );
    const answer = await alice.request(method, path, { json: bodyOf(operation) });
    const [status = '', response] =
      Object.entries(operation.responses).find(([code]) => code.startsWith('2')) ?? [];
    expect([where, answer.status, answer.text]).toEqual([where, Number(status), answer.text]);
    const media = response?.content?.['application/json'] as Media;
    expect(errorsIn(media.schema, answer.body), where).toBeNull();
    expect(steady(answer.body), where).toEqual(steady(media.example as object));
    if (operation === createRepository) id = answer.body.id;
    if (operation.operationId === 'createWebhook') webhook = answer.body.id;
  }

  // The created objects can be read by the names in the examples.
  for (const [where, { parameters, responses }] of operations()) {
    const ids = parameters.some(({ name }) => name === 'id' || name === 'job_id');
    if (!where.startsWith('GET ') || ids || responses[200]?.content?.['text/event-stream'])
      continue;
    const path = where
      .slice(4)
      .replaceAll(/\{(\w+)\}/g, (_, name) =>
        String(parameters.find((p) => p.name === name)?.example),
      );
    expect([path, (await alice.get(path)).status]).toEqual([path, 200]);
  }
});

/** Replaces values that differ from call to call or depend on the address of the server. */
function steady(answer: object): object {
  const changes = /^(id|sha|commit_sha|token|key|.*_at|.*_url)$/;
  return Object.fromEntries(
    Object.entries(answer).map(([name, value]) => [
      name,
      changes.test(name) ? typeof value : value,
    ]),
  );
}

test('it describes the requests to webhook endpoints, for each event type of REST and for a test', () => {
  type Properties = { properties: Record<string, { items: { enum: string[] } }> };
  const bodyOf = ({ requestBody }: Described) =>
    (requestBody as NonNullable<Described['requestBody']>).content['application/json']
      ?.schema as Properties;
  expect(Object.keys(document.webhooks)).toEqual([...SPECIFIED_TYPES, PING]);
  for (const [where, operation] of operations(document.webhooks)) {
    const fields = ['id', 'type', 'timestamp', 'namespace', 'data'];
    expect(Object.keys(bodyOf(operation).properties), where).toEqual(fields);
    const names = operation.parameters.map(({ name }) => name);
    const signed = ['webhook-signature', 'X-Service-Signature', 'X-Service-Signature-Former'];
    expect(names, where).toEqual(['webhook-id', 'webhook-timestamp', ...signed]);
  }
  for (const [where, operation] of operations()) {
    if (!['createWebhook', 'updateWebhook'].includes(operation.operationId)) continue;
    const { event_types } = bodyOf(operation).properties;
    expect(event_types?.items.enum, where).toEqual([...SPECIFIED_TYPES]);
  }
});

test('no response has two content types, so that generated clients have one type each', () => {
  for (const [where, { responses }] of operations())
    for (const [status, { content = {} }] of Object.entries(responses))
      expect(Object.keys(content).length, `${where} ${status}`).toBeLessThanOrEqual(1);
});

test('the stream and the downloads are as described', async () => {
  const { admin, anonymous } = app;
  await admin.post('/auth/v1/repository/admin', { name: 'work' });
  const command = 'mkdir out; echo hello; head -c 2000 /dev/zero > out/zeros.bin';
  const job = { name: 'made', command, repo: 'admin/work', gpu: 'none', output_path: 'out' };
  const { body: made } = await admin.post('/auth/v1/seed/admin/jobs', job);
  const described = (path: string) => document.paths[path].get as Described;

  const stream = described('/auth/v1/{namespace}/job/{name}/logs');
  const events = async () => {
    const path = '/auth/v1/admin/job/made/logs?stream=true';
    const answer = await admin.get(path, { 'Last-Event-ID': '0' });
    expect([answer.status, answer.headers.get('content-type')]).toEqual([
      200,
      'text/event-stream; charset=utf-8',
    ]);
    return answer.text;
  };
  const example = stream.responses[200]?.content?.['text/event-stream']?.example as string;
  for (const text of [await events(), example]) {
    const seen = new Set<string>();
    for (const [, kind = '', data = ''] of text.matchAll(/event: (\w+)\ndata: (.*)\n/g)) {
      seen.add(kind);
      const schema = `${kind.charAt(0).toUpperCase()}${kind.slice(1)}Event`;
      const ref = { $ref: `#/components/schemas/${schema}` };
      expect(errorsIn(ref, JSON.parse(data)), data).toBeNull();
    }
    expect([...seen].sort()).toEqual(['end', 'log', 'status']);
  }

  const artifacts = `/artifacts/admin/${made.id}`;
  const signed = (await admin.get('/admin/job/made')).body.artifacts.download_url;
  const { body: repository } = await admin.post('/auth/v1/repository/admin', { name: 'blobs' });
  await admin.delete(`/auth/v1/repository/admin/${repository.id}`);
  const calls: [
    template: string,
    path: string,
    headers: object,
    status: number,
    as?: typeof admin,
  ][] = [
    ['/artifacts/{namespace}/{job_id}/artifacts.tar.gz', `${artifacts}/artifacts.tar.gz`, {}, 200],
    ['/artifacts/{namespace}/{job_id}/artifacts.tar.gz', signed, {}, 200, anonymous],
    ['/artifacts/{namespace}/{job_id}/artifacts.tar.gz', signed, { Range: 'bytes=0-9' }, 206],
    ['/artifacts/{namespace}/{job_id}/artifacts.tar.gz', signed, { Range: 'bytes=99999-' }, 416],
    [
      '/artifacts/{namespace}/{job_id}/artifacts.tar.gz',
      `${artifacts}/artifacts.tar.gz`,
      {},
      401,
      anonymous,
    ],
    [
      '/artifacts/{namespace}/{job_id}/artifacts.tar.gz',
      '/artifacts/admin/none/artifacts.tar.gz',
      {},
      404,
    ],
    ['/artifacts/{namespace}/{job_id}/files/{path}', `${artifacts}/files/zeros.bin`, {}, 200],
    ['/artifacts/{namespace}/{job_id}/files/{path}', `${artifacts}/files/none`, {}, 404],
  ];
  for (const [template, path, headers, status, as = admin] of calls) {
    const answer = await as.get(path, headers as Record<string, string>);
    expect([path, answer.status]).toEqual([path, status]);
    const response = described(template).responses[status] as Described['responses'][string];
    expect(Object.keys(response.content ?? {})).toEqual([
      answer.headers.get('content-type')?.split(';')[0],
    ]);
    for (const name of Object.keys(response.headers ?? {}))
      expect(answer.headers.get(name), `${name} of ${path}`).toBeTruthy();
  }
});

test('the reference works offline, under a policy that lets nothing else in', async () => {
  const { status, text, headers } = await app.anonymous.get('/docs/api');
  expect(status).toBe(200);
  expect(headers.get('content-security-policy')).toContain("default-src 'none'");
  const loaded = [...text.matchAll(/<(?:script|link|img)[^>]+(?:src|href)="([^"]+)"/g)].map(
    (match) => match[1] as string,
  );
  expect(loaded.length).toBeGreaterThan(2);
  for (const path of loaded) {
    expect(path).toMatch(/^\/(docs\/|favicon)/);
    expect((await app.anonymous.get(path)).status, path).toBe(200);
  }
});
