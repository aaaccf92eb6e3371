/** Routes for signed requests from other servers. */

import { hash } from 'node:crypto';
import { deserialize } from 'node:v8';
import express, { type RequestHandler, type Router } from 'express';
import { isId } from '../base/ids.ts';
import type { Logger } from '../base/log.ts';
import type { Git } from '../git/git.ts';
import type { Db } from '../platform/database/client.ts';
import { closeSignal } from '../platform/web/connections.ts';
import { shouldLog, toClientError } from '../platform/web/error-response.ts';
import {
  CALL_TYPE,
  CALLS_PATH,
  CONTENT_HASH_HEADER,
  callSignatureParts,
  executeCall,
  serializeFailure,
} from './calls.ts';
import type { Cluster } from './cluster.ts';
import { readForwardedAddress } from './forward.ts';
import { isSigned, SIGNATURE_HEADER } from './signature.ts';
import { findStreamProducer, HEAD_HEADER, STREAM_TYPE, STREAMS_PATH } from './streams.ts';

export type Deps = { db: Db; git: Git; log: Logger; cluster: Cluster };

declare global {
  namespace Express {
    interface Request {
      /** Set if another server forwarded the request to this server as the owner. It is not forwarded again. */
      forwarded?: true;
    }
  }
}

/** Several times the largest input, which is a request for the patches of a page of files: 100 paths of 4 KiB. */
const MAX_INPUT_BYTES = 4 * 2 ** 20;

type Handler = RequestHandler<{ name: string; id: string }>;

/** A request without a valid signature is handled as if the path did not exist. */
export function createCallsRouter(services: Deps): Router {
  const { cluster, log } = services;
  const router = express.Router();
  const requireSignature: Handler = (req, _res, next) => {
    const parts = callSignatureParts(req.originalUrl, req.get(CONTENT_HASH_HEADER) ?? '');
    next(isSigned(cluster.key, req.headers[SIGNATURE_HEADER], parts) ? undefined : 'router');
  };
  const requireInput: Handler = (req, _res, next) => {
    const { params, body } = req;
    const isSignedInput =
      body instanceof Uint8Array && hash('sha256', body) === req.get(CONTENT_HASH_HEADER);
    next(isSignedInput && isId('repo', params.id) ? undefined : 'router');
  };
  const body = express.raw({ type: CALL_TYPE, limit: MAX_INPUT_BYTES });
  const checks = [requireSignature, body, requireInput];

  const call: Handler = async ({ params: { name, id }, body: input }, res, next) => {
    const request = { name, repositoryId: id, input, signal: closeSignal(res) };
    const result = await executeCall(services, request, (error) => {
      if (shouldLog(error))
        log.error({ err: error, call: name, repository: id }, 'a call from another server failed');
      return toClientError(error);
    });
    if (!result) return next('router');
    res.type(CALL_TYPE).send(result);
  };
  const stream: Handler = async ({ params: { name, id }, body: input }, res, next) => {
    const produce = findStreamProducer(name);
    if (!produce) return next('router');
    const signal = closeSignal(res);
    const begin = (head: unknown) => {
      res.setHeader('Content-Type', STREAM_TYPE);
      res.setHeader(HEAD_HEADER, Buffer.from(JSON.stringify(head)).toString('base64url'));
      return res;
    };
    try {
      await produce(services, id, deserialize(input), { begin, signal });
      res.end();
    } catch (error) {
      if (signal.aborted) return;
      if (res.headersSent || shouldLog(error)) throw error;
      res.removeHeader(HEAD_HEADER);
      res.type(CALL_TYPE).send(serializeFailure(toClientError(error)));
    }
  };
  router.post(`${CALLS_PATH}/:name/:id`, checks, call);
  router.post(`${STREAMS_PATH}/:name/:id`, checks, stream);
  return router;
}

/** Uses the client address that another server has signed. */
export function acceptForwarded({ cluster }: { cluster: Cluster }): RequestHandler {
  return (req, _res, next) => {
    const address = readForwardedAddress(cluster, req);
    if (address !== undefined) {
      req.forwarded = true;
      Object.defineProperty(req, 'ip', { value: address });
    }
    next();
  };
}
