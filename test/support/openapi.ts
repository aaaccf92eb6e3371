/** Checks answers against the server's own OpenAPI document. */
import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js';
import formats from 'ajv-formats';
import type { JsonSchema } from './fuzz/values.ts';
import type { Client } from './harness.ts';

type Parameter = {
  name: string;
  in: 'path' | 'query' | 'header';
  required?: boolean;
  schema: JsonSchema;
};
export type Operation = {
  method: string;
  path: string;
  parameters: Parameter[];
  body?: JsonSchema;
};
export type Reply = { status: number; headers: object; text: string };

export type Document = {
  operations: Operation[];
  resolve(ref: string): JsonSchema;
  /** The error in an answer: an undocumented status, or a body that does not match its schema. Unknown paths: none. */
  problems(method: string, path: string, reply: Reply): string[];
};

type Json = Record<string, unknown>;

const BASE = 'https://loam.invalid/openapi.json';
const METHODS = ['get', 'post', 'put', 'patch', 'delete'];

export async function openDocument(client: Client): Promise<Document> {
  const { body: document } = await client.get('/openapi.json');
  const ajv = new Ajv2020({ strict: false, allErrors: true });
  formats.default(ajv);
  ajv.addSchema(document, BASE);
  const validators = new Map<string, ValidateFunction>();

  const resolve = (ref: string) => at(document, pointer(ref));
  const follow = <T>(value: T): T =>
    (value as { $ref?: string })?.$ref ? (resolve((value as { $ref: string }).$ref) as T) : value;
  const operations: Operation[] = Object.entries<Record<string, unknown>>(document.paths).flatMap(
    ([path, item]) =>
      METHODS.filter((method) => item[method]).map((method) => {
        const { parameters = [], requestBody } = item[method] as {
          parameters?: Parameter[];
          requestBody?: never;
        };
        const body = (
          follow(requestBody) as { content: Record<string, { schema: JsonSchema }> } | undefined
        )?.content;
        return {
          method: method.toUpperCase(),
          path,
          parameters: [
            ...((item as { parameters?: Parameter[] }).parameters ?? []),
            ...parameters,
          ].map(follow),
          ...(body && { body: body['application/json']?.schema ?? {} }),
        };
      }),
  );
  // A stream is a separate operation, at the second path of its route.
  const isStream = ({ path }: Operation) =>
    Boolean(document.paths[path].get?.responses[200]?.content?.['text/event-stream']);
  // A final `{path}` or `{revision}` may contain slashes.
  const matchers = operations.map((operation) => ({
    operation,
    pattern: new RegExp(
      `^${operation.path.replace(/\{(path|revision)\}$/, '.*').replace(/\{[^}]+\}/g, '[^/]+')}$`,
    ),
  }));

  return {
    operations,
    resolve,
    problems(method, path, { status, headers, text }) {
      const [type = ''] = String((headers as Json)['content-type'] ?? '').split(';');
      const streams = type === 'text/event-stream';
      const plain = (path.split('?')[0] as string).replace(
        /^(?!\/auth)/,
        streams ? '/auth/v1' : '',
      );
      const found = matchers.find(
        ({ operation, pattern }) =>
          operation.method === method && pattern.test(plain) && isStream(operation) === streams,
      );
      if (!found || status === 405) return [];
      const where = [
        'paths',
        found.operation.path,
        method.toLowerCase(),
        'responses',
        String(status),
      ];
      const response = follow(at(document, where)) as
        | { headers?: object; content?: Record<string, { schema?: object }> }
        | undefined;
      if (!response) return status === 404 || status === 304 ? [] : [`${status} is not documented`];
      const unknown = Object.keys(document.components.headers).filter(
        (name) => name.toLowerCase() in headers && !(name in (response.headers ?? {})),
      );
      // Errors have the headers of the steps that the request has passed.
      if (status < 400 && unknown.length > 0)
        return [`${status} is documented without ${unknown.join()}`];
      // The document has only the content type of a stream; other tests check the content.
      if (streams) return response.content?.[type] ? [] : [`${status} must not be ${type}`];
      const schema = response.content?.['application/json']?.schema;
      if (!schema) return text === '' || status < 300 ? [] : [`${status} must have no body`];
      const key = `${found.operation.path} ${method} ${status}`;
      const validate = validators.get(key) ?? compile(key, schema);
      return validate(JSON.parse(text))
        ? []
        : (validate.errors ?? []).map((e) => `${e.instancePath} ${e.message}`);
    },
  };

  /** References in the part point into the document. */
  function compile(key: string, schema: object): ValidateFunction {
    const validate = ajv.compile(
      JSON.parse(JSON.stringify(schema).replaceAll('"#/', `"${BASE}#/`)),
    );
    validators.set(key, validate);
    return validate;
  }
}

function pointer(ref: string): string[] {
  return ref
    .replace(/^#\//, '')
    .split('/')
    .map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'));
}

function at(root: unknown, path: string[]): JsonSchema {
  return path.reduce<unknown>(
    (value, key) => (value as Record<string, unknown> | undefined)?.[key],
    root,
  ) as JsonSchema;
}
