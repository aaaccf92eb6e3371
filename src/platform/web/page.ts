/** HTML pages without scripts that the server renders (sign-in, home), and which requests get a page instead of JSON. */
import { hash } from 'node:crypto';
import type { Request, Response } from 'express';

/** Its hash is part of the policy below. */
const STYLE = `
:root { color-scheme: light dark; --ink: #2b211a; --dim: #6d5e52; --paper: #fbf8f3; --card: #fff; --line: #e6ddd0; --link: #2f6b2b; --bad: #a3281c; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #efe7dc; --dim: #a89a8c; --paper: #1a1613; --card: #231e1a; --line: #3a322b; --link: #8fca88; --bad: #ff9d8f; }
}
* { box-sizing: border-box; }
body { margin: 0; min-height: 100vh; display: grid; grid-template-columns: minmax(0, 42rem); place-content: center; padding: 2rem 1rem; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
h1 { display: flex; align-items: center; gap: .7rem; margin: 0; font-size: 2rem; letter-spacing: -.02em; }
h1 img { width: 2.6rem; height: 2.6rem; }
p { margin: .9rem 0 0; color: var(--dim); }
b { unicode-bidi: isolate; overflow-wrap: anywhere; }
p.problem { color: var(--bad); }
ul { margin: 1.4rem 0; padding-left: 1.2rem; color: var(--dim); }
li + li { margin-top: .5rem; }
.choices { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1.4rem 0 0; }
p a, small a { color: var(--link); }
form { margin: 1.4rem 0 0; display: flex; flex-wrap: wrap; gap: .6rem; align-items: end; color: var(--dim); }
label { flex: 1 1 16rem; }
input { display: block; width: 100%; margin-top: .3rem; padding: .6rem .7rem; border: 1px solid var(--dim); border-radius: .5rem; background: var(--card); color: var(--ink); font: inherit; }
button, .button { display: inline-block; padding: .6rem 1.1rem; border: 1px solid var(--link); border-radius: .5rem; background: var(--card); color: var(--link); font: inherit; font-weight: 600; text-decoration: none; cursor: pointer; }
.primary { background: var(--link); color: var(--paper); }
pre { margin: .6rem 0 0; padding: .9rem 1rem; overflow-x: auto; border: 1px solid var(--line); border-radius: .6rem; background: var(--card); font: .85rem/1.5 ui-monospace, monospace; }
small { display: flex; flex-wrap: wrap; gap: .3rem 1rem; margin-top: 1.6rem; color: var(--dim); }
`;

/** Allows only this style, images of this server and forms to this server, and no frames. */
const CONTENT_SECURITY_POLICY = [
  "default-src 'none'",
  `style-src 'sha256-${hash('sha256', STYLE, 'base64')}'`,
  "img-src 'self'",
  "base-uri 'none'",
  "form-action 'self'",
  "frame-ancestors 'none'",
].join('; ');

type HtmlPage = {
  title: string;
  /** HTML. Untrusted values in it must be escaped by `escapeHtml`. */
  body: string;
  /** The browser reloads the page after this time. */
  reloadSeconds?: number;
  /** Whether the host of the page has the icon. Default: true. */
  hasIcon?: boolean;
};

/** Escapes text for HTML, including attributes. */
export function escapeHtml(text: string): string {
  const entities: Record<string, string> = {
    '&': '&amp;',
    '<': '&lt;',
    '>': '&gt;',
    '"': '&quot;',
    "'": '&#39;',
  };
  return text.replace(/[&<>"']/g, (character) => entities[character] ?? '');
}

type SendOptions = {
  /** Whether the page depends on the user, or its URL is a secret, so that it must not be stored in caches. Default: true. */
  isPrivate?: boolean;
  status?: number;
};

export function sendPage(
  res: Response,
  { title, body, reloadSeconds, hasIcon = true }: HtmlPage,
  { isPrivate = true, status = 200 }: SendOptions = {},
): void {
  const reload = reloadSeconds ? `<meta http-equiv="refresh" content="${reloadSeconds}">\n  ` : '';
  const icon = hasIcon
    ? '<link rel="icon" href="/favicon.svg" type="image/svg+xml">'
    : '<link rel="icon" href="data:,">';
  const image = hasIcon ? '<img src="/favicon.svg" alt="">' : '';
  res.set({
    'Cache-Control': isPrivate ? 'no-store' : 'no-cache',
    'Content-Security-Policy': CONTENT_SECURITY_POLICY,
    'X-Content-Type-Options': 'nosniff',
    'Referrer-Policy': 'no-referrer',
  });
  res
    .status(status)
    .type('html')
    .send(`<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  ${reload}<title>${escapeHtml(title)}</title>
  ${icon}
  <style>${STYLE}</style>
</head>
<body>
<main>
  <h1>${image}${escapeHtml(title)}</h1>
${body}</main>
</body>
</html>
`);
}

/** First path segments that are never pages of the dashboard. Namespaces cannot have these names (`base/names.ts`). */
const NOT_PAGES = new Set(
  `auth graphql login logout repository docs openapi.json openapi.yaml artifacts assets api static metrics favicon.ico favicon.svg
   robots.txt livez readyz`.split(/\s+/),
);

/**
 * Whether a request gets a page of the dashboard. REST reads of jobs have the same URLs as pages (`/{namespace}/job/{name}`).
 * A request gets a page if it prefers HTML to JSON, as browsers do. A request with an Authorization header is from a
 * program, whatever it accepts: Java HTTP clients prefer HTML by default. Session cookies are accepted by the same rule.
 */
export function wantsPage(req: Request): boolean {
  if (req.method !== 'GET' && req.method !== 'HEAD') return false;
  if (req.headers.authorization !== undefined) return false;
  if (NOT_PAGES.has(req.path.split('/', 2)[1] ?? '')) return false;
  return req.accepts(['json', 'html']) === 'html';
}
