/**
 * `/docs`: the pages of the documentation, for everyone. `npm run build` renders them (`src/dashboard/docs`). Without a build,
 * `/docs` leads to the REST reference, which is at `/docs/api`.
 */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import express, { type Router } from 'express';
import { refuseOtherMethods } from '../../platform/web/methods.ts';
import { sendPage } from '../../platform/web/page.ts';
import { readBuiltFiles, sendBuiltFile, serveAssets } from './built-files.ts';

const FOLDER = join(import.meta.dirname, '../../../dist/docs');

const POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self'",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'self'",
  "frame-ancestors 'none'",
].join('; ');

const NOT_FOUND = `
  <p>The documentation has no page with this address.</p>
  <p class="choices"><a class="button primary" href="/docs">All pages</a></p>
`;

/** Mounted after the REST reference. */
export function createDocs(): Router {
  const router = express.Router({ caseSensitive: true, strict: true });
  if (!existsSync(FOLDER)) {
    router.get('/docs', (_req, res) => res.redirect('/docs/api'));
    return router;
  }
  const pages = readBuiltFiles(join(FOLDER, 'pages'));
  const build = readFileSync(join(FOLDER, 'built-from'), 'utf8').slice(0, 16);
  router.use('/docs/assets', serveAssets(join(FOLDER, 'assets')));
  router
    .route(['/docs', '/docs/:page'])
    .get((req, res, next) => {
      const page = req.path.split('/')[2];
      // Links between the sources name files, and people take such addresses from them.
      const source = /^(.*)\.md$/i.exec(page ?? '')?.[1]?.toLowerCase();
      if (source !== undefined)
        return res.redirect(source === 'readme' ? '/docs' : `/docs/${source}`);
      const name = `${page ?? 'index'}.html`;
      const file = page === 'index' ? undefined : pages.get(name);
      if (!file) {
        if (req.accepts(['json', 'html']) !== 'html') return next('route');
        return sendPage(
          res,
          { title: 'Page not found', body: NOT_FOUND },
          { isPrivate: false, status: 404 },
        );
      }
      res.set({
        'Cache-Control': 'no-cache',
        'Content-Security-Policy': POLICY,
        'X-Content-Type-Options': 'nosniff',
        'Referrer-Policy': 'no-referrer',
      });
      sendBuiltFile(req, res, { name, version: build }, file);
    })
    .all(refuseOtherMethods(['GET']));
  return router;
}
