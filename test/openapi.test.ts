/** The document itself. That answers are as it says is for `rest.test.ts` and `fuzz/rest.test.ts`. */
import { Validator } from '@seriousme/openapi-schema-validator';
import { Ajv2020 } from 'ajv/dist/2020.js';
import formats from 'ajv-formats';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { parse } from 'yaml';
import { templateOf } from '../src/rest/openapi/document.ts';
import { errorsOf, routes } from '../src/rest/routes.ts';
import { startApp, type TestApp } from './harness.ts';

type Media = { schema: object; example?: unknown };
type Described = {
  operationId: string;
  summary: string;
  security?: object[];
  parameters: { name?: string; in?: string; schema?: object; example?: unknown }[];
  requestBody?: { content: Record<string, Media> };
  responses: Record<string, { content?: Record<string, Media>; $ref?: string }>;
};

let app: TestApp;
// biome-ignore lint/suspicious/noExplicitAny: it is what is under test.
let document: any;

beforeAll(async () => {
  app = await startApp();
  document = (await app.anonymous.get('/openapi.json')).body;
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

test('every route is in it, with every error, and nothing else is', () => {
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
      ...(route.trouble ? [route.trouble.status] : []),
    ],
    public: route.public === true,
  }));
  const byRoute = (a: { route: string }, b: { route: string }) => a.route.localeCompare(b.route);
  expect(described.sort(byRoute)).toEqual(expected.sort(byRoute));
});

test('its examples are valid, and there is one of every body', () => {
  const ajv = new Ajv2020({ strict: false, allErrors: true });
  formats.default(ajv);
  ajv.addSchema(document, 'https://loam.invalid/openapi.json');
  const here = (schema: object) =>
    JSON.parse(JSON.stringify(schema).replaceAll('"#/', '"https://loam.invalid/openapi.json#/'));
  const check = (where: string, { schema, example }: Media) => {
    expect(example, where).toBeDefined();
    const validate = ajv.compile(here(schema));
    validate(example);
    expect(validate.errors, `${where}: ${JSON.stringify(example)}`).toBeNull();
  };

  for (const [path, item] of Object.entries<Record<string, Described>>(document.paths))
    for (const [method, operation] of Object.entries(item)) {
      const where = `${method} ${path}`;
      for (const { name, schema, example } of operation.parameters)
        if (example !== undefined) check(`${where} ${name}`, { schema: schema ?? {}, example });
      const body = operation.requestBody?.content['application/json'];
      if (body) check(`${where} body`, body);
      for (const [status, { content }] of Object.entries(operation.responses))
        if (content?.['application/json'])
          check(`${where} ${status}`, content['application/json'] as Media);
    }
  for (const [name, { content }] of Object.entries<{ content: Record<string, Media> }>(
    document.components.responses,
  ))
    check(name, content['application/json'] as Media);
});

test('the reference works offline, under a policy that lets nothing else in', async () => {
  const { status, text, headers } = await app.anonymous.get('/docs');
  expect(status).toBe(200);
  expect(headers.get('content-security-policy')).toContain("default-src 'none'");
  const loaded = [...text.matchAll(/(?:src|href)="([^"]+)"/g)].map((match) => match[1] as string);
  expect(loaded.length).toBeGreaterThan(2);
  for (const path of loaded) {
    expect(path).toMatch(/^\/docs\//);
    expect((await app.anonymous.get(path)).status, path).toBe(200);
  }
});
