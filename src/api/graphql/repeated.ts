/**
 * Answers queries that were executed before, without Yoga: of the CPU of a POST for one row, Yoga, its plugins and the
 * interpreter took more than half.
 *
 * Only what is plain passes here: a POST of JSON without a key or packing, with a query whose document is known, and with
 * variables that are right. All else goes on to Yoga as it came, and so whatever is refused is refused in one place.
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
import { IDEMPOTENCY_KEY } from '../http/kept-answers.ts';
import { createContext } from './context.ts';
import type { Documents, Prepared } from './documents.ts';
import { addErrorCodes, showError } from './errors.ts';

export type Deps = ContextServices & { metrics: Metrics; config: Config };

export function repeatedQueries(services: Deps, documents: Documents): RequestHandler {
  const { metrics, config } = services;
  return async (req, res, next) => {
    const type = isPlain(req) ? typeFor(req.headers.accept) : null;
    if (!type) return next();
    req.rawBody = await readBodyBytes(req);
    const params = paramsOf(req.rawBody);
    const prepared = params && documents.find(params.query, params.operationName);
    const cost = prepared?.costOf(params?.variables ?? {});
    if (!params || !prepared || !cost) return next();
    req.pattern = '/graphql';
    const begun = performance.now();
    const context = createContext(services, req, res);
    const run = async () => prepared.run(context, params.variables);
    const result = config.tracing ? await traced(prepared, run) : await run();
    // Its variables were wrong in a way that compiled code alone sees; nothing was executed.
    if (result.data === undefined) return next();
    const failed = result.errors !== undefined;
    metrics.operationEnded('query', failed ? 'error' : 'ok', (performance.now() - begun) / 1_000);
    const { data, errors = [] } = result;
    const shown = errors.map((error) => showError(located(error, prepared.document), services));
    const answer = addErrorCodes({ ...(failed && { errors: shown }), data, extensions: { cost } });
    const text = JSON.stringify(answer satisfies ExecutionResult as FormattedExecutionResult);
    res.setHeader('Content-Type', `${type}; charset=utf-8`);
    res.setHeader('Content-Length', Buffer.byteLength(text));
    res.end(text);
  };
}

function isPlain({ method, url, headers }: Request): boolean {
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

/** What Yoga chooses: of several the first, and JSON for whatever is taken. Null: it may not be JSON, or is not clear. */
function typeFor(accept = '*/*'): string | null {
  if (accept.includes(';')) return null;
  for (const asked of accept.toLowerCase().split(',')) {
    const media = asked.trim();
    const own = TYPES.findLast((type) => media === type || isWild(media));
    if (own) return own;
  }
  return null;
}

function isWild(media: string): boolean {
  return media === '*/*' || media === 'application/*';
}

type Params = { query: string; operationName?: string; variables: Record<string, unknown> };

/** Null for what is anything else. */
function paramsOf(body: Buffer): Params | null {
  const given = parsed(body);
  if (typeof given !== 'object' || given === null || Array.isArray(given)) return null;
  const { query, operationName, variables, ...more } = given as Record<string, unknown>;
  if (typeof query !== 'string' || Object.keys(more).length > 0) return null;
  if (operationName != null && typeof operationName !== 'string') return null;
  if (typeof (variables ?? {}) !== 'object' || Array.isArray(variables)) return null;
  return {
    query,
    operationName: operationName ?? undefined,
    variables: (variables ?? {}) as Params['variables'],
  };
}

function parsed(body: Buffer): unknown {
  try {
    return parseBody(body.toString());
  } catch {
    return null;
  }
}

function traced({ operation }: Prepared, run: () => Promise<ExecutionResult>) {
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
 * An error of compiled code as the interpreter makes it. Of what is at fault in an answer itself, compiled code has only the
 * message, where the interpreter has an error of its own within.
 */
function located(
  { message, locations = [], path, originalError }: GraphQLError,
  { loc }: DocumentNode,
): GraphQLError {
  const source = loc?.source;
  const positions = source && locations.map((location) => positionOf(source.body, location));
  const original = originalError ?? new Error(message);
  return new GraphQLError(message, { source, positions, path, originalError: original });
}

function positionOf(text: string, { line, column }: SourceLocation): number {
  const breaks = /\r\n|[\n\r]/g;
  for (let at = 1; at < line; at++) breaks.exec(text);
  return breaks.lastIndex + column - 1;
}
