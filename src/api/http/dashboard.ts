/**
 * The pages of the dashboard: one document for all of them, whose script asks GraphQL for the rest, and the files that
 * Vite made (`src/dashboard`). `npm start` builds them; where nobody did, browsers find what `home.ts` has.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { extname, join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import type { Request, RequestHandler, Router } from 'express';
import express from 'express';
import { wantsPage } from '../../platform/web/page.ts';
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
    if (!wantsPage(req)) return next();
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

/**
 * The files of the dashboard that Vite made, held in memory as browsers take them: some 3 MB. What one server hands out
 * is one build, the same as its document, also while `npm run build` puts another in its place on the disk.
 */
const PACKINGS = { br: '.br', gzip: '.gz' } as const;
type Packing = keyof typeof PACKINGS;

/** Either as it is, because it is small, or packed in every way. */
type Asset = { plain: Buffer } | Record<Packing, Buffer>;

/** Their names change with their contents. */
const KEPT = 'public,max-age=31536000,immutable';

/** For a router at the folder's address; what is not there is for who comes next. */
export function serveAssets(folder: string): RequestHandler {
  const assets = readAssets(folder);
  return (req, res, next) => {
    const name = req.path.slice(1);
    const asset = assets.get(name);
    if (!asset || (req.method !== 'GET' && req.method !== 'HEAD')) return next();
    // Browsers name gzip first, and would take the tenth more.
    const accepts = (packing: Packing) => (req.acceptsEncodings(packing) ? packing : false);
    const packing = 'plain' in asset ? false : accepts('br') || accepts('gzip');
    res.vary('Accept-Encoding');
    res.set({
      'Cache-Control': KEPT,
      'X-Content-Type-Options': 'nosniff',
      ETag: `"${name}.${packing || 'plain'}"`,
    });
    if (packing) res.set('Content-Encoding', packing);
    res.type(extname(name)).send(bodyOf(asset, packing));
  };
}

function bodyOf(asset: Asset, packing: Packing | false): Buffer {
  if ('plain' in asset) return asset.plain;
  return packing ? asset[packing] : gunzipSync(asset.gzip);
}

function readAssets(folder: string): Map<string, Asset> {
  const names = new Set(readdirSync(folder));
  const read = (name: string) => readFileSync(join(folder, name));
  const assets = new Map<string, Asset>();
  for (const name of names) {
    if (Object.values(PACKINGS).some((end) => name.endsWith(end))) continue;
    const isPacked = Object.values(PACKINGS).every((end) => names.has(name + end));
    assets.set(
      name,
      isPacked ? { br: read(`${name}.br`), gzip: read(`${name}.gz`) } : { plain: read(name) },
    );
  }
  return assets;
}
