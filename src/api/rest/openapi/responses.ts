/** The responses in the OpenAPI document: headers, errors, and the components that routes share. */
import { STATUS_CODES } from 'node:http';
import { HTTP_STATUS } from '../../../base/errors.ts';
import type { Operation } from '../operations.ts';
import { type ErrorStatus, errorsOf, type Route } from '../routes.ts';
import { responseExample } from './examples.ts';
import { type JsonSchema, schemaOf } from './schemas.ts';

export type Json = { [key: string]: unknown };

const header = (description: string, schema: JsonSchema) => ({ description, schema });
const text: JsonSchema = { type: 'string' };
const integer: JsonSchema = { type: 'integer' };

/** `#/components/headers`. */
export const HEADERS = {
  'X-Request-Id': header(
    'The id of the request, as in error bodies and in the log of the server.',
    text,
  ),
  'X-RateLimit-Limit': header('The limit of requests per minute.', integer),
  'X-RateLimit-Remaining': header('The requests left in this minute.', integer),
  'X-RateLimit-Reset': header('When the minute ends, in epoch seconds.', integer),
  ETag: header('The version of this response, for `If-None-Match`.', text),
  Link: header('Links to the `first`, `prev`, `next` and `last` page (RFC 8288).', text),
  'Idempotency-Replayed': header('A replay of the first response for this `Idempotency-Key`.', {
    type: 'string',
    enum: ['true'],
  }),
  'WWW-Authenticate': header('Accepted authentication schemes.', text),
  'Retry-After': header('Retry after this many seconds.', integer),
  'Content-Disposition': header('`attachment`, with the name of the file.', text),
  'Content-Range': header('The range of bytes, and the size of the file.', text),
};

const RATE = ['X-RateLimit-Limit', 'X-RateLimit-Remaining', 'X-RateLimit-Reset'] as const;
type Header = keyof typeof HEADERS;

/** The headers of a response that counts for the rate limit. */
export function countedHeaders(...more: Header[]): Json {
  return uncountedHeaders(...RATE, ...more);
}

/** The headers of a download, which does not count for the rate limit. */
export function uncountedHeaders(...more: Header[]): Json {
  const names: Header[] = ['X-Request-Id', ...more];
  return Object.fromEntries(names.map((name) => [name, { $ref: `#/components/headers/${name}` }]));
}

/** The responses of a route that are not errors. */
export function successResponses(
  route: Route,
  operation: Operation,
  schemas: Map<string, JsonSchema>,
): Json {
  const { status, method, degraded } = route;
  if (status === 204) return { 204: { description: 'Done; no body.', headers: countedHeaders() } };
  const type = operation.response.type;
  const json = { schema: schemaOf(type, schemas), example: responseExample(operation.name, type) };
  const isPage = operation.parameters.some(({ name }) => name === 'page');
  const paged: Header[] = isPage ? ['Link'] : [];
  const own: Header[] = method === 'GET' ? ['ETag', ...paged] : [];
  const replayed: Header[] = method === 'POST' ? ['Idempotency-Replayed'] : [];
  return {
    [status]: {
      description: STATUS_CODES[status],
      headers: countedHeaders(...own, ...replayed),
      content: { 'application/json': json },
    },
    ...(method === 'GET' && { 304: notModified(countedHeaders(...own)) }),
    ...(degraded && {
      [degraded.status]: {
        description: 'Part of the service is unavailable.',
        headers: countedHeaders(),
        content: { 'application/json': { schema: json.schema, example: { status: 'degraded' } } },
      },
    }),
  };
}

export function notModified(headers: Json): Json {
  return { description: 'The version in `If-None-Match` is still current.', headers };
}

/** `#/components/schemas` of errors. */
export const ERROR_SCHEMAS: Record<string, JsonSchema> = {
  Error: errorSchema({
    request_id: { type: 'string', description: 'Give this id when you ask for help.' },
  }),
  RateLimitError: errorSchema({
    retry_after: {
      type: 'integer',
      minimum: 1,
      description: 'Seconds until the next request can succeed.',
    },
  }),
};

function errorSchema(extra: Record<string, JsonSchema>): JsonSchema {
  const properties = {
    code: { type: 'string', enum: Object.keys(HTTP_STATUS) },
    message: {
      type: 'string',
      description: 'For people. Starts with the name of the invalid field.',
    },
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

type Code = keyof typeof HTTP_STATUS;
type Example = readonly [code: Code, message: string];
type ErrorDescription = {
  meaning: string;
  examples: Record<string, Example>;
  headers?: Header[];
};

/** Errors that are the same on every route. That of 409 depends on the route. */
const ERRORS: Record<Exclude<ErrorStatus, 409>, ErrorDescription> = {
  400: {
    meaning: 'A parameter or the body is invalid.',
    examples: { parameter: ['invalid_request', 'per_page: must be from 1 to 100'] },
  },
  401: {
    meaning: 'The credentials are missing or invalid.',
    examples: {
      none: [
        'authentication_failed',
        'No credentials were sent; send the header "Authorization: Bearer <token>"',
      ],
    },
    headers: ['WWW-Authenticate'],
  },
  403: {
    meaning: 'You do not have the permission, or a quota is exhausted.',
    examples: {
      role: [
        'permission_denied',
        'You may not create jobs in this namespace: that needs the role write, and yours is read',
      ],
      quota: ['quota_exceeded', 'The free plan allows 100 repositories in a namespace'],
    },
  },
  404: {
    meaning: 'The resource does not exist.',
    examples: { missing: ['not_found', 'Repository not found'] },
  },
  422: {
    meaning:
      'The combination of values is not allowed, or the `Idempotency-Key` was already used for another request.',
    examples: {
      combination: ['invalid_request', 'memory_gb: must be from 1 to 32 with 2 vCPUs (got 64)'],
      key: [
        'invalid_request',
        'Idempotency-Key: already used for another request; use a new key for each request',
      ],
    },
  },
  429: {
    meaning: 'Too many requests.',
    examples: { late: ['rate_limit_exceeded', 'Too many requests: try again in 12 s'] },
    headers: ['Retry-After'],
  },
  500: {
    meaning: 'The server failed.',
    examples: {
      ours: [
        'internal_error',
        'Something went wrong on our side. The request id helps us find it.',
      ],
    },
  },
  503: {
    meaning: 'The service is temporarily unavailable. Retry the same request.',
    examples: {
      database: ['internal_error', 'The database does not answer at the moment; try again in 1 s'],
    },
    headers: ['Retry-After'],
  },
};

/** The errors of a route, by status. */
export function errorResponses(route: Route): Json {
  return Object.fromEntries(
    errorsOf(route).map((status) => [
      String(status),
      status === 409
        ? conflictResponse(route)
        : { $ref: `#/components/responses/${nameOf(status)}` },
    ]),
  );
}

/** `#/components/responses`. */
export function sharedErrorResponses(routes: readonly Route[]): Json {
  const used = new Set(routes.flatMap(errorsOf));
  return Object.fromEntries(
    [...used].flatMap((status) =>
      status === 409 ? [] : [[nameOf(status), sharedErrorResponse(status)] as const],
    ),
  );
}

/** The 409 of a route. A POST can also get one because of its `Idempotency-Key`. */
function conflictResponse({ conflict: own, method }: Route): Json {
  const isPost = method === 'POST';
  const meanings = [
    ...(own
      ? [own[0] === 'already_exists' ? 'The name is taken' : 'The current state does not allow it']
      : []),
    ...(isPost ? ['the first request with the same `Idempotency-Key` is still running'] : []),
  ];
  const examples: Record<string, Example> = {};
  if (own) examples.own = own;
  if (isPost)
    examples.running = ['conflict', 'The first request with this Idempotency-Key is still running'];
  return toResponse(409, {
    meaning: `${meanings.join(', or ')}.`,
    examples,
    headers: isPost ? ['Retry-After'] : [],
  });
}

function sharedErrorResponse(status: keyof typeof ERRORS): Json {
  return toResponse(status, ERRORS[status]);
}

const OUT_OF_RANGE: ErrorDescription = {
  meaning: 'The range is outside the file.',
  examples: { range: ['invalid_request', 'The range lies beyond the file'] },
  headers: ['Content-Range'],
};

/** An error of a download. It has no rate limit headers, because downloads do not count. */
export function downloadErrorResponse(status: keyof typeof ERRORS | 416): Json {
  const { meaning, examples, headers = [] } = status === 416 ? OUT_OF_RANGE : ERRORS[status];
  return {
    description: meaning,
    headers: uncountedHeaders(...headers),
    content: errorContent(examples, status === 429),
  };
}

function toResponse(
  status: ErrorStatus,
  { meaning, examples, headers = [] }: ErrorDescription,
): Json {
  return {
    description: meaning,
    headers: countedHeaders(...headers),
    content: errorContent(examples, status === 429),
  };
}

function errorContent(examples: Record<string, Example>, isLimit = false): Json {
  const extra = isLimit
    ? { retry_after: 12 }
    : { request_id: 'f2b1c7d0-6c7e-4b52-9d55-0c1c8e4f9a10' };
  const values = Object.entries(examples).map(([name, [code, message]]) => [
    name,
    { value: { error: { code, message, ...extra } } },
  ]);
  return {
    'application/json': {
      schema: { $ref: `#/components/schemas/${isLimit ? 'RateLimitError' : 'Error'}` },
      examples: Object.fromEntries(values),
    },
  };
}

function nameOf(status: ErrorStatus): string {
  return (STATUS_CODES[status] as string).replaceAll(' ', '');
}
