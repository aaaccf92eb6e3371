/**
 * The files of the dashboard that Vite made, held in memory as browsers take them: some 3 MB. What one server hands out
 * is one build, the same as its document, also while `npm run build` puts another in its place on the disk.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { extname, join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import type { RequestHandler } from 'express';

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
