/**
 * `Idempotency-Key` on the POSTs of REST (decisions section 2): the same request under the same key is done
 * once, and its answer replayed for 24 hours.
 *
 * A row claims the key before the work and takes the answer before the client does, so whoever has seen an
 * answer finds it again. A claim without an answer, of a server that died, is taken over after 30 seconds:
 * twice what the longest transaction may take (`database/client.ts`), so a living request never loses it. The work of the
 * dead one may have been committed; the second run then meets it (409 `already_exists`) rather than doubling it.
 *
 * Answers may hold a new token, of which only a hash may be kept. So they are stored under a key made from the
 * secret of the credential that asked, which is not kept either: nobody else could be given the answer anyway.
 */
import { createHash, hkdfSync } from 'node:crypto';
import type { Request, RequestHandler, Response } from 'express';
import { demandAccount } from '../auth/permissions.ts';
import { open, seal } from '../crypto/seal.ts';
import { AppError, invalid } from '../errors.ts';
import type { Services } from '../services.ts';
import { readAuthorization } from './viewer.ts';

const MAX_KEY = 255;
const KEPT = '24 hours';
const ABANDONED = '30 seconds';
const PURGE_ROWS = 1_000;
/** The rest (request id, rate, date) are of the request that gets the replay. */
const KEPT_HEADERS = ['content-type', 'cache-control', 'location', 'allow'];

type Row = {
  fingerprint: Buffer;
  status: number | null;
  headers: Record<string, string>;
  body: Buffer;
};

/** Claims a key that is free, expired, or abandoned by the same request; otherwise no row comes back. */
const CLAIM = `
  insert into idempotent_requests as r (owner, key, fingerprint) values ($1, $2, $3)
  on conflict (owner, key) do update
    set fingerprint = excluded.fingerprint, status = null, headers = null, body = null, created_at = now()
    where r.created_at < now() - interval '${KEPT}'
      or (r.status is null and r.fingerprint = $3 and r.created_at < now() - interval '${ABANDONED}')
  returning created_at`;
const FIND = `select fingerprint, status, headers, body from idempotent_requests where owner = $1 and key = $2`;
/** `created_at` says whose claim it is: one that was taken over is answered by the other request. */
const ANSWER = `
  update idempotent_requests set status = $4, headers = $5, body = $6
  where owner = $1 and key = $2 and created_at = $3`;
const RELEASE = `delete from idempotent_requests where owner = $1 and key = $2 and created_at = $3`;
const PURGE = `
  delete from idempotent_requests where ctid = any (array(
    select ctid from idempotent_requests where created_at < now() - interval '${KEPT}' limit ${PURGE_ROWS}))`;

/** Removes a batch of the answers that are past their time. @returns whether there may be more */
export async function removeOldAnswers({ pool }: Pick<Services, 'pool'>): Promise<boolean> {
  const { rowCount } = await pool.query(PURGE);
  return rowCount === PURGE_ROWS;
}

/** For requests that are authenticated and whose body is in `req.rawBody`. */
export function idempotency({ pool, log }: Pick<Services, 'pool' | 'log'>): RequestHandler {
  return async (req, res, next) => {
    const key = req.get('idempotency-key');
    if (key === undefined) return next();
    if (!/^[\x20-\x7e]*[\x21-\x7e]$/.test(key) || key.length > MAX_KEY)
      throw invalid('Idempotency-Key', `must be 1 to ${MAX_KEY} printable ASCII characters`);
    const owner = demandAccount(req.viewer).credential.id;
    const fingerprint = createHash('sha256')
      .update(`${req.method} ${req.originalUrl}\n`)
      .update(req.rawBody ?? '')
      .digest();
    const claim = await pool.query<{ created_at: Date }>(CLAIM, [owner, key, fingerprint]);
    const [claimed] = claim.rows;
    const secret = sealingKey(req, `${owner} ${key}`);
    if (!claimed) {
      const { rows } = await pool.query<Row>(FIND, [owner, key]);
      return replay(res, rows[0], fingerprint, secret);
    }
    const id = [owner, key, claimed.created_at];
    answering(res, async (body) => {
      if (res.statusCode >= 500) return void (await pool.query(RELEASE, id));
      const headers = KEPT_HEADERS.flatMap((name) => {
        const value = res.getHeader(name);
        return value === undefined ? [] : [[name, String(value)]];
      });
      const values = [res.statusCode, Object.fromEntries(headers), seal(secret, body)];
      await pool.query(ANSWER, [...id, ...values]);
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
          log.error({ err: error }, 'an answer was not kept for its Idempotency-Key'),
        )
        .then(() => end(...args));
      return res;
    }) as typeof res.end;
  }
}

/** @throws AppError 409 while the first request runs, 422 when it was another. */
function replay(res: Response, row: Row | undefined, fingerprint: Buffer, secret: Buffer): void {
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
  for (const [name, value] of Object.entries(row.headers)) res.setHeader(name, value);
  res.setHeader('Idempotency-Replayed', 'true');
  res.status(row.status).end(open(secret, row.body));
}

function sealingKey(req: Request, context: string): Buffer {
  const credential = readAuthorization(req.headers.authorization);
  if (!credential) throw new Error('An account without a credential');
  const secret = credential.kind === 'pat' ? credential.token : credential.secret;
  return Buffer.from(hkdfSync('sha256', secret, 'loam idempotency', context, 32));
}
