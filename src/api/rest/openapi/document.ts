/** Builds the OpenAPI document from the table of routes and their operations. */
import type { Catalogue } from '../../../base/hardware.ts';
import type { Urls } from '../../../base/urls.ts';
import { version } from '../../http/diagnostics.ts';
import type { Endpoint } from '../endpoints.ts';
import type { Operation, Parameter } from '../operations.ts';
import { locationOf } from '../parameters.ts';
import type { Route } from '../routes.ts';
import { downloadPaths } from './downloads.ts';
import { exampleFor } from './examples.ts';
import {
  ERROR_SCHEMAS,
  errorResponses,
  HEADERS,
  type Json,
  sharedErrorResponses,
  successResponses,
} from './responses.ts';
import { catalogueLimits, catalogueTypes, type JsonSchema, parameterSchema } from './schemas.ts';
import { STREAM_SCHEMAS, streamOperation } from './streams.ts';
import { webhookOperations } from './webhooks.ts';

const DESCRIPTION = `Git repositories, batch compute jobs, webhooks, and the credentials to use them.

GraphQL at \`/graphql\` offers all of this and more. Request and response bodies are JSON; times are ISO 8601 in UTC.
A parameter of the wrong type and an undocumented body field give 400.

Every path can also respond with 405 (the path does not support the method), 408 (the headers or the body arrived too
slowly) and 431 (the request line and headers are longer than 16 KiB), with the same body as other errors.`;

const TAGS: Record<Route['tag'], string> = {
  Repositories: 'Create, read, rename, transfer and delete repositories.',
  Jobs: 'Run a command to completion, follow its log, and download its artifacts.',
  Webhooks: 'Send events to an HTTPS endpoint, and list the deliveries.',
  'Tokens and keys': 'Credentials for people and for programs.',
  Diagnostics: 'Health, version, and the identity of the caller.',
};

/** @param offer what jobs may request */
export function openApiDocument(
  endpoints: readonly Endpoint[],
  urls: Urls,
  offer: Catalogue,
): Json {
  const schemas = new Map<string, JsonSchema>(
    Object.entries({ ...ERROR_SCHEMAS, ...STREAM_SCHEMAS, ...catalogueTypes(offer) }),
  );
  const limits = catalogueLimits(offer);
  const paths: Record<string, Json> = {};
  for (const { route, operation } of endpoints) {
    const [path, alternative] = route.paths.map(templateOf) as [string, string?];
    const described = describe(route, operation, { schemas, limits });
    paths[path] = { ...paths[path], [route.method.toLowerCase()]: described };
    if (route.streamedBy && alternative)
      paths[alternative] = { get: streamOperation(route, described) };
  }
  return {
    openapi: '3.1.0',
    info: { title: 'Loam', version: version.build, description: DESCRIPTION },
    servers: [{ url: urls.base }],
    tags: Object.entries(TAGS).map(([name, description]) => ({ name, description })),
    security: [{ token: [] }, { apiKey: [] }],
    paths: { ...paths, ...downloadPaths(urls) },
    webhooks: webhookOperations(endpoints, schemas),
    components: {
      schemas: Object.fromEntries(schemas),
      responses: sharedErrorResponses(endpoints.map(({ route }) => route)),
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

/** `{path*}` becomes `{path}`: OpenAPI cannot describe a parameter that contains slashes. */
export function templateOf(path: string): string {
  return path.replaceAll('*}', '}');
}

type Shared = {
  /** Named types, to which the operations add theirs. */
  schemas: Map<string, JsonSchema>;
  limits: ReturnType<typeof catalogueLimits>;
};

function describe(route: Route, operation: Operation, { schemas, limits }: Shared): Json {
  const body = operation.parameters.filter(({ name }) => locationOf(route, name) === 'body');
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
          in: locationOf(route, parameter.name),
          required: locationOf(route, parameter.name) === 'path' || parameter.required,
          description: descriptionOf(parameter, locationOf(route, parameter.name)),
          schema: parameterSchema(parameter, schemas, limits),
          // The value true is a separate operation, so that each response has one type.
          ...(parameter.name === route.streamedBy && {
            description: 'Must be false. With true, this is the operation `streamJobLogs`.',
            schema: { type: 'boolean', enum: [false], default: false },
          }),
          ...(locationOf(route, parameter.name) === 'path' && {
            example: exampleFor(operation.name, parameter.name),
          }),
        })),
      ...requestHeadersOf(route).map((name) => ({ $ref: `#/components/parameters/${name}` })),
    ],
    ...(body.length > 0 && {
      requestBody: {
        required: body.some(({ required }) => required),
        content: {
          'application/json': {
            schema: bodySchema(body, { schemas, limits }),
            example: bodyExample(),
          },
        },
      },
    }),
    responses: {
      ...successResponses(route, operation, schemas),
      ...errorResponses(route),
    },
  };

  function bodyExample() {
    const entries = body.map(({ name }) => [name, exampleFor(operation.name, name)] as const);
    return Object.fromEntries(entries.filter(([, value]) => value !== undefined));
  }
}

/** Descriptions of path parameters whose GraphQL description mentions a default or other arguments. */
const PATH_DESCRIPTIONS: Record<string, string> = {
  namespace: 'The name of the owning user or organization.',
  id: 'The id of the repository (`repo_…`), not its name.',
  path: 'The path in the repository; may contain slashes.',
  revision: 'A branch, a tag or the id of a commit; may contain slashes.',
};

function descriptionOf({ name, description }: Parameter, location: string): string | undefined {
  return (location === 'path' && PATH_DESCRIPTIONS[name]) || description;
}

function bodySchema(body: Operation['parameters'], { schemas, limits }: Shared): JsonSchema {
  const required = body.filter((p) => p.required).map((p) => p.name);
  return {
    type: 'object',
    ...(required.length > 0 && { required }),
    properties: Object.fromEntries(
      body.map((p) => [
        p.name,
        {
          ...parameterSchema(p, schemas, limits),
          ...(p.description && { description: p.description }),
        },
      ]),
    ),
    additionalProperties: false,
  };
}

function requestHeadersOf({ method }: Route): string[] {
  if (method === 'POST') return ['IdempotencyKey'];
  return method === 'GET' ? ['IfNoneMatch'] : [];
}

const requestHeader = (name: string, description: string, schema: JsonSchema) => ({
  name,
  in: 'header',
  required: false,
  description,
  schema,
});
const REQUEST_HEADERS = {
  IdempotencyKey: requestHeader(
    'Idempotency-Key',
    'Makes retries safe: for 24 hours the same key with the same body replays the first response.',
    { type: 'string', minLength: 1, maxLength: 255 },
  ),
  IfNoneMatch: requestHeader('If-None-Match', 'An ETag. Gives 304 if it is still current.', {
    type: 'string',
  }),
  LastEventId: requestHeader('Last-Event-ID', 'Resumes a stream after this event.', {
    type: 'string',
  }),
};
