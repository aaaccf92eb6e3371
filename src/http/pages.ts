/** Which requests a page of the dashboard answers: those of a browser that opens an address. */
import type { Request } from 'express';

/** First parts of paths that are never pages. No namespace can have such a name (decisions section 1). */
const ELSEWHERE = new Set(
  `auth graphql login logout repository docs openapi.json openapi.yaml artifacts assets api static metrics favicon.ico favicon.svg
   robots.txt livez readyz`.split(/\s+/),
);

/**
 * The contract's own addresses, `/{namespace}/job/{name}` among them, are pages for who asks for HTML before JSON, as
 * browsers do that open an address; programs get JSON there.
 */
export function isPage(req: Request): boolean {
  if (req.method !== 'GET' && req.method !== 'HEAD') return false;
  if (ELSEWHERE.has(req.path.split('/', 2)[1] ?? '')) return false;
  return req.accepts(['json', 'html']) === 'html';
}
