/** What a browser finds at `/`: what this is, and where to go on. Other clients find nothing there, as JSON. */
import { hash } from 'node:crypto';
import express, { type RequestHandler, type Router } from 'express';
import { otherMethod } from '../rest/methods.ts';
import type { Services } from '../services.ts';
import { version } from './diagnostics.ts';

const ICON = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">
<rect width="32" height="32" rx="7" fill="#f3ead9"/>
<path d="M0 15q8-4 16 0t16 0v10a7 7 0 0 1-7 7H7a7 7 0 0 1-7-7z" fill="#a9794b"/>
<path d="M0 22q8-4 16 0t16 0v3a7 7 0 0 1-7 7H7a7 7 0 0 1-7-7z" fill="#5b3a21"/>
<path d="M16 16V8m0 3q0-5 6-6q0 6-6 6zm0 2q0-4-5-5q0 5 5 5z" fill="#3f7d3a" stroke="#3f7d3a" stroke-width="1.6" stroke-linejoin="round"/>
</svg>
`;

const STYLE = `
:root { color-scheme: light dark; --ink: #2b211a; --dim: #6d5e52; --paper: #fbf8f3; --card: #fff; --line: #e6ddd0; --link: #2f6b2b; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #efe7dc; --dim: #a89a8c; --paper: #1a1613; --card: #231e1a; --line: #3a322b; --link: #8fca88; }
}
* { box-sizing: border-box; }
body { margin: 0; min-height: 100vh; display: grid; grid-template-columns: minmax(0, 42rem); place-content: center; padding: 2rem 1rem; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
h1 { display: flex; align-items: center; gap: .7rem; margin: 0; font-size: 2rem; letter-spacing: -.02em; }
h1 img { width: 2.6rem; height: 2.6rem; }
p { margin: .9rem 0 0; color: var(--dim); }
ul { list-style: none; margin: 1.8rem 0; padding: 0; display: grid; gap: .8rem; grid-template-columns: repeat(auto-fit, minmax(12rem, 1fr)); }
a { display: block; height: 100%; padding: .9rem 1rem; border: 1px solid var(--line); border-radius: .6rem; background: var(--card); color: var(--dim); text-decoration: none; font-size: .9rem; }
a:hover, a:focus-visible { border-color: var(--link); }
a b { display: block; color: var(--link); font-size: 1rem; }
pre { margin: .6rem 0 0; padding: .9rem 1rem; overflow-x: auto; border: 1px solid var(--line); border-radius: .6rem; background: var(--card); font: .85rem/1.5 ui-monospace, monospace; }
small { display: block; margin-top: 1.6rem; color: var(--dim); }
`;

const page = (base: string) => `<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <title>Loam</title>
  <link rel="icon" href="/favicon.svg" type="image/svg+xml">
  <style>${STYLE}</style>
</head>
<body>
<main>
  <h1><img src="/favicon.svg" alt="">Loam</h1>
  <p>Git repositories, batch jobs and webhooks. This server is running.</p>
  <ul>
    <li><a href="/docs"><b>REST</b>Every route, to read and to try</a></li>
    <li><a href="/graphql"><b>GraphQL</b>All of it, in one query</a></li>
    <li><a href="/openapi.json"><b>OpenAPI</b>The document, for generators</a></li>
  </ul>
  <p>Begin with the token that the first start printed (<code>npm run token -- admin</code> makes a new one):</p>
  <pre>curl -H "Authorization: Bearer $LOAM_TOKEN" \\
  ${base}/auth/v1/whoami</pre>
  <small>Loam ${version.build}</small>
</main>
</body>
</html>
`;

/** Nothing but this one style and our own icon, and no frame around it. */
const POLICY = [
  "default-src 'none'",
  `style-src 'sha256-${hash('sha256', STYLE, 'base64')}'`,
  "img-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ');

export function createHome({ urls }: Pick<Services, 'urls'>): Router {
  const html = page(urls.base.replaceAll('&', '&amp;').replaceAll('<', '&lt;'));
  const icon: RequestHandler = (_req, res) =>
    void res.set('Cache-Control', 'public, max-age=86400').type('image/svg+xml').send(ICON);

  const router = express.Router({ caseSensitive: true, strict: true });
  // Older browsers ask for it unasked.
  for (const path of ['/favicon.svg', '/favicon.ico'])
    router
      .route(path)
      .get(icon)
      .all(otherMethod(['GET']));
  router.get('/', (req, res, next) => {
    res.vary('Accept');
    if (req.accepts(['json', 'html']) !== 'html') return next();
    res.set({
      'Cache-Control': 'no-cache',
      'Content-Security-Policy': POLICY,
      'X-Content-Type-Options': 'nosniff',
      'Referrer-Policy': 'no-referrer',
    });
    res.type('html').send(html);
  });
  return router;
}
