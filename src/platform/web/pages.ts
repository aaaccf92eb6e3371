/** Which requests a page of the dashboard answers: those of a browser that opens an address. */
import type { Request } from 'express';

/** First parts of paths that are never pages. No namespace can have such a name. */
const ELSEWHERE = new Set(
  `auth graphql login logout repository docs openapi.json openapi.yaml artifacts assets api static metrics favicon.ico favicon.svg
   robots.txt livez readyz`.split(/\s+/),
);

/**
 * REST reads of jobs share addresses with pages (`/{namespace}/job/{name}`). A page is sent to a request that prefers HTML to
 * JSON, as that of a browser does. A request with credentials in its header is a program's, whatever it accepts: HTTP
 * clients of Java prefer HTML unless they are told otherwise.
 */
export function isPage(req: Request): boolean {
  if (req.method !== 'GET' && req.method !== 'HEAD') return false;
  if (req.headers.authorization !== undefined) return false;
  if (ELSEWHERE.has(req.path.split('/', 2)[1] ?? '')) return false;
  return req.accepts(['json', 'html']) === 'html';
}
