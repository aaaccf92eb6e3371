/**
 * Reads a REST request's body once, strictly, and keeps it on the request: the bytes to compare
 * requests (`Idempotency-Key`), the parsed object for the operation.
 */
import { isUtf8 } from 'node:buffer';
import type { IncomingMessage } from 'node:http';
import type { RequestHandler } from 'express';
import { invalid } from '../../base/errors.ts';
import { readBytes } from '../../platform/web/body.ts';
import { parseBody } from '../../platform/web/json.ts';

export type JsonObject = Record<string, unknown>;

declare global {
  namespace Express {
    interface Request {
      /** The body's bytes; undefined when there was none. */
      rawBody?: Buffer;
      /** The parsed body; undefined when there was none. */
      json?: JsonObject;
    }
  }
}

/** @throws AppError 400, passed on to the error edge. */
export const readBody: RequestHandler = async (req, _res, next) => {
  if (!mayHaveBody(req)) return next();
  const bytes = await readBytes(req);
  if (bytes.length > 0) {
    demandJsonType(req.headers);
    req.rawBody = bytes;
    req.json = parse(bytes);
  }
  next();
};

function mayHaveBody({ headers }: IncomingMessage): boolean {
  return headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0;
}

function demandJsonType(headers: IncomingMessage['headers']): void {
  const [type = '', ...parameters] = (headers['content-type'] ?? '').toLowerCase().split(';');
  if (type.trim() !== 'application/json')
    throw invalid(null, 'A request with a body needs the header Content-Type: application/json');
  const charset = parameters.map((p) => p.trim()).find((p) => p.startsWith('charset='));
  if (charset && !/^charset="?(utf-?8|us-ascii)"?$/.test(charset))
    throw invalid(null, 'The body must be UTF-8');
  if ((headers['content-encoding'] ?? 'identity') !== 'identity')
    throw invalid(null, 'The body must not be compressed');
}

function parse(bytes: Buffer): JsonObject {
  if (!isUtf8(bytes)) throw invalid(null, 'The body is not valid UTF-8');
  const value = parseBody(bytes.toString('utf8'));
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw invalid(null, 'The body must be a JSON object');
  return value as JsonObject;
}
