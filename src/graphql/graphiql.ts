/** GraphiQL at `/graphql` for browsers: one page, out of a package of ours, that loads nothing from anywhere. */
import { hash } from 'node:crypto';
import { renderGraphiQL } from '@graphql-yoga/render-graphiql';
import type { Plugin } from 'graphql-yoga';

const FIRST_QUERY = `# Everything in Loam that you may see. Put your token under "Headers" below:
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

type Page = { html: string; policy: string };
let page: Page | undefined;

/** The page is the same for everybody; it is 9 MB, so it is made and hashed when it is first asked for. */
function readPage(): Page {
  if (page) return page;
  const html = renderGraphiQL({ title: 'Loam', defaultQuery: FIRST_QUERY });
  const start = html.indexOf('<script>', html.indexOf('<div id="root">')) + '<script>'.length;
  const script = html.slice(start, html.lastIndexOf('</script>'));
  page = { html, policy: policyFor(script) };
  return page;
}

/**
 * The one script, by its hash, and the editor's workers, which it makes itself. Styles cannot be told by
 * hashes: the editor writes them as it goes.
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

/** For Yoga's option of that name. */
export const renderPage = () => readPage().html;

/** What a browser may do with the page. */
export const usePagePolicy: Plugin = {
  onResponse({ response }) {
    if (!response.headers.get('content-type')?.startsWith('text/html')) return;
    response.headers.set('content-security-policy', readPage().policy);
    response.headers.set('x-frame-options', 'DENY');
    response.headers.set('x-content-type-options', 'nosniff');
    response.headers.set('referrer-policy', 'no-referrer');
  },
};
