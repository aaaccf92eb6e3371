/** GraphiQL at `/graphql` for browsers: one page from an installed package that loads nothing from other hosts. */
import { hash } from 'node:crypto';
import { promisify } from 'node:util';
import { gzip } from 'node:zlib';
import type { Plugin } from 'graphql-yoga';
import { lazyAsync } from '../../base/lazy-async.ts';
import { apiHeader } from '../../platform/web/api-header.ts';
import { etagMatches } from '../../platform/web/send-object.ts';

const DEFAULT_QUERY = `# Everything in Loam that you may see.
# If you are signed in here (/login), your session
# is used. Otherwise put a token under "Headers" below:
#   {"Authorization": "Bearer loam_pat_…"}
{
  viewer {
    username
    namespace {
      repositories(first: 5) { nodes { fullName pushedAt } }
      jobs(first: 5) { nodes { name status progress } }
    }
  }
}
`;

/** The same for all users: 9 MB, or 2 MB with gzip. */
type GraphiqlPage = {
  html: Buffer<ArrayBuffer>;
  gzipped: Buffer<ArrayBuffer>;
  headers: Record<string, string>;
};

/** Built on the first request: few servers get one, and the package takes 19 MB of memory. */
const readPage = lazyAsync(async (): Promise<GraphiqlPage> => {
  const { renderGraphiQL } = await import('@graphql-yoga/render-graphiql');
  const text = withHeader(
    renderGraphiQL({
      title: 'GraphQL · Loam',
      favicon: '/favicon.svg',
      defaultQuery: DEFAULT_QUERY,
    }),
  );
  const start = text.indexOf('<script>', text.indexOf('<div id="root">')) + '<script>'.length;
  const script = text.slice(start, text.lastIndexOf('</script>'));
  const html = Buffer.from(text);
  const headers = {
    'content-type': 'text/html; charset=utf-8',
    'content-security-policy': policyFor(script),
    'x-frame-options': 'DENY',
    'x-content-type-options': 'nosniff',
    'referrer-policy': 'no-referrer',
    // Weak, because it stands for the plain and the compressed form.
    etag: `W/"${hash('sha1', html, 'base64url')}"`,
    'cache-control': 'no-cache',
    vary: 'Accept, Accept-Encoding',
  };
  return { html, gzipped: await promisify(gzip)(html), headers };
});

const ROOT = '<div id="root">';

function withHeader(page: string): string {
  const { style, html } = apiHeader('GraphQL');
  const layout =
    '#root .graphiql-container { height: calc(100vh - 3.5rem); } #root .graphiql-logo { display: none; }';
  const parts = page.split(ROOT);
  if (parts.length !== 2) throw new Error('The page of GraphiQL lacks its root element');
  return parts.join(`<style>${style}${layout}</style>${html}${ROOT}`);
}

/**
 * Allows the script by its hash, and the workers that the editor creates. Styles cannot be allowed by hash, because the
 * editor creates them at run time.
 */
function policyFor(script: string): string {
  return [
    "default-src 'none'",
    `script-src 'sha256-${hash('sha256', script, 'base64')}'`,
    'worker-src blob:',
    "style-src 'unsafe-inline'",
    "img-src 'self' data:",
    'font-src data:',
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
  ].join('; ');
}

/** Replaces Yoga's own page, which has no ETag and is sent whole each time. */
export const useGraphiql: Plugin = {
  async onRequest({ request, url, fetchAPI, endResponse }) {
    const header = (name: string) => request.headers.get(name) ?? '';
    const isForPage = request.method === 'GET' && header('accept').includes('text/html');
    // Only programs send this header. Some HTTP clients accept HTML by default.
    const isProgram = request.headers.has('authorization');
    if (!isForPage || isProgram || url.pathname !== '/graphql') return;
    const { html, gzipped, headers } = await readPage();
    if (etagMatches(header('if-none-match'), headers.etag as string))
      return endResponse(new fetchAPI.Response(null, { status: 304, headers }));
    const acceptsGzip = /\bgzip\b(?!;\s*q=0(\.0*)?(,|$))/i.test(header('accept-encoding'));
    const encoding: Record<string, string> = acceptsGzip ? { 'content-encoding': 'gzip' } : {};
    const response = new fetchAPI.Response(acceptsGzip ? gzipped : html, {
      headers: { ...headers, ...encoding },
    });
    endResponse(response);
  },
};
