/** Requests of other servers to this one, recognized by their signature. */

import { hash } from 'node:crypto';
import { deserialize } from 'node:v8';
import express, { type RequestHandler, type Router } from 'express';
import { isId } from '../base/ids.ts';
import type { Logger } from '../base/log.ts';
import type { Git } from '../git/git.ts';
import type { Db } from '../platform/database/client.ts';
import { closingOf } from '../platform/web/connections.ts';
import { isUnexpected, toPublic } from '../platform/web/error-response.ts';
import {
  answerCall,
  answerWith,
  CALL_TYPE,
  CALLS_PATH,
  CONTENT_HASH,
  partsOf as partsOfCall,
} from './calls.ts';
import type { Cluster } from './cluster.ts';
import { CLIENT_ADDRESS, partsOf as partsOfForwarded } from './forward.ts';
import { isSigned, SIGNATURE } from './signature.ts';
import { findStream, HEAD, STREAM_TYPE, STREAMS_PATH } from './streams.ts';

export type Deps = { db: Db; git: Git; log: Logger; cluster: Cluster };

declare global {
  namespace Express {
    interface Request {
      /** By another server, which found that this one has the repository. It is not sent on again. */
      forwarded?: true;
    }
  }
}

/** Of one page of files whose patches are asked for: 100 paths of 4 KiB, several times over. */
const MAX_INPUT_BYTES = 4 * 2 ** 20;

type Handler = RequestHandler<{ name: string; id: string }>;

/** Requests without a good signature are those of a path that is not there. */
export function callsRouter(services: Deps): Router {
  const { cluster, log } = services;
  const router = express.Router();
  const demandSignature: Handler = (req, _res, next) => {
    const parts = partsOfCall(req.originalUrl, req.get(CONTENT_HASH) ?? '');
    next(isSigned(cluster.key, req.headers[SIGNATURE], parts) ? undefined : 'router');
  };
  const demandInput: Handler = (req, _res, next) => {
    const { params, body } = req;
    const isInput = body instanceof Uint8Array && hash('sha256', body) === req.get(CONTENT_HASH);
    next(isInput && isId('repo', params.id) ? undefined : 'router');
  };
  const body = express.raw({ type: CALL_TYPE, limit: MAX_INPUT_BYTES });
  const called = [demandSignature, body, demandInput];

  const call: Handler = async ({ params: { name, id }, body: input }, res, next) => {
    const asked = { name, repositoryId: id, input, signal: closingOf(res) };
    const answer = await answerCall(services, asked, (error) => {
      if (isUnexpected(error))
        log.error({ err: error, call: name, repository: id }, 'a call failed');
      return toPublic(error);
    });
    if (!answer) return next('router');
    res.type(CALL_TYPE).send(answer);
  };
  const stream: Handler = async ({ params: { name, id }, body: input }, res, next) => {
    const produce = findStream(name);
    if (!produce) return next('router');
    const signal = closingOf(res);
    const begin = (head: unknown) => {
      res.setHeader('Content-Type', STREAM_TYPE);
      res.setHeader(HEAD, Buffer.from(JSON.stringify(head)).toString('base64url'));
      return res;
    };
    try {
      await produce(services, id, deserialize(input), { begin, signal });
      res.end();
    } catch (error) {
      if (signal.aborted) return;
      if (res.headersSent || isUnexpected(error)) throw error;
      res.removeHeader(HEAD);
      res.type(CALL_TYPE).send(answerWith(toPublic(error)));
    }
  };
  router.post(`${CALLS_PATH}/:name/:id`, called, call);
  router.post(`${STREAMS_PATH}/:name/:id`, called, stream);
  return router;
}

/** Takes the client's address from another server. */
export function acceptForwarded({ cluster }: { cluster: Cluster }): RequestHandler {
  return (req, _res, next) => {
    const address = req.get(CLIENT_ADDRESS);
    if (address === undefined) return next();
    const parts = partsOfForwarded(req.method, req.originalUrl, address);
    if (isSigned(cluster.key, req.headers[SIGNATURE], parts)) {
      req.forwarded = true;
      Object.defineProperty(req, 'ip', { value: address });
    }
    next();
  };
}
