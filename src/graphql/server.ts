/** Yoga at `/graphql`: the plugins in order, and what an error looks like to a client. */
import { EnvelopArmor } from '@escape.tech/graphql-armor';
import { useGraphQLSSE } from '@graphql-yoga/plugin-graphql-sse';
import { renderGraphiQL } from '@graphql-yoga/render-graphiql';
import type { Request, Response } from 'express';
import { GraphQLError } from 'graphql';
import { createYoga, type Plugin } from 'graphql-yoga';
import { isUnexpected, toPublic } from '../errors.ts';
import type { Services } from '../services.ts';
import type { Context } from './context.ts';
import { schema } from './schema.ts';

/** Limits of one operation: enough for any screen, too little to hurt (measured on introspection: depth 13). */
const armor = new EnvelopArmor({
  maxDepth: { n: 15 },
  maxAliases: { n: 50 },
  maxDirectives: { n: 50 },
  maxTokens: { n: 2_000 },
  costLimit: {
    maxCost: 20_000,
    objectCost: 2,
    scalarCost: 1,
    depthCostFactor: 1.5,
    ignoreIntrospection: true,
  },
  blockFieldSuggestion: { enabled: false },
});

export function createGraphQLServer(services: Services) {
  return createYoga<{ req: Request; res: Response }, Context>({
    schema,
    graphqlEndpoint: '/graphql',
    renderGraphiQL,
    graphiql: { title: 'Loam', defaultQuery: FIRST_QUERY },
    landingPage: false,
    // The door in front answers CORS, and pino logs requests.
    cors: false,
    logging: false,
    batching: false,
    context: ({ req, request }) => ({
      viewer: req.viewer,
      requestId: req.id as string,
      services,
      signal: request.signal,
    }),
    maskedErrors: { maskError: (error) => maskError(error, services) },
    plugins: [
      ...armor.protect().plugins,
      useErrorCodes,
      useGraphQLSSE({ endpoint: '/graphql/stream' }),
    ],
  });
}

const FIRST_QUERY = `# Everything in Loam that you may see. Put your token under "Headers" below:
#   {"Authorization": "Bearer loam_pat_…"}
{
  viewer {
    username
    namespace {
      repositories(first: 5) { edges { node { fullName pushedAt } } }
      jobs(first: 5) { edges { node { name status progress } } }
    }
  }
}
`;

/** Errors that never reach a resolver (a wrong variable, a limit of the armor) carry a code too. */
const useErrorCodes: Plugin = {
  onResultProcess({ result }) {
    for (const one of Array.isArray(result) ? result : [result]) {
      if (!('errors' in one)) continue;
      for (const error of one.errors ?? []) error.extensions.code ??= 'INVALID_REQUEST';
    }
  },
};

/** Deliberate errors and the client's own mistakes pass; all else is logged and hidden. */
function maskError(error: unknown, { log }: Pick<Services, 'log'>): Error {
  const graphql = error instanceof GraphQLError ? error : undefined;
  const original = graphql?.originalError ?? error;
  if (graphql && (!graphql.originalError || original instanceof GraphQLError)) return graphql;
  const shown = toPublic(original);
  if (isUnexpected(original)) log.error({ err: original }, 'unexpected error in GraphQL');
  return new GraphQLError(shown.message, {
    nodes: graphql?.nodes,
    path: graphql?.path,
    extensions: {
      code: shown.code.toUpperCase(),
      ...(shown.field && { field: shown.field }),
      ...(shown.retryAfter && { retryAfter: shown.retryAfter }),
    },
  });
}
