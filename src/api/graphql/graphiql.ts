/** GraphiQL at `/graphql` for browsers: one page, served from our own packages, that loads nothing from elsewhere. */
import { hash } from 'node:crypto';
import { promisify } from 'node:util';
import { gzip } from 'node:zlib';
import type { Plugin } from 'graphql-yoga';
import { lazyAsync } from '../../base/lazy-async.ts';
import { apiHeader } from '../../platform/web/api-header.ts';
import { etagMatches } from '../../platform/web/send-object.ts';

const FIRST_QUERY = `# Everything in Loam that you may see.
# If you are signed in here (/login), your session
# is used. Else put a token under "Headers" below:
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

/** It is the same for everybody: 9 MB, of which most browsers take 2 as gzip. */
type Page = {
  html: Buffer<ArrayBuffer>;
  packed: Buffer<ArrayBuffer>;
  headers: Record<string, string>;
};

/** Made when it is first asked for: few servers ever are, and the package alone holds 19 MB. */
const readPage = lazyAsync(async (): Promise<Page> => {
  const { renderGraphiQL } = await import('@graphql-yoga/render-graphiql');
  const text = withHeader(
    renderGraphiQL({ title: 'GraphQL · Loam', favicon: '/favicon.svg', defaultQuery: FIRST_QUERY }),
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
    // Of both forms, packed and not.
    etag: `W/"${hash('sha1', html, 'base64url')}"`,
    'cache-control': 'no-cache',
    vary: 'Accept, Accept-Encoding',
  };
  return { html, packed: await promisify(gzip)(html), headers };
});

const ROOT = '<div id="root">';

function withHeader(page: string): string {
  const { style, html } = apiHeader('GraphQL');
  const rest =
    '#root .graphiql-container { height: calc(100vh - 3.5rem); } #root .graphiql-logo { display: none; }';
  const parts = page.split(ROOT);
  if (parts.length !== 2) throw new Error('GraphiQL has no place for the header');
  return parts.join(`<style>${style}${rest}</style>${html}${ROOT}`);
}

/**
 * The one script, by its hash, and the editor's workers, which it makes itself. Styles cannot be allowed by
 * hashes, because the editor makes them while it runs.
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

/** In place of Yoga's own, which sends the whole page each time. */
export const usePage: Plugin = {
  async onRequest({ request, url, fetchAPI, endResponse }) {
    const asked = (name: string) => request.headers.get(name) ?? '';
    const isForPage = request.method === 'GET' && asked('accept').includes('text/html');
    // Credentials in the header are a program's, also where its HTTP client accepts HTML by default.
    const isProgram = request.headers.has('authorization');
    if (!isForPage || isProgram || url.pathname !== '/graphql') return;
    const { html, packed, headers } = await readPage();
    if (etagMatches(asked('if-none-match'), headers.etag as string))
      return endResponse(new fetchAPI.Response(null, { status: 304, headers }));
    const isPacked = /\bgzip\b(?!;\s*q=0(\.0*)?(,|$))/i.test(asked('accept-encoding'));
    const encoding: Record<string, string> = isPacked ? { 'content-encoding': 'gzip' } : {};
    const response = new fetchAPI.Response(isPacked ? packed : html, {
      headers: { ...headers, ...encoding },
    });
    endResponse(response);
  },
};
