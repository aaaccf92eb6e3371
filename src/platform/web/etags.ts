/** Conditional requests (RFC 9110 section 13). */

/**
 * Whether `If-None-Match` names what there is. Express's own `req.fresh` says no to every request with
 * `Cache-Control: no-cache`, which `fetch` adds to each that carries `If-None-Match`.
 */
export function matches(ifNoneMatch: string | undefined, etag: string): boolean {
  if (!ifNoneMatch) return false;
  const weak = (tag: string) => tag.trim().replace(/^W\//, '');
  return ifNoneMatch.split(',').some((tag) => tag.trim() === '*' || weak(tag) === weak(etag));
}
