/**
 * Files of a build, held in memory, compressed: about 4 MB in all. So one server always serves the same build, also while
 * `npm run build` replaces the files on disk.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { extname, join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import type { Request, RequestHandler, Response } from 'express';

const ENCODINGS = { br: '.br', gzip: '.gz' } as const;
type Encoding = keyof typeof ENCODINGS;

/** The build compresses files in every encoding, except those that are too small. */
type BuiltFile = { plain: Buffer } | Record<Encoding, Buffer>;

/** The name of an asset contains a hash of its content. */
const CACHE_CONTROL = 'public,max-age=31536000,immutable';

/** Mounted at the path of the folder; passes on requests for other files. */
export function serveAssets(folder: string): RequestHandler {
  const assets = readBuiltFiles(folder);
  return (req, res, next) => {
    const name = req.path.slice(1);
    const asset = assets.get(name);
    if (!asset || (req.method !== 'GET' && req.method !== 'HEAD')) return next();
    res.set({ 'Cache-Control': CACHE_CONTROL, 'X-Content-Type-Options': 'nosniff' });
    sendBuiltFile(req, res, { name, version: name }, asset);
  };
}

/** @param version differs between files with different contents */
export function sendBuiltFile(
  req: Request,
  res: Response,
  { name, version }: { name: string; version: string },
  file: BuiltFile,
): void {
  // Browsers list gzip first, but Brotli is a tenth smaller.
  const ifAccepted = (encoding: Encoding) => (req.acceptsEncodings(encoding) ? encoding : false);
  const encoding = 'plain' in file ? false : ifAccepted('br') || ifAccepted('gzip');
  res.vary('Accept-Encoding');
  res.set('ETag', `"${version}.${encoding || 'plain'}"`);
  if (encoding) res.set('Content-Encoding', encoding);
  res.type(extname(name)).send(encodedBody(file, encoding));
}

function encodedBody(file: BuiltFile, encoding: Encoding | false): Buffer {
  if ('plain' in file) return file.plain;
  return encoding ? file[encoding] : gunzipSync(file.gzip);
}

export function readBuiltFiles(folder: string): Map<string, BuiltFile> {
  const names = new Set(readdirSync(folder));
  const read = (name: string) => readFileSync(join(folder, name));
  const files = new Map<string, BuiltFile>();
  for (const name of names) {
    if (Object.values(ENCODINGS).some((suffix) => name.endsWith(suffix))) continue;
    const isCompressed = Object.values(ENCODINGS).every((suffix) => names.has(name + suffix));
    files.set(
      name,
      isCompressed ? { br: read(`${name}.br`), gzip: read(`${name}.gz`) } : { plain: read(name) },
    );
  }
  return files;
}
