/**
 * The page at `/` for visitors who are not signed in, and for everyone if the dashboard has not been built. Clients that
 * do not accept HTML get a 404 as JSON.
 */
import express, { type RequestHandler, type Router } from 'express';
import { refuseOtherMethods } from '../../platform/web/methods.ts';
import { escapeHtml, sendPage, wantsPage } from '../../platform/web/page.ts';
import { version } from './diagnostics.ts';

const ICON = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">
<rect width="32" height="32" rx="7" fill="#f3ead9"/>
<path d="M0 15q8-4 16 0t16 0v10a7 7 0 0 1-7 7H7a7 7 0 0 1-7-7z" fill="#a9794b"/>
<path d="M0 22q8-4 16 0t16 0v3a7 7 0 0 1-7 7H7a7 7 0 0 1-7-7z" fill="#5b3a21"/>
<path d="M16 16V8m0 3q0-5 6-6q0 6-6 6zm0 2q0-4-5-5q0 5 5 5z" fill="#3f7d3a" stroke="#3f7d3a" stroke-width="1.6" stroke-linejoin="round"/>
</svg>
`;

const body = (username: string | null) => `
  <p>Git repositories, batch jobs and webhooks.</p>
  ${
    username === null
      ? '<p class="choices"><a class="button primary" href="/login">Sign in</a></p>'
      : `<form method="post" action="/logout">
    <span>Signed in as <b>${escapeHtml(username)}</b>. GraphQL works here with your rights.</span>
    <button>Sign out</button>
  </form>`
  }
  <small>
    <a href="/docs">Documentation</a>
    <a href="/docs/api">REST API</a>
    <a href="/graphql">GraphQL</a>
    <a href="/openapi.json">OpenAPI</a>
    <span>Loam ${version.build}</span>
  </small>
`;

export function createHomePage(): Router {
  const icon: RequestHandler = (_req, res) =>
    void res.set('Cache-Control', 'public, max-age=86400').type('image/svg+xml').send(ICON);

  const router = express.Router({ caseSensitive: true, strict: true });
  // Older browsers request /favicon.ico without being told to.
  for (const path of ['/favicon.svg', '/favicon.ico'])
    router
      .route(path)
      .get(icon)
      .all(refuseOtherMethods(['GET']));
  router.get('/', (req, res, next) => {
    res.vary('Accept');
    if (!wantsPage(req)) return next();
    const { viewer } = req;
    const username = viewer.kind === 'account' ? viewer.username : null;
    res.vary('Cookie');
    sendPage(res, { title: 'Loam', body: body(username) }, { isPrivate: username !== null });
  });
  return router;
}
