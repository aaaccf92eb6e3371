/**
 * Serves the dashboard (`src/dashboard`): one HTML document for all pages, and the assets that Vite builds. `npm start`
 * runs the build. Without a build, browsers get the page of `home.ts`.
 */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Request, Router } from 'express';
import express from 'express';
import type { Config } from '../../base/config/config.ts';
import { wantsPage } from '../../platform/web/page.ts';
import { serveAssets } from './built-files.ts';
import { version } from './diagnostics.ts';

const FOLDER = join(import.meta.dirname, '../../../dist/dashboard');

/** The placeholder in the document for the data that its script needs before the first query. */
const START_DATA = /(<script id="start" type="application\/json">)null(?=<\/script>)/;

/**
 * The cookie of the theme that the user chose (`layout/theme.ts`). It is set in the document, so that a dark page does not
 * flash white.
 */
const THEME = /(?:^|; )loam-theme=(light|dark)(?:;|$)/;

/**
 * Allows only our own scripts, styles and files, and no framing. Styles that a script sets on an element need no
 * exception: the policy does not cover them.
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
 * For the frames that draw a diagram written by a user (`src/dashboard/diagram.ts`), or the output of a job as a terminal
 * (`src/dashboard/terminal.ts`). Mermaid and xterm.js use inline styles. In return the documents have no origin, and may load
 * nothing but our scripts and styles.
 */
const FRAME_POLICY = [
  'sandbox allow-scripts',
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self' 'unsafe-inline'",
  'img-src data:',
  'font-src data:',
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'self'",
].join('; ');

/** @returns null when the dashboard has not been built */
export function createDashboard({ config }: { config: Pick<Config, 'hardware'> }): Router | null {
  const path = join(FOLDER, 'index.html');
  if (!existsSync(path)) return null;
  const document = readFileSync(path, 'utf8');
  if (!START_DATA.test(document))
    throw new Error(`${path} lacks the element #start. Run npm run build.`);

  const router = express.Router({ caseSensitive: true, strict: true });
  for (const name of ['diagram.html', 'terminal.html']) {
    const page = readFileSync(join(FOLDER, name), 'utf8');
    router.get(`/assets/${name}`, (_req, res) => {
      res.set({
        'Cache-Control': 'no-cache',
        'Content-Security-Policy': FRAME_POLICY,
        'X-Content-Type-Options': 'nosniff',
        'Referrer-Policy': 'no-referrer',
      });
      res.type('html').send(page);
    });
  }
  router.use('/assets', serveAssets(join(FOLDER, 'assets')));
  // Addresses as on GitHub. Ours have the ref as a parameter; here it is the first part, because paths have slashes, too.
  router.get('/:namespace/:repository/blob/:ref/*path', (req, res, next) => {
    if (!wantsPage(req)) return next();
    const { namespace, repository, ref, path } = req.params;
    const file = [namespace, repository, 'file', ...path].map(encodeURIComponent).join('/');
    res.redirect(`/${file}?${new URLSearchParams({ ref })}`);
  });
  router.use((req, res, next) => {
    if (!wantsPage(req)) return next();
    const { viewer } = req;
    // Visitors who are not signed in get the page of `home.ts`, with the link to sign in.
    if (req.path === '/' && viewer.kind !== 'account') return next();
    const start = JSON.stringify(startDataFor(req, config.hardware.current.currency)).replaceAll(
      '<',
      '\\u003c',
    );
    res.vary('Accept, Cookie');
    res.set({
      'Cache-Control': 'no-store',
      'Content-Security-Policy': POLICY,
      'X-Content-Type-Options': 'nosniff',
      'Referrer-Policy': 'same-origin',
    });
    const theme = THEME.exec(req.headers.cookie ?? '')?.[1];
    const page = document.replace(START_DATA, (_all, tag: string) => tag + start);
    res.type('html').send(theme ? page.replace('<html', `<html data-theme="${theme}"`) : page);
  });
  return router;
}

/** The type `StartData` in `src/dashboard/start.ts`. */
function startDataFor({ viewer }: Request, currency: string) {
  return {
    viewer:
      viewer.kind === 'account' ? { username: viewer.username, operator: viewer.operator } : null,
    build: version.build,
    currency,
  };
}
