/** Sends an object that may be large. Handles conditional requests, ranges, HEAD, and disconnects of either side. */
import { finished } from 'node:stream/promises';
import type { Request, Response } from 'express';
import { AppError } from '../../base/errors.ts';
import type { ByteRange } from '../storage/storage.ts';

type Sendable = {
  /** Bytes. */
  size: number;
  /** Without quotes. */
  etag: string;
  modifiedAt?: Date;
  /**
   * Opens the object or a range of it. Not called for responses without a body. A piece is not used after the next piece is
   * requested.
   */
  open(range?: ByteRange): Promise<AsyncIterable<Uint8Array>>;
};

/** Runs the transfer of a body when a slot is free. */
type RunInSlot = (send: () => Promise<void>) => Promise<void>;

/**
 * Responds as RFC 9110 requires: 200, 206 for one range, 304 or 412 for conditions. Resolves when all bytes are sent or the
 * client has disconnected. The caller sets the headers for type, name and caching.
 * @throws AppError 412, 416; errors of `open` and of the contents, after which the response must be aborted
 */
export async function sendObject(
  req: Request,
  res: Response,
  object: Sendable,
  runInSlot: RunInSlot = (send) => send(),
): Promise<void> {
  const { size, modifiedAt } = object;
  const etag = `"${object.etag}"`;
  res.setHeader('Accept-Ranges', 'bytes');
  res.setHeader('ETag', etag);
  if (modifiedAt) res.setHeader('Last-Modified', modifiedAt.toUTCString());
  const match = req.get('if-match');
  if (match && !etagMatches(match, etag))
    throw new AppError('invalid_request', 'If-Match: the file has another version', {
      status: 412,
    });
  const unmodified = req.get('if-unmodified-since');
  if (!match && unmodified && modifiedTime(object) > Date.parse(unmodified))
    throw new AppError('invalid_request', 'If-Unmodified-Since: the file was modified later', {
      status: 412,
    });
  const none = req.get('if-none-match');
  if (none ? etagMatches(none, etag) : req.fresh) return void res.status(304).end();

  const range = parseRange(req, object, etag);
  if (range === 'unsatisfiable') {
    res.setHeader('Content-Range', `bytes */${size}`);
    throw new AppError('invalid_request', 'The range lies beyond the file', { status: 416 });
  }
  if (range)
    res.status(206).setHeader('Content-Range', `bytes ${range.start}-${range.end}/${size}`);
  res.setHeader('Content-Length', range ? range.end - range.start + 1 : size);
  if (req.method === 'HEAD') return void res.end();
  await runInSlot(async () => {
    await sendAll(await object.open(range), res).catch((error) => {
      // The headers are already sent, so only a broken connection can show the error.
      if (res.headersSent) res.destroy();
      // A client that has disconnected needs no error.
      if (!req.destroyed || !res.destroyed) throw error;
    });
  });
}

/** Writes each piece after the previous piece was sent, because pieces may share memory. */
async function sendAll(contents: AsyncIterable<Uint8Array>, res: Response): Promise<void> {
  // A write to a socket that is being destroyed never calls back, because Node queues it for a new socket.
  let fail = (_: Error) => {};
  res.once('close', () => fail(new Error('The client closed the connection')));
  for await (const piece of contents) {
    if (piece.length === 0) continue;
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    fail = reject;
    res.write(piece, (error) => (error ? reject(error) : resolve()));
    await promise;
  }
  res.end();
  await finished(res);
}

/** The requested range; undefined for the whole object, which is also the response to several ranges. */
function parseRange(
  req: Request,
  object: Sendable,
  etag: string,
): ByteRange | 'unsatisfiable' | undefined {
  const condition = req.get('if-range');
  // An ETag has quotes, a date has none.
  const isSame = (given: string) =>
    given.includes('"') ? given === etag : modifiedTime(object) <= Date.parse(given);
  if (condition && !isSame(condition)) return undefined;
  const ranges = req.range(object.size, { combine: true });
  if (ranges === -1) return 'unsatisfiable';
  if (!Array.isArray(ranges) || ranges.type !== 'bytes' || ranges.length !== 1) return undefined;
  return ranges[0];
}

/** In whole seconds, as in HTTP dates; NaN if unknown, which is neither earlier nor later than any date. */
function modifiedTime({ modifiedAt }: Sendable): number {
  return modifiedAt ? Math.floor(modifiedAt.getTime() / 1000) * 1000 : Number.NaN;
}

/** User content must never be rendered as a page of this site, where its scripts would have the viewer's session. */
export function forbidRendering(res: Response): void {
  res.setHeader('X-Content-Type-Options', 'nosniff');
  res.setHeader('Content-Security-Policy', "default-src 'none'; sandbox");
}

/**
 * The type of a downloaded file. Browsers recognize images by their content, except for SVG. With `forbidRendering`, an SVG
 * is an image within a page, where it runs no scripts, but never a page itself.
 */
export function downloadTypeOf(name: string): string {
  return /\.svg$/i.test(name) ? 'image/svg+xml' : 'application/octet-stream';
}

/* Conditional requests (RFC 9110 section 13). */

/**
 * Whether `If-None-Match` contains the current ETag. Express's `req.fresh` is false for every request with
 * `Cache-Control: no-cache`, which `fetch` adds to requests with `If-None-Match`.
 */
export function etagMatches(ifNoneMatch: string | undefined, etag: string): boolean {
  if (!ifNoneMatch) return false;
  const weak = (tag: string) => tag.trim().replace(/^W\//, '');
  return ifNoneMatch.split(',').some((tag) => tag.trim() === '*' || weak(tag) === weak(etag));
}
