/**
 * The REST contract: every route, its paths, and its stored GraphQL operation (`operations/*.graphql`).
 *
 * The operation defines the request and the response. Its variables are the parameters: in the path if the path names
 * them, otherwise in the query of GET and DELETE, and in the body of other methods. Its field `answer` is the response
 * body, and its aliases are the field names.
 */

export type Route = {
  /** The stored operation, and the operationId in the OpenAPI document. */
  operation: string;
  method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';
  /** The documented path, then alternatives. `{x}` is one segment; `{x*}` is the rest, which may be empty. */
  paths: readonly [string, ...string[]];
  /** The status of success. 204 has no body. */
  status: 200 | 201 | 202 | 204;
  tag: 'Repositories' | 'Jobs' | 'Webhooks' | 'Tokens and keys' | 'Diagnostics';
  /** Documented errors of permissions. Default: 403 and 404. */
  errors?: readonly (403 | 404)[];
  /** The code and an example message of the route's own 409. */
  conflict?: readonly [code: 'already_exists' | 'conflict', example: string];
  /** Needs no credentials. */
  public?: true;
  /** The status of a response that reports an unavailable part of the service. */
  degraded?: { status: 503; when: (body: { status?: string }) => boolean };
  /** The boolean parameter that requests an event stream, which does not go through GraphQL. */
  streamedBy?: 'stream';
};

export type ErrorStatus = 400 | 401 | 403 | 404 | 409 | 422 | 429 | 500 | 503;

/** All documented errors of a route, in ascending order. */
export function errorsOf({
  errors = [403, 404],
  conflict,
  public: isPublic,
  method,
}: Route): ErrorStatus[] {
  const everywhere: ErrorStatus[] = isPublic ? [400, 500] : [400, 401, ...errors, 429, 500, 503];
  // Errors of `Idempotency-Key`: the first request is still running, or differs from this one.
  const idempotency: ErrorStatus[] = method === 'POST' ? [409, 422] : [];
  const own: ErrorStatus[] = conflict ? [409] : [];
  return [...new Set([...everywhere, ...own, ...idempotency])].sort((a, b) => a - b);
}

const repositories = (rest = '') =>
  [`/auth/v1/repository/{namespace}${rest}`, `/auth/v1/{namespace}/repositories${rest}`] as const;

const REPOSITORY_EXISTS = [
  'already_exists',
  'name: a repository of that name exists in the namespace',
] as const;

const WEBHOOK_OFF = ['conflict', 'The webhook is off: switch it on first'] as const;

/** Routes that read jobs are documented without the prefix. */
const jobs = (rest: string) => [`/{namespace}${rest}`, `/auth/v1/{namespace}${rest}`] as const;

export const routes: readonly Route[] = [
  {
    operation: 'listRepositories',
    method: 'GET',
    paths: repositories(),
    status: 200,
    tag: 'Repositories',
    errors: [404],
  },
  {
    operation: 'getRepository',
    method: 'GET',
    paths: repositories('/{id}'),
    status: 200,
    tag: 'Repositories',
  },
  {
    operation: 'createRepository',
    method: 'POST',
    paths: repositories(),
    status: 201,
    tag: 'Repositories',
    conflict: REPOSITORY_EXISTS,
  },
  {
    operation: 'renameRepository',
    method: 'PUT',
    paths: repositories('/{id}/name'),
    status: 200,
    tag: 'Repositories',
    conflict: REPOSITORY_EXISTS,
  },
  {
    operation: 'changeRepositoryVisibility',
    method: 'POST',
    paths: repositories('/{id}/visibility'),
    status: 200,
    tag: 'Repositories',
  },
  {
    operation: 'transferRepository',
    method: 'POST',
    paths: repositories('/{id}/transfer'),
    status: 200,
    tag: 'Repositories',
    conflict: REPOSITORY_EXISTS,
  },
  {
    operation: 'deleteRepository',
    method: 'DELETE',
    paths: repositories('/{id}'),
    status: 204,
    tag: 'Repositories',
  },
  {
    operation: 'getTree',
    method: 'GET',
    paths: repositories('/{id}/tree/{path*}'),
    status: 200,
    tag: 'Repositories',
  },
  {
    operation: 'getFile',
    method: 'GET',
    paths: repositories('/{id}/file/{path*}'),
    status: 200,
    tag: 'Repositories',
  },
  {
    operation: 'listCommits',
    method: 'GET',
    paths: repositories('/{id}/commits/{revision*}'),
    status: 200,
    tag: 'Repositories',
  },
  {
    operation: 'listJobs',
    method: 'GET',
    paths: jobs('/jobs'),
    status: 200,
    tag: 'Jobs',
  },
  {
    operation: 'getJob',
    method: 'GET',
    paths: jobs('/job/{name}'),
    status: 200,
    tag: 'Jobs',
  },
  {
    operation: 'getJobLogs',
    method: 'GET',
    paths: jobs('/job/{name}/logs'),
    status: 200,
    tag: 'Jobs',
    streamedBy: 'stream',
    conflict: [
      'conflict',
      'Only a running job can be streamed, and the status of this job is succeeded; send the header Last-Event-ID: 0 to get the whole stream',
    ],
  },
  {
    operation: 'getJobAnalytics',
    method: 'GET',
    paths: jobs('/job/{name}/analytics'),
    status: 200,
    tag: 'Jobs',
  },
  {
    operation: 'createJob',
    method: 'POST',
    paths: ['/auth/v1/seed/{namespace}/jobs'],
    status: 201,
    tag: 'Jobs',
    conflict: ['already_exists', 'name: a job of that name exists in the namespace'],
  },
  {
    operation: 'cancelJob',
    method: 'POST',
    paths: ['/auth/v1/seed/{namespace}/jobs/{name}/cancel'],
    status: 200,
    tag: 'Jobs',
    conflict: ['conflict', 'The job cannot be cancelled: its status is failed'],
  },
  {
    operation: 'deleteJob',
    method: 'DELETE',
    paths: ['/auth/v1/seed/{namespace}/jobs/{name}'],
    status: 204,
    tag: 'Jobs',
    conflict: [
      'conflict',
      'The job cannot be deleted while its status is running: cancel it first',
    ],
  },
  {
    operation: 'listWebhooks',
    method: 'GET',
    paths: ['/auth/v1/seed/webhooks'],
    status: 200,
    tag: 'Webhooks',
    errors: [403],
  },
  {
    operation: 'createWebhook',
    method: 'POST',
    paths: ['/auth/v1/seed/webhooks'],
    status: 201,
    tag: 'Webhooks',
  },
  {
    operation: 'getWebhook',
    method: 'GET',
    paths: ['/auth/v1/seed/webhooks/{id}'],
    status: 200,
    tag: 'Webhooks',
  },
  {
    operation: 'updateWebhook',
    method: 'PATCH',
    paths: ['/auth/v1/seed/webhooks/{id}'],
    status: 200,
    tag: 'Webhooks',
  },
  {
    operation: 'deleteWebhook',
    method: 'DELETE',
    paths: ['/auth/v1/seed/webhooks/{id}'],
    status: 204,
    tag: 'Webhooks',
  },
  {
    operation: 'testWebhook',
    method: 'POST',
    paths: ['/auth/v1/seed/webhooks/{id}/test'],
    status: 202,
    tag: 'Webhooks',
    conflict: WEBHOOK_OFF,
  },
  {
    operation: 'listDeliveries',
    method: 'GET',
    paths: ['/auth/v1/seed/webhooks/{id}/deliveries'],
    status: 200,
    tag: 'Webhooks',
  },
  {
    operation: 'redeliver',
    method: 'POST',
    paths: ['/auth/v1/seed/webhooks/{id}/deliveries/{delivery}/redeliver'],
    status: 202,
    tag: 'Webhooks',
    conflict: WEBHOOK_OFF,
  },
  {
    operation: 'getHealth',
    method: 'GET',
    paths: ['/auth/v1/health'],
    status: 200,
    tag: 'Diagnostics',
    public: true,
    degraded: { status: 503, when: ({ status }) => status !== 'ok' },
  },
  {
    operation: 'getVersion',
    method: 'GET',
    paths: ['/auth/v1/version'],
    status: 200,
    tag: 'Diagnostics',
    public: true,
  },
  {
    operation: 'whoami',
    method: 'GET',
    paths: ['/auth/v1/whoami'],
    status: 200,
    tag: 'Diagnostics',
    errors: [],
  },
  {
    operation: 'listAccessTokens',
    method: 'GET',
    paths: ['/auth/v1/pat'],
    status: 200,
    tag: 'Tokens and keys',
    errors: [403],
  },
  {
    operation: 'createAccessToken',
    method: 'POST',
    paths: ['/auth/v1/pat'],
    status: 201,
    tag: 'Tokens and keys',
    conflict: ['already_exists', 'name: you already have a token of this name'],
  },
  {
    operation: 'getAccessToken',
    method: 'GET',
    paths: ['/auth/v1/pat/{name}'],
    status: 200,
    tag: 'Tokens and keys',
  },
  {
    operation: 'deleteAccessToken',
    method: 'DELETE',
    paths: ['/auth/v1/pat/{name}'],
    status: 204,
    tag: 'Tokens and keys',
  },
  {
    operation: 'listApiKeys',
    method: 'GET',
    paths: ['/auth/v1/api_keys'],
    status: 200,
    tag: 'Tokens and keys',
    errors: [403],
  },
  {
    operation: 'createApiKey',
    method: 'POST',
    paths: ['/auth/v1/api_keys'],
    status: 201,
    tag: 'Tokens and keys',
    conflict: ['already_exists', 'name: a key of this name exists; names are unique on the server'],
  },
  {
    operation: 'getApiKey',
    method: 'GET',
    paths: ['/auth/v1/api_keys/{name}'],
    status: 200,
    tag: 'Tokens and keys',
  },
  {
    operation: 'deleteApiKey',
    method: 'DELETE',
    paths: ['/auth/v1/api_keys/{name}'],
    status: 204,
    tag: 'Tokens and keys',
  },
];
