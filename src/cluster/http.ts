/** What other servers ask of this one, and how it knows that it is they who ask. */
import { hash } from 'node:crypto';
import express, { type RequestHandler, type Router } from 'express';
import { isUnexpected, toPublic } from '../errors.ts';
import { isId } from '../ids.ts';
import type { Services } from '../services.ts';
import {
  answerCall,
  CALL_TYPE,
  CALLS_PATH,
  CONTENT_HASH,
  partsOf as partsOfCall,
} from './calls.ts';
import { CLIENT_ADDRESS, partsOf as partsOfForwarded } from './forward.ts';
import { isSigned, SIGNATURE } from './signature.ts';

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

/** Requests without a good signature are those of a path that is not there. */
export function callsRouter(services: Services): Router {
  const { cluster, log } = services;
  const router = express.Router();
  const demandSignature: RequestHandler = (req, _res, next) => {
    const parts = partsOfCall(req.originalUrl, req.get(CONTENT_HASH) ?? '');
    next(isSigned(cluster.key, req.headers[SIGNATURE], parts) ? undefined : 'router');
  };
  const body = express.raw({ type: CALL_TYPE, limit: MAX_INPUT_BYTES });
  router.post(`${CALLS_PATH}/:name/:id`, demandSignature, body, async (req, res, next) => {
    const { name = '', id = '' } = req.params as Record<string, string>;
    const input = req.body;
    if (!isId('repo', id) || !(input instanceof Uint8Array)) return next('router');
    if (hash('sha256', input) !== req.get(CONTENT_HASH)) return next('router');
    const answer = await answerCall(services, { name, repositoryId: id, input }, (error) => {
      if (isUnexpected(error))
        log.error({ err: error, call: name, repository: id }, 'a call failed');
      return toPublic(error);
    });
    if (!answer) return next('router');
    res.type(CALL_TYPE).send(answer);
  });
  return router;
}

/** Believes another server who the client is. */
export function acceptForwarded({ cluster }: Pick<Services, 'cluster'>): RequestHandler {
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
