/**
 * Executes compiled queries without Yoga: Yoga, its plugins and the interpreter took more than half of the CPU time of a
 * POST that reads one row.
 *
 * Handles only a POST of uncompressed JSON without `Idempotency-Key`, whose query is in the cache and whose variables are
 * valid. All other requests go to Yoga unchanged, so Yoga alone responds with errors of requests.
 */
import type { Request, RequestHandler } from 'express';
import {
  type DocumentNode,
  type ExecutionResult,
  type FormattedExecutionResult,
  GraphQLError,
  type SourceLocation,
} from 'graphql';
import type { Config } from '../../base/config/config.ts';
import type { Metrics } from '../../platform/metrics/metrics.ts';
import type { ContextServices } from '../../platform/schema/context.ts';
import { inSpan } from '../../platform/tracing/spans.ts';
import { MAX_BODY_BYTES, parseBody, readBodyBytes } from '../../platform/web/request-body.ts';
import { IDEMPOTENCY_KEY } from '../http/idempotency.ts';
import type { CompiledQuery, CompiledQueryCache } from './compiled-queries.ts';
import { createContext } from './context.ts';
import { addErrorCodes, showError } from './errors.ts';

type Deps = ContextServices & { metrics: Metrics; config: Config };

export function createFastPath(services: Deps, cache: CompiledQueryCache): RequestHandler {
  const { metrics, config } = services;
  return async (req, res, next) => {
    const type = isEligible(req) ? contentTypeFor(req.headers.accept) : null;
    if (!type) return next();
    req.rawBody = await readBodyBytes(req);
    const params = parseParams(req.rawBody);
    const compiled = params && cache.get(params.query, params.operationName);
    const cost = compiled?.costOf(params?.variables ?? {});
    if (!params || !compiled || !cost) return next();
    req.pattern = '/graphql';
    const startedAt = performance.now();
    const context = createContext(services, req, res);
    const run = async () => compiled.run(context, params.variables);
    const result = config.tracing ? await runInSpan(compiled, run) : await run();
    // Compiled code refused the variables before it executed anything.
    if (result.data === undefined) return next();
    const failed = result.errors !== undefined;
    const seconds = (performance.now() - startedAt) / 1_000;
    metrics.operationEnded('query', failed ? 'error' : 'ok', seconds);
    const { data, errors = [] } = result;
    const shown = errors.map((error) =>
      showError(toInterpreterError(error, compiled.document), services),
    );
    const response = addErrorCodes({
      ...(failed && { errors: shown }),
      data,
      extensions: { cost },
    });
    const text = JSON.stringify(response satisfies ExecutionResult as FormattedExecutionResult);
    res.setHeader('Content-Type', `${type}; charset=utf-8`);
    res.setHeader('Content-Length', Buffer.byteLength(text));
    res.end(text);
  };
}

function isEligible({ method, url, headers }: Request): boolean {
  return (
    method === 'POST' &&
    url === '/graphql' &&
    /^application\/json(; ?charset=utf-8)?$/i.test(headers['content-type'] ?? '') &&
    headers['content-encoding'] === undefined &&
    headers[IDEMPOTENCY_KEY] === undefined &&
    Number(headers['content-length'] ?? Number.NaN) <= MAX_BODY_BYTES
  );
}

const TYPES = ['application/graphql-response+json', 'application/json'] as const;

/**
 * The content type that Yoga would choose: the first accepted one, and JSON for a wildcard.
 * @returns null if neither type is accepted, or if the header has parameters, which Yoga evaluates
 */
function contentTypeFor(accept = '*/*'): string | null {
  if (accept.includes(';')) return null;
  for (const item of accept.toLowerCase().split(',')) {
    const range = item.trim();
    const match = TYPES.findLast((type) => range === type || isWildcard(range));
    if (match) return match;
  }
  return null;
}

function isWildcard(range: string): boolean {
  return range === '*/*' || range === 'application/*';
}

type Params = { query: string; operationName?: string; variables: Record<string, unknown> };

/** @returns null if the body is not a plain GraphQL request */
function parseParams(body: Buffer): Params | null {
  const given = parseJson(body);
  if (typeof given !== 'object' || given === null || Array.isArray(given)) return null;
  const { query, operationName, variables, ...unknown } = given as Record<string, unknown>;
  if (typeof query !== 'string' || Object.keys(unknown).length > 0) return null;
  if (operationName != null && typeof operationName !== 'string') return null;
  if (typeof (variables ?? {}) !== 'object' || Array.isArray(variables)) return null;
  return {
    query,
    operationName: operationName ?? undefined,
    variables: (variables ?? {}) as Params['variables'],
  };
}

function parseJson(body: Buffer): unknown {
  try {
    return parseBody(body.toString());
  } catch {
    return null;
  }
}

function runInSpan({ operation }: CompiledQuery, run: () => Promise<ExecutionResult>) {
  const name = operation.name?.value;
  const attributes = {
    'graphql.operation.type': 'query',
    ...(name && { 'graphql.operation.name': name }),
  };
  return inSpan('GraphQL query', attributes, async (span) => {
    const result = await run();
    if (result.errors) span.setAttribute('graphql.errors', result.errors.length);
    return result;
  });
}

/**
 * Converts an error of compiled code to that of the interpreter. For an invalid result (such as null in a non-null field),
 * compiled code has no `originalError`, and the interpreter has one.
 */
function toInterpreterError(
  { message, locations = [], path, originalError }: GraphQLError,
  { loc }: DocumentNode,
): GraphQLError {
  const source = loc?.source;
  const positions = source && locations.map((location) => positionOf(source.body, location));
  const original = originalError ?? new Error(message);
  return new GraphQLError(message, { source, positions, path, originalError: original });
}

function positionOf(text: string, { line, column }: SourceLocation): number {
  const lineBreaks = /\r\n|[\n\r]/g;
  for (let at = 1; at < line; at++) lineBreaks.exec(text);
  return lineBreaks.lastIndex + column - 1;
}
