/**
 * Answers kept under an `Idempotency-Key` (decisions section 2): the same request under the same key is done
 * once, and its answer replayed for 24 hours. REST (`idempotency.ts`) and GraphQL (`graphql/idempotency.ts`) share
 * the keys of a credential.
 *
 * A row claims the key before the work and takes the answer before the client does, so whoever has seen an
 * answer finds it again. A request that runs renews its claim, because one of GraphQL may have many mutations. A claim
 * that nobody has renewed for 30 seconds is that of a server that died, and is taken over. The work of the dead one may
 * have been committed; the second run then meets it (409 `already_exists`) rather than doubling it.
 *
 * Answers may hold a new token, of which only a hash may be kept. So they are stored under a key made from the
 * secret of the credential that asked, which is not kept either: nobody else could be given the answer anyway.
 */
import { createHash, hkdfSync, randomUUID } from 'node:crypto';
import type { Request, RequestHandler, Response } from 'express';
import type pg from 'pg';
import { AppError, invalid } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import { demandAccount } from '../../identity/permissions.ts';
import { open, seal } from '../../platform/crypto/keys.ts';

export const IDEMPOTENCY_KEY = 'idempotency-key';
const IDEMPOTENCY_REPLAYED = 'Idempotency-Replayed';
const MAX_KEY = 255;
const KEPT = '24 hours';
const ABANDONED = '30 seconds';
const RENEWED_MS = 5_000;
const PURGE_ROWS = 1_000;
/** The rest (rate, date) are of the request that gets the replay. */
const KEPT_HEADERS = ['content-type', 'cache-control', 'location', 'allow'];
/** Besides, of errors: it stands in their bodies too, and both must name the request that is in the log. */
const REQUEST_ID = 'x-request-id';

type Row = {
  fingerprint: Buffer;
  status: number | null;
  headers: Record<string, string>;
  body: Buffer;
};

/**
 * Claims a key that is free, expired, or abandoned by the same request; otherwise no row comes back. `claim` says whose
 * it is: one that was taken over is answered by the other request.
 */
const CLAIM = `
  insert into idempotent_requests as r (owner, key, claim, fingerprint) values ($1, $2, $4, $3)
  on conflict (owner, key) do update
    set fingerprint = excluded.fingerprint, claim = excluded.claim, status = null, headers = null, body = null,
      created_at = now()
    where r.created_at < now() - interval '${KEPT}'
      or (r.status is null and r.fingerprint = $3 and r.created_at < now() - interval '${ABANDONED}')
  returning claim`;
const FIND = `select fingerprint, status, headers, body from idempotent_requests where owner = $1 and key = $2`;
const ANSWER = `
  update idempotent_requests set status = $4, headers = $5, body = $6
  where owner = $1 and key = $2 and claim = $3`;
const RELEASE = `delete from idempotent_requests where owner = $1 and key = $2 and claim = $3`;
const RENEW = `
  update idempotent_requests set created_at = now()
  where owner = $1 and key = $2 and claim = $3 and status is null`;
const PURGE = `
  delete from idempotent_requests where ctid = any (array(
    select ctid from idempotent_requests where created_at < now() - interval '${KEPT}' limit ${PURGE_ROWS}))`;

/** Removes a batch of the answers that are past their time. @returns whether there may be more */
export async function removeOldAnswers({ pool }: { pool: pg.Pool }): Promise<boolean> {
  const { rowCount } = await pool.query(PURGE);
  return rowCount === PURGE_ROWS;
}

export type Answer = { status: number; headers: Record<string, string>; body: Uint8Array };

/** The key is this request's: it is to be kept or released, once. */
export type Claim = {
  /** Of the answer's headers, those that belong to a replay are kept. */
  keep(answer: Answer): Promise<void>;
  /** As if the key had never been used. */
  release(): Promise<void>;
};

/**
 * Takes the key of a request that has one, and whose body is in `req.rawBody`.
 * @returns the claim, or the answer to replay
 * @throws AppError 400; 401 without an account; 409 while the first request runs, 422 when it was another
 */
export async function claimKey(
  { pool }: { pool: pg.Pool },
  req: Request,
): Promise<Claim | { replayed: Answer }> {
  const key = req.get(IDEMPOTENCY_KEY) ?? '';
  if (!/^[\x20-\x7e]*[\x21-\x7e]$/.test(key) || key.length > MAX_KEY)
    throw invalid('Idempotency-Key', `must be 1 to ${MAX_KEY} printable ASCII characters`);
  const owner = demandAccount(req.viewer).credential.id;
  const fingerprint = createHash('sha256')
    .update(`${req.method} ${req.originalUrl}\n`)
    .update(req.rawBody ?? '')
    .digest();
  const id = [owner, key, randomUUID()];
  const { rowCount } = await pool.query(CLAIM, [owner, key, fingerprint, id[2]]);
  const secret = sealingKey(req, `${owner} ${key}`);
  if (rowCount === 0) {
    const { rows } = await pool.query<Row>(FIND, [owner, key]);
    return { replayed: answerIn(rows[0], fingerprint, secret) };
  }
  const settled = renewing(() => pool.query(RENEW, id));
  return {
    async keep({ status, headers, body }) {
      await settled();
      const names = status >= 400 ? [...KEPT_HEADERS, REQUEST_ID] : KEPT_HEADERS;
      const kept = names.flatMap((name) => {
        const value = headers[name];
        return value === undefined ? [] : [[name, value]];
      });
      await pool.query(ANSWER, [...id, status, Object.fromEntries(kept), seal(secret, body)]);
    },
    async release() {
      await settled();
      await pool.query(RELEASE, id);
    },
  };
}

/** Renews a claim until the returned function is called; that settles when the last renewal has. */
function renewing(renew: () => Promise<unknown>): () => Promise<unknown> {
  let last: Promise<unknown> = Promise.resolve();
  const timer = setInterval(() => {
    // While the database is away nobody can take it over either.
    last = last.then(renew).catch(() => {});
  }, RENEWED_MS).unref();
  return () => {
    clearInterval(timer);
    return last;
  };
}

/** @throws AppError 409 while the first request runs, 422 when it was another. */
function answerIn(row: Row | undefined, fingerprint: Buffer, secret: Buffer): Answer {
  if (row && !row.fingerprint.equals(fingerprint))
    throw new AppError(
      'invalid_request',
      'Idempotency-Key: it was used for another request; take a new key for each',
      { status: 422, field: 'Idempotency-Key' },
    );
  // Gone since: the first request has just failed on our side.
  if (!row || row.status === null)
    throw new AppError(
      'conflict',
      'The first request under this Idempotency-Key is still running',
      {
        headers: { 'Retry-After': '1' },
      },
    );
  const { status, headers, body } = row;
  return {
    status,
    headers: { ...headers, [IDEMPOTENCY_REPLAYED]: 'true' },
    body: open(secret, body),
  };
}

function sealingKey({ credential }: Request, context: string): Buffer {
  if (!credential) throw new Error('An account without a credential');
  const secret = 'token' in credential ? credential.token : credential.secret;
  return Buffer.from(hkdfSync('sha256', secret, 'loam idempotency', context, 32));
}

/* `Idempotency-Key` on the POSTs of REST. */

/** For requests that are authenticated and whose body is in `req.rawBody`. */
export function idempotency(services: { pool: pg.Pool; log: Logger }): RequestHandler {
  return async (req, res, next) => {
    if (req.get(IDEMPOTENCY_KEY) === undefined) return next();
    const claim = await claimKey(services, req);
    if ('replayed' in claim) {
      const { status, headers, body } = claim.replayed;
      for (const [name, value] of Object.entries(headers)) res.setHeader(name, value);
      return void res.status(status).end(body);
    }
    answering(res, async (body) => {
      if (res.statusCode >= 500) return claim.release();
      const given = Object.entries(res.getHeaders()).map(([name, value]) => [name, String(value)]);
      await claim.keep({ status: res.statusCode, headers: Object.fromEntries(given), body });
    });
    next();
  };

  /** Runs `store` with the whole body before any of it is sent; REST answers in one piece. */
  function answering(res: Response, store: (body: Buffer) => Promise<void>): void {
    const end = res.end.bind(res) as (...args: unknown[]) => Response;
    res.end = ((...args: unknown[]) => {
      res.end = end as typeof res.end;
      const [chunk, encoding] = args;
      const body =
        typeof chunk === 'string'
          ? Buffer.from(chunk, encoding as BufferEncoding)
          : Buffer.from((chunk as Uint8Array) ?? '');
      store(body)
        // The work is done: better an answer that cannot be replayed than none.
        .catch((error) =>
          services.log.error({ err: error }, 'an answer was not kept for its Idempotency-Key'),
        )
        .then(() => end(...args));
      return res;
    }) as typeof res.end;
  }
}
