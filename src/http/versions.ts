/**
 * Whether `If-None-Match` or `If-Match` names this version (RFC 9110, weakly compared). Express's own `req.fresh` says
 * no to every request with `Cache-Control: no-cache`, which `fetch` adds to each that carries `If-None-Match`.
 */
export function namesVersion(header: string | undefined, etag: string): boolean {
  if (!header) return false;
  const weak = (tag: string) => tag.trim().replace(/^W\//, '');
  return header.split(',').some((tag) => tag.trim() === '*' || weak(tag) === weak(etag));
}
