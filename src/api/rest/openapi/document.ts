/** The OpenAPI document, written from the table of routes and their operations. */

import type { Urls } from '../../../base/urls.ts';
import { version } from '../../http/diagnostics.ts';
import type { Endpoint } from '../facade.ts';
import type { Operation, Parameter } from '../operations.ts';
import { placeOf } from '../parameters.ts';
import type { Route } from '../routes.ts';
import {
  ERROR_SCHEMAS,
  errorAnswers,
  HEADERS,
  type Json,
  sharedErrors,
  success,
} from './answers.ts';
import { downloads } from './downloads.ts';
import { exampleFor } from './examples.ts';
import { type JsonSchema, parameterSchema } from './schemas.ts';
import { STREAM_SCHEMAS, streamed } from './streams.ts';
import { webhooks } from './webhooks.ts';

const ABOUT = `Git repositories, batch compute jobs, webhooks, and the tokens and keys to reach them.

Everything here, and more, is in GraphQL at \`/graphql\` too. Bodies and answers are JSON; times are
ISO 8601 in UTC. A parameter of another type than documented is refused with 400, and so is a body field that
is not documented.

Every path can also answer 405 (it does not have that method), 408 (the headers or the body came too slowly) and
431 (the request line and headers are longer than 16 KiB), each with the same body as other errors.`;

const TAGS: Record<Route['tag'], string> = {
  Repositories: 'Create, read, rename, transfer and delete repositories.',
  Jobs: 'Run a command to completion, follow its log, fetch what it made.',
  Webhooks: 'Be told of events at an HTTPS endpoint, and see what was sent there.',
  'Tokens and keys': 'Credentials for people and for programs.',
  Diagnostics: 'Is it up, which one is it, and who am I?',
};

export function openApiDocument(endpoints: readonly Endpoint[], urls: Urls): Json {
  const schemas = new Map(Object.entries({ ...ERROR_SCHEMAS, ...STREAM_SCHEMAS }));
  const paths: Record<string, Json> = {};
  for (const { route, operation } of endpoints) {
    const [path, alternative] = route.paths.map(templateOf) as [string, string?];
    const described = describe(route, operation, schemas);
    paths[path] = { ...paths[path], [route.method.toLowerCase()]: described };
    if (route.streamedBy && alternative) paths[alternative] = { get: streamed(route, described) };
  }
  return {
    openapi: '3.1.0',
    info: { title: 'Loam', version: version.build, description: ABOUT },
    servers: [{ url: urls.base }],
    tags: Object.entries(TAGS).map(([name, description]) => ({ name, description })),
    security: [{ token: [] }, { apiKey: [] }],
    paths: { ...paths, ...downloads(urls) },
    webhooks: webhooks(endpoints, schemas),
    components: {
      schemas: Object.fromEntries(schemas),
      responses: sharedErrors(endpoints.map(({ route }) => route)),
      headers: HEADERS,
      parameters: REQUEST_HEADERS,
      securitySchemes: {
        token: {
          type: 'http',
          scheme: 'bearer',
          description: 'A personal access token: `Authorization: Bearer loam_pat_…`',
        },
        apiKey: {
          type: 'apiKey',
          in: 'header',
          name: 'Authorization',
          description: 'An API key: `Authorization: API-Key key_name$key_secret`',
        },
      },
    },
  };
}

/** `{path*}` is `{path}`: OpenAPI cannot describe a parameter with slashes in it. */
export function templateOf(path: string): string {
  return path.replaceAll('*}', '}');
}

function describe(route: Route, operation: Operation, schemas: Map<string, JsonSchema>): Json {
  const body = operation.parameters.filter(({ name }) => placeOf(route, name) === 'body');
  const also = route.paths.slice(1).map((path) => `\`${templateOf(path)}\``);
  const description = [
    operation.description,
    also.length > 0 ? `Also at ${also.join(', ')}.` : '',
  ].filter(Boolean);
  return {
    operationId: operation.name,
    tags: [route.tag],
    summary: operation.summary,
    ...(description.length > 0 && { description: description.join('\n\n') }),
    ...(route.public && { security: [] }),
    parameters: [
      ...operation.parameters
        .filter((p) => !body.includes(p))
        .map((parameter) => ({
          name: parameter.name,
          in: placeOf(route, parameter.name),
          required: placeOf(route, parameter.name) === 'path' || parameter.required,
          description: wordsOf(parameter, placeOf(route, parameter.name)),
          schema: parameterSchema(parameter, schemas),
          // Its other value is an operation of its own, so that no answer is of two types.
          ...(parameter.name === route.streamedBy && {
            description: 'False, the default. With true this is `streamJobLogs`.',
            schema: { type: 'boolean', enum: [false], default: false },
          }),
          ...(placeOf(route, parameter.name) === 'path' && {
            example: exampleFor(operation.name, parameter.name),
          }),
        })),
      ...headersTaken(route).map((name) => ({ $ref: `#/components/parameters/${name}` })),
    ],
    ...(body.length > 0 && {
      requestBody: {
        required: body.some(({ required }) => required),
        content: {
          'application/json': { schema: bodySchema(body, schemas), example: bodyExample() },
        },
      },
    }),
    responses: {
      ...success(route, operation, schemas),
      ...errorAnswers(route),
    },
  };

  function bodyExample() {
    const entries = body.map(({ name }) => [name, exampleFor(operation.name, name)] as const);
    return Object.fromEntries(entries.filter(([, value]) => value !== undefined));
  }
}

/** For parameters that in GraphQL may be left out, or stand beside others: not so in a path. */
const PATH_WORDS: Record<string, string> = {
  namespace: 'The name of the user or organization that owns it.',
  id: 'The id of the repository (`repo_…`), not its name.',
  path: 'Where it is in the repository; may contain slashes.',
  revision: 'A branch, a tag or the id of a commit; may contain slashes.',
};

function wordsOf({ name, description }: Parameter, place: string): string | undefined {
  return (place === 'path' && PATH_WORDS[name]) || description;
}

function bodySchema(body: Operation['parameters'], schemas: Map<string, JsonSchema>): JsonSchema {
  const required = body.filter((p) => p.required).map((p) => p.name);
  return {
    type: 'object',
    ...(required.length > 0 && { required }),
    properties: Object.fromEntries(
      body.map((p) => [
        p.name,
        { ...parameterSchema(p, schemas), ...(p.description && { description: p.description }) },
      ]),
    ),
    additionalProperties: false,
  };
}

function headersTaken({ method }: Route): string[] {
  if (method === 'POST') return ['IdempotencyKey'];
  return method === 'GET' ? ['IfNoneMatch'] : [];
}

const taken = (name: string, description: string, schema: JsonSchema) => ({
  name,
  in: 'header',
  required: false,
  description,
  schema,
});
const REQUEST_HEADERS = {
  IdempotencyKey: taken(
    'Idempotency-Key',
    'Makes a repeat safe: for 24 hours the same key with the same body replays the first answer.',
    { type: 'string', minLength: 1, maxLength: 255 },
  ),
  IfNoneMatch: taken('If-None-Match', 'An ETag: 304 when it is still current.', { type: 'string' }),
  LastEventId: taken('Last-Event-ID', 'Resumes a stream after this event.', { type: 'string' }),
};
