/** The OpenAPI document, written from the table of routes and their operations. */
import { STATUS_CODES } from 'node:http';
import { version } from '../../diagnostics.ts';
import { STATUS } from '../../errors.ts';
import type { Endpoint } from '../facade.ts';
import type { Operation } from '../operations.ts';
import { placeOf } from '../parameters.ts';
import { type ErrorStatus, errorsOf, type Route } from '../routes.ts';
import { exampleFor, exampleOf } from './examples.ts';
import { type JsonSchema, parameterSchema, schemaOf } from './schemas.ts';

type Json = { [key: string]: unknown };

const ABOUT = `Git repositories, batch compute jobs, and the tokens and keys to reach them.

Everything here, and more, is in GraphQL at \`/graphql\` too. Bodies and answers are JSON; times are
ISO 8601 in UTC. A parameter of another type than documented, and a body field that is not documented, are
refused with 400.`;

const TAGS: Record<Route['tag'], string> = {
  Repositories: 'Create, read, rename, transfer and delete repositories.',
  Jobs: 'Run a command to completion, follow its log, fetch what it made.',
  'Tokens and keys': 'Credentials for people and for programs.',
  Diagnostics: 'Is it up, which one is it, and who am I?',
};

export function openApiDocument(endpoints: readonly Endpoint[], baseUrl: string): Json {
  const schemas = new Map<string, JsonSchema>([
    ['Error', ERROR],
    ['RateLimitError', LIMITED],
  ]);
  const paths: Record<string, Json> = {};
  for (const { route, operation } of endpoints) {
    const path = templateOf(route.paths[0]);
    paths[path] = {
      ...paths[path],
      [route.method.toLowerCase()]: describe(route, operation, schemas),
    };
  }
  const used = new Set(endpoints.flatMap(({ route }) => errorsOf(route)));
  return {
    openapi: '3.1.0',
    info: { title: 'Loam', version: version.build, description: ABOUT },
    servers: [{ url: baseUrl }],
    tags: Object.entries(TAGS).map(([name, description]) => ({ name, description })),
    security: [{ token: [] }, { apiKey: [] }],
    paths,
    components: {
      schemas: Object.fromEntries(schemas),
      responses: Object.fromEntries(
        [...used].map((status) => [nameOf(status), errorAnswer(status)]),
      ),
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

/** `{path*}` is `{path}`: OpenAPI has no word for a parameter with slashes in it. */
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
          description: parameter.description ?? PATH_WORDS[parameter.name],
          schema: parameterSchema(parameter, schemas),
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
      ...Object.fromEntries(
        errorsOf(route).map((status) => [
          String(status),
          { $ref: `#/components/responses/${nameOf(status)}` },
        ]),
      ),
    },
  };

  function bodyExample() {
    const entries = body.map(({ name }) => [name, exampleFor(operation.name, name)] as const);
    return Object.fromEntries(entries.filter(([, value]) => value !== undefined));
  }
}

const PATH_WORDS: Record<string, string> = {
  namespace: 'The owning user or organization.',
  id: 'The id of the repository.',
  name: 'Its name.',
  path: 'May contain slashes.',
  revision: 'A branch, a tag or the SHA of a commit; may contain slashes.',
};

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

function success(route: Route, operation: Operation, schemas: Map<string, JsonSchema>): Json {
  const { status, method, trouble, streamedBy } = route;
  if (status === 204) return { 204: { description: 'Done; no body.', headers: headersOf() } };
  const type = operation.answer.type;
  const json = { schema: schemaOf(type, schemas), example: exampleOf(type) };
  const isPage = operation.parameters.some(({ name }) => name === 'page');
  return {
    [status]: {
      description: STATUS_CODES[status],
      headers: headersOf(...(method === 'GET' ? ['ETag'] : []), ...(isPage ? ['Link'] : [])),
      content: {
        'application/json': json,
        ...(streamedBy && { 'text/event-stream': { schema: { type: 'string' } } }),
      },
    },
    ...(method === 'GET' && {
      304: {
        description: 'What `If-None-Match` names is still current.',
        headers: headersOf('ETag'),
      },
    }),
    ...(trouble && {
      [trouble.status]: {
        description: 'In trouble.',
        headers: headersOf(),
        content: { 'application/json': { schema: json.schema, example: { status: 'degraded' } } },
      },
    }),
  };
}

function headersTaken({ method, streamedBy }: Route): string[] {
  return [
    ...(method === 'POST' ? ['IdempotencyKey'] : []),
    ...(method === 'GET' ? ['IfNoneMatch'] : []),
    ...(streamedBy ? ['LastEventId'] : []),
  ];
}

const EVERYWHERE = [
  'X-Request-Id',
  'X-RateLimit-Limit',
  'X-RateLimit-Remaining',
  'X-RateLimit-Reset',
];

function headersOf(...more: string[]): Json {
  return Object.fromEntries(
    [...EVERYWHERE, ...more].map((name) => [name, { $ref: `#/components/headers/${name}` }]),
  );
}

const header = (description: string, schema: JsonSchema) => ({ description, schema });
const HEADERS = {
  'X-Request-Id': header('Of this request; also in the error body and in our log.', {
    type: 'string',
  }),
  'X-RateLimit-Limit': header('Requests a minute.', { type: 'integer' }),
  'X-RateLimit-Remaining': header('Of those, left in this minute.', { type: 'integer' }),
  'X-RateLimit-Reset': header('When the minute ends, in epoch seconds.', { type: 'integer' }),
  ETag: header('Of this answer, for `If-None-Match`.', { type: 'string' }),
  Link: header('`first`, `prev`, `next` and `last` page (RFC 8288).', { type: 'string' }),
  'WWW-Authenticate': header('The schemes we take.', { type: 'string' }),
  'Retry-After': header('Seconds.', { type: 'integer' }),
};

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

const ERROR_CODES = Object.keys(STATUS);
const ERROR: JsonSchema = errorSchema({
  request_id: { type: 'string', description: 'Quote it when you ask for help.' },
});
const LIMITED: JsonSchema = errorSchema({
  retry_after: { type: 'integer', minimum: 1, description: 'Seconds.' },
});

function errorSchema(extra: Record<string, JsonSchema>): JsonSchema {
  const properties = {
    code: { type: 'string', enum: ERROR_CODES },
    message: { type: 'string', description: 'For people; begins with the field at fault.' },
    ...extra,
  };
  const error = {
    type: 'object',
    required: Object.keys(properties),
    properties,
    additionalProperties: false,
  };
  return {
    type: 'object',
    required: ['error'],
    properties: { error },
    additionalProperties: false,
  };
}

const ERRORS: Record<ErrorStatus, [code: keyof typeof STATUS, meaning: string, example: string]> = {
  400: ['invalid_request', 'A parameter or the body is wrong.', 'per_page: must be from 1 to 100'],
  401: ['authentication_failed', 'No credentials, or wrong ones.', 'Credentials are required'],
  403: [
    'permission_denied',
    'You may not do this, or a quota is reached.',
    'You are not allowed to do this',
  ],
  404: ['not_found', 'There is no such thing.', 'Repository not found'],
  409: [
    'already_exists',
    'The name is taken, or the state does not allow it.',
    'name: is already taken',
  ],
  422: [
    'invalid_request',
    'Each value is allowed, their combination is not.',
    'memory_gb: is too much for 2 vCPUs',
  ],
  429: ['rate_limit_exceeded', 'Too many requests.', 'Too many requests'],
  500: ['internal_error', 'Something went wrong on our side.', 'Something went wrong on our side'],
};

function nameOf(status: ErrorStatus): string {
  return (STATUS_CODES[status] as string).replaceAll(' ', '');
}

function errorAnswer(status: ErrorStatus): Json {
  const [code, description, message] = ERRORS[status];
  const isLimit = status === 429;
  const extra = isLimit
    ? { retry_after: 12 }
    : { request_id: 'f2b1c7d0-6c7e-4b52-9d55-0c1c8e4f9a10' };
  const more = status === 401 ? ['WWW-Authenticate'] : isLimit ? ['Retry-After'] : [];
  return {
    description,
    headers: headersOf(...more),
    content: {
      'application/json': {
        schema: { $ref: `#/components/schemas/${isLimit ? 'RateLimitError' : 'Error'}` },
        example: { error: { code, message, ...extra } },
      },
    },
  };
}
