/**
 * `Idempotency-Key`: the same request under the same key runs once, and its response is replayed for 24 hours. REST
 * (below) and GraphQL (`graphql/idempotency.ts`) share the keys of a credential.
 *
 * The request claims the key in a row before it starts, and stores the response in it before the client gets it, so a
 * client that has seen a response can always replay it. A running request renews its claim, because a GraphQL request
 * may have many mutations. A claim that was not renewed for 30 seconds belongs to a server that died, and the next
 * request takes it over. If the first one had committed its work, the second fails with 409 `already_exists` instead of
 * doing it twice.
 *
 * A response may contain a new token, of which only a hash may be stored. So responses are encrypted with a key derived
 * from the secret of the caller's credential, which is not stored either. No other caller may replay the response.
 */
import { createHash, hkdfSync, randomUUID } from 'node:crypto';
import type { Request, RequestHandler, Response } from 'express';
import type pg from 'pg';
import { AppError, busy, invalid } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import { demandAccount } from '../../identity/permissions.ts';
import { open, seal } from '../../platform/crypto/keys.ts';
import type { IdempotentEffect } from '../../platform/database/idempotent-effects.ts';
import { startLoop } from '../../platform/loop.ts';
import { toErrorResponse } from '../../platform/web/error-response.ts';

export const IDEMPOTENCY_KEY = 'idempotency-key';
const IDEMPOTENCY_REPLAYED = 'Idempotency-Replayed';
const MAX_KEY_LENGTH = 255;
const RETENTION = '24 hours';
const ABANDONED_AFTER = '30 seconds';
const RENEW_MS = 5_000;
const PURGE_ROWS = 1_000;
/** A replay gets the other headers, such as rate limits and date, of its own request. */
const STORED_HEADERS = ['content-type', 'cache-control', 'location', 'allow'];
/** Stored with errors only: their bodies contain the id as well, and both must name the request in the log. */
const REQUEST_ID = 'x-request-id';

declare global {
  namespace Express {
    interface Request {
      /** Set for a request with an `Idempotency-Key`. */
      idempotency?: Omit<IdempotentEffect, 'field'>;
    }
  }
}

type Row = {
  fingerprint: Buffer;
  status: number | null;
  headers: Record<string, string>;
  body: Buffer;
};

/**
 * Claims a key that is free, expired, or abandoned by the same request; otherwise returns no row. `claim` identifies the
 * owner, so that a request whose claim was taken over does not store its response.
 */
const CLAIM = `
  insert into idempotent_requests as r (owner, key, claim, fingerprint) values ($1, $2, $4, $3)
  on conflict (owner, key) do update
    set fingerprint = excluded.fingerprint, claim = excluded.claim, status = null, headers = null, body = null,
      effects = case when r.created_at < now() - interval '${RETENTION}' then '{}' else r.effects end, created_at = now()
    where r.created_at < now() - interval '${RETENTION}'
      or (r.status is null and r.fingerprint = $3 and r.created_at < now() - interval '${ABANDONED_AFTER}')
  returning claim`;
const FIND = `select fingerprint, status, headers, body from idempotent_requests where owner = $1 and key = $2`;
const STORE = `
  update idempotent_requests set status = $4, headers = $5, body = $6
  where owner = $1 and key = $2 and claim = $3`;
/** A row with effects stays, so that a retry finds them. Its claim is abandoned. */
const RELEASE = `
  delete from idempotent_requests where owner = $1 and key = $2 and claim = $3 and effects = '{}'`;
const RENEW = `
  update idempotent_requests set created_at = now()
  where owner = $1 and key = $2 and claim = $3 and status is null`;
const PURGE = `
  delete from idempotent_requests where ctid = any (array(
    select ctid from idempotent_requests where created_at < now() - interval '${RETENTION}' limit ${PURGE_ROWS}))`;

export const NOT_STORED = 'could not store the response for its Idempotency-Key';
/** Removed from a response that is replaced by an error. */
const REPLACED_HEADERS = ['Content-Length', 'ETag', 'Location'];

/** A client that got the response could not replay it, and its retry would do the work twice. */
export function notStored(): AppError {
  return busy('The response could not be stored under the Idempotency-Key, so it is not sent', 1);
}

/** Deletes one batch of expired responses. @returns whether there may be more */
export async function deleteExpiredResponses({ pool }: { pool: pg.Pool }): Promise<boolean> {
  const { rowCount } = await pool.query(PURGE);
  return rowCount === PURGE_ROWS;
}

type StoredResponse = { status: number; headers: Record<string, string>; body: Uint8Array };

/** The claim of a request on its key. The request must call one of the methods, once. */
export type IdempotencyClaim = {
  /** Stores the response for replays. */
  store(response: StoredResponse): Promise<void>;
  /** Frees the key, as if it had never been used. */
  release(): Promise<void>;
};

/**
 * Claims the key of a request that has one, and whose body is in `req.rawBody`.
 * @returns the claim, or the response to replay
 * @throws AppError 400; 401 without an account; 409 while the first request runs; 422 when the first request differs
 */
export async function claimIdempotencyKey(
  { pool, log }: { pool: pg.Pool; log: Logger },
  req: Request,
): Promise<IdempotencyClaim | { replayed: StoredResponse }> {
  const key = req.get(IDEMPOTENCY_KEY) ?? '';
  if (!/^[\x20-\x7e]*[\x21-\x7e]$/.test(key) || key.length > MAX_KEY_LENGTH)
    throw invalid('Idempotency-Key', `must be 1 to ${MAX_KEY_LENGTH} printable ASCII characters`);
  const owner = demandAccount(req.viewer).credential.id;
  const fingerprint = createHash('sha256')
    .update(`${req.method} ${req.originalUrl}\n`)
    .update(req.rawBody ?? '')
    .digest();
  const claim = randomUUID();
  const { rowCount } = await pool.query(CLAIM, [owner, key, fingerprint, claim]);
  req.idempotency = { owner, key, fingerprint: fingerprint.toString('hex') };
  const secret = sealingKey(req, `${owner} ${key}`);
  if (rowCount === 0) {
    const { rows } = await pool.query<Row>(FIND, [owner, key]);
    return { replayed: toReplay(rows[0], fingerprint, secret) };
  }
  const ownRow = [owner, key, claim];
  const renewing = startLoop(
    { name: 'Renewing the claim of a request', every: RENEW_MS, waitsFirst: true, log },
    () => pool.query(RENEW, ownRow),
  );
  const stopRenewing = () => renewing[Symbol.asyncDispose]();
  return {
    async store({ status, headers, body }) {
      await stopRenewing();
      const names = status >= 400 ? [...STORED_HEADERS, REQUEST_ID] : STORED_HEADERS;
      const stored = names.flatMap((name) => {
        const value = headers[name];
        return value === undefined ? [] : [[name, value]];
      });
      await pool.query(STORE, [...ownRow, status, Object.fromEntries(stored), seal(secret, body)]);
    },
    async release() {
      await stopRenewing();
      await pool.query(RELEASE, ownRow);
    },
  };
}

/** @throws AppError 409 while the first request runs; 422 when the first request differs */
function toReplay(row: Row | undefined, fingerprint: Buffer, secret: Buffer): StoredResponse {
  if (row && !row.fingerprint.equals(fingerprint))
    throw new AppError(
      'invalid_request',
      'Idempotency-Key: already used for another request; use a new key for each request',
      { status: 422, field: 'Idempotency-Key' },
    );
  // No row: the first request failed with a server error a moment ago, and released its claim.
  if (!row || row.status === null)
    throw new AppError('conflict', 'The first request with this Idempotency-Key is still running', {
      headers: { 'Retry-After': '1' },
    });
  const { status, headers, body } = row;
  return {
    status,
    headers: { ...headers, [IDEMPOTENCY_REPLAYED]: 'true' },
    body: open(secret, body),
  };
}

function sealingKey({ credential }: Request, context: string): Buffer {
  if (!credential) throw new Error('The request has an account but no credential');
  const secret = 'token' in credential ? credential.token : credential.secret;
  return Buffer.from(hkdfSync('sha256', secret, 'loam idempotency', context, 32));
}

/** `Idempotency-Key` for POST requests of REST that are authenticated and whose body is in `req.rawBody`. */
export function idempotency(services: { pool: pg.Pool; log: Logger }): RequestHandler {
  return async (req, res, next) => {
    if (req.get(IDEMPOTENCY_KEY) === undefined) return next();
    const claim = await claimIdempotencyKey(services, req);
    if ('replayed' in claim) {
      const { status, headers, body } = claim.replayed;
      for (const [name, value] of Object.entries(headers)) res.setHeader(name, value);
      return void res.status(status).end(body);
    }
    storeBeforeEnd(res, async (body) => {
      if (res.statusCode >= 500) return claim.release();
      const headers = Object.entries(res.getHeaders()).map(([name, value]) => [
        name,
        String(value),
      ]);
      await claim.store({ status: res.statusCode, headers: Object.fromEntries(headers), body });
    });
    next();
  };

  /** Runs `store` with the whole body before it is sent. REST sends each body with one call of `end`. */
  function storeBeforeEnd(res: Response, store: (body: Buffer) => Promise<void>): void {
    const end = res.end.bind(res) as (...args: unknown[]) => Response;
    res.end = ((...args: unknown[]) => {
      res.end = end as typeof res.end;
      const [chunk, encoding] = args;
      const body =
        typeof chunk === 'string'
          ? Buffer.from(chunk, encoding as BufferEncoding)
          : Buffer.from((chunk as Uint8Array) ?? '');
      store(body).then(
        () => end(...args),
        (error) => {
          services.log.error({ err: error }, NOT_STORED);
          if (res.statusCode >= 500) return void end(...args);
          const { status, headers, body } = toErrorResponse(notStored(), res.req.id);
          for (const name of REPLACED_HEADERS) res.removeHeader(name);
          res.writeHead(status, { ...headers, 'Content-Type': 'application/json; charset=utf-8' });
          end(JSON.stringify(body));
        },
      );
      return res;
    }) as typeof res.end;
  }
}
