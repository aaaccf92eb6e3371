/**
 * The whole body of a request whose route takes a short one.
 *
 * `express.json` was tried: it reads a body that is too large to its end before it answers, so that one of no given
 * length is not refused while it is sent.
 */
import type { IncomingMessage } from 'node:http';
import { invalid } from '../../base/errors.ts';

/** Decisions section 2: larger is 400, because 413 is not in the specification's table. */
export const MAX_BODY_BYTES = 1024 * 1024;

/**
 * What is left of a body that is too large is dropped as it comes, for as long as connections.ts allows.
 * @throws AppError 400 when it is too large, or the client goes before its end
 */
export async function readBytes(req: IncomingMessage): Promise<Buffer<ArrayBuffer>> {
  const tooLarge = () => invalid(null, 'The body is larger than 1 MiB');
  if (Number(req.headers['content-length'] ?? 0) > MAX_BODY_BYTES) throw tooLarge();
  const { promise, resolve, reject } = Promise.withResolvers<Buffer<ArrayBuffer>>();
  const chunks: Buffer[] = [];
  let size = 0;
  req.on('data', (chunk: Buffer) => {
    size += chunk.length;
    if (size <= MAX_BODY_BYTES) chunks.push(chunk);
    else reject(tooLarge());
  });
  req.on('end', () => resolve(Buffer.concat(chunks)));
  // Gone before the end: there is nobody left to answer, but the handler must not wait for ever.
  const early = () => {
    if (!req.readableEnded) reject(invalid(null, 'The body ended early'));
  };
  req.on('error', early).on('close', early);
  return promise;
}
