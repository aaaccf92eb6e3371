/** Answering with an object that may be large: conditions, ranges, HEAD, and what happens when either side leaves. */
import { finished } from 'node:stream/promises';
import type { Request, Response } from 'express';
import { AppError } from '../errors.ts';
import type { ByteRange } from '../storage/storage.ts';
import { matches } from './etags.ts';

export type Sendable = {
  /** In bytes. */
  size: number;
  /** Without quotes. */
  etag: string;
  modifiedAt?: Date;
  /** All of it, or a range that lies within: a piece is done with when the next is asked for. Not called where the answer has no body. */
  open(range?: ByteRange): Promise<AsyncIterable<Uint8Array>>;
};

/** Runs the sending of a body when it may begin. */
type InTurn = (send: () => Promise<void>) => Promise<void>;

/**
 * By RFC 9110: 200, 206 for one range, 304 or 412 as the request's conditions say. Settles when all is sent, or the
 * client is gone. Type, name and caching are the caller's.
 * @throws AppError 412, 416; what `open` throws, and what the contents fail with, when the answer must break off
 */
export async function sendObject(
  req: Request,
  res: Response,
  object: Sendable,
  inTurn: InTurn = (send) => send(),
): Promise<void> {
  const { size, modifiedAt } = object;
  const etag = `"${object.etag}"`;
  res.setHeader('Accept-Ranges', 'bytes');
  res.setHeader('ETag', etag);
  if (modifiedAt) res.setHeader('Last-Modified', modifiedAt.toUTCString());
  const match = req.get('if-match');
  if (match && !matches(match, etag))
    throw new AppError('invalid_request', 'If-Match: it is another version', { status: 412 });
  const unmodified = req.get('if-unmodified-since');
  if (!match && unmodified && timeOf(object) > Date.parse(unmodified))
    throw new AppError('invalid_request', 'If-Unmodified-Since: it is newer', { status: 412 });
  const none = req.get('if-none-match');
  if (none ? matches(none, etag) : req.fresh) return void res.status(304).end();

  const range = wantedRange(req, object, etag);
  if (range === 'unsatisfiable') {
    res.setHeader('Content-Range', `bytes */${size}`);
    throw new AppError('invalid_request', 'The range lies beyond the file', { status: 416 });
  }
  if (range)
    res.status(206).setHeader('Content-Range', `bytes ${range.start}-${range.end}/${size}`);
  res.setHeader('Content-Length', range ? range.end - range.start + 1 : size);
  if (req.method === 'HEAD') return void res.end();
  await inTurn(async () => {
    await sendAll(await object.open(range), res).catch((error) => {
      // What is missing cannot be said any more.
      if (res.headersSent) res.destroy();
      // Whoever left has no use for an answer.
      if (!req.destroyed || !res.destroyed) throw error;
    });
  });
}

/** Each piece when the one before it has left: their memory may be the same. */
async function sendAll(contents: AsyncIterable<Uint8Array>, res: Response): Promise<void> {
  // Node never calls back for a write to a socket that is being destroyed, so the end of the response must fail the write.
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

/** One range of bytes; undefined for the whole, which is also the answer to several. */
function wantedRange(
  req: Request,
  object: Sendable,
  etag: string,
): ByteRange | 'unsatisfiable' | undefined {
  const condition = req.get('if-range');
  // An ETag has quotes, a time has none.
  const isSame = (given: string) =>
    given.includes('"') ? given === etag : timeOf(object) <= Date.parse(given);
  if (condition && !isSame(condition)) return undefined;
  const ranges = req.range(object.size, { combine: true });
  if (ranges === -1) return 'unsatisfiable';
  if (!Array.isArray(ranges) || ranges.type !== 'bytes' || ranges.length !== 1) return undefined;
  return ranges[0];
}

/** In whole seconds, as HTTP has it; NaN, which is neither earlier nor later than any other, when it is not known. */
function timeOf({ modifiedAt }: Sendable): number {
  return modifiedAt ? Math.floor(modifiedAt.getTime() / 1000) * 1000 : Number.NaN;
}
