/**
 * The pages of the dashboard: one document for all of them, whose script asks GraphQL for the rest, and the files that
 * Vite made (`src/dashboard`). `npm start` builds them; where nobody did, browsers find what `home.ts` has.
 */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import express, { type Request, type Router } from 'express';
import { isPage } from '../../platform/web/pages.ts';
import { serveAssets } from './assets.ts';
import { version } from './diagnostics.ts';

const FOLDER = join(import.meta.dirname, '../../../dist/dashboard');

/** Where the document has what its script must know before it can ask. */
const START = /(<script id="start" type="application\/json">)null(?=<\/script>)/;

/** What somebody chose (`layout/theme.ts`), so that a dark page is never light for its first moment. */
const THEME = /(?:^|; )loam-theme=(light|dark)(?:;|$)/;

/**
 * No script or style but our own files, nothing from other hosts, and no frame around it. Styles that scripts set on an
 * element are no exception: browsers do not count them.
 */
const POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self' data: blob:",
  "font-src 'self'",
  "connect-src 'self'",
  "worker-src 'self'",
  "frame-src 'self'",
  "base-uri 'none'",
  "form-action 'self'",
  "frame-ancestors 'none'",
].join('; ');

/**
 * Of the frame that draws a diagram which a user wrote (`src/dashboard/diagram.ts`). Mermaid writes styles into its
 * pictures, so they are allowed there; in return the document has no origin, and asks no server but for our scripts.
 */
const DIAGRAM_POLICY = [
  'sandbox allow-scripts',
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'unsafe-inline'",
  'img-src data:',
  'font-src data:',
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'self'",
].join('; ');

/** Null where it is not built. */
export function createDashboard(): Router | null {
  const path = join(FOLDER, 'index.html');
  if (!existsSync(path)) return null;
  const document = readFileSync(path, 'utf8');
  if (!START.test(document)) throw new Error(`${path} has no place for what its script must know`);

  const diagram = readFileSync(join(FOLDER, 'diagram.html'), 'utf8');

  const router = express.Router({ caseSensitive: true, strict: true });
  router.get('/assets/diagram.html', (_req, res) => {
    res.set({
      'Cache-Control': 'no-cache',
      'Content-Security-Policy': DIAGRAM_POLICY,
      'X-Content-Type-Options': 'nosniff',
      'Referrer-Policy': 'no-referrer',
    });
    res.type('html').send(diagram);
  });
  router.use('/assets', serveAssets(join(FOLDER, 'assets')));
  router.use((req, res, next) => {
    if (!isPage(req)) return next();
    const { viewer } = req;
    // Who is not signed in begins with what this is, and with the address where one signs in.
    if (req.path === '/' && viewer.kind !== 'account') return next();
    const start = JSON.stringify(startOf(req)).replaceAll('<', '\\u003c');
    res.vary('Accept, Cookie');
    res.set({
      'Cache-Control': 'no-store',
      'Content-Security-Policy': POLICY,
      'X-Content-Type-Options': 'nosniff',
      'Referrer-Policy': 'same-origin',
    });
    const theme = THEME.exec(req.headers.cookie ?? '')?.[1];
    const page = document.replace(START, (_all, tag: string) => tag + start);
    res.type('html').send(theme ? page.replace('<html', `<html data-theme="${theme}"`) : page);
  });
  return router;
}

/** `StartData` in `src/dashboard/start.ts`. */
function startOf({ viewer }: Request) {
  return {
    viewer:
      viewer.kind === 'account' ? { username: viewer.username, operator: viewer.operator } : null,
    build: version.build,
  };
}
