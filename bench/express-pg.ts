/**
 * A peer of `bench/rest.ts`: a hand-written server with Express and `pg`, made for speed. Each request reads the same credentials
 * with user and roles in one prepared statement (Loam coalesces concurrent reads), and its response in another. It has none of
 * Loam's validation, token scopes, request log and rate limits.
 *
 *   node bench/express-pg.ts <socket folder>     prints its port
 */
import { createHash } from 'node:crypto';
import type { AddressInfo } from 'node:net';
import express, { type Response } from 'express';
import pg from 'pg';
import { readJob, readList, readOne } from './by-hand.ts';

const [, , host] = process.argv;
const pool = new pg.Pool({ host, user: 'loam', database: 'loam', max: 20 });

const CREDENTIAL = {
  name: 'credential',
  text: `select t.expires_at, u.operator, n.name as own,
      (select coalesce(json_object_agg(s.name, m.role), '{}') from members m join namespaces s on s.id = m.namespace_id
        where m.user_id = u.id) as roles
    from access_tokens t join users u on u.id = t.user_id left join namespaces n on n.user_id = u.id where t.hash = $1`,
};
type Credential = {
  expires_at: Date | null;
  operator: boolean;
  own: string | null;
  roles: Record<string, string>;
};

const app = express();
app.disable('x-powered-by');
app.use(async (req, res, next) => {
  const token = /^Bearer (\S+)$/.exec(req.get('authorization') ?? '')?.[1];
  const hash = createHash('sha256')
    .update(token ?? '')
    .digest();
  const { rows } = await pool.query<Credential>({ ...CREDENTIAL, values: [hash] });
  const [found] = rows;
  if (!found || (found.expires_at && found.expires_at < new Date()))
    return void res.status(401).json({ error: { code: 'unauthenticated' } });
  res.locals.credential = found;
  next();
});

/** Missing and hidden objects give the same response. */
function answer(res: Response, namespace: string, row: unknown): void {
  const { operator, own, roles }: Credential = res.locals.credential;
  if (row && (operator || own === namespace || roles[namespace])) return void res.json(row);
  res.status(404).json({ error: { code: 'not_found' } });
}

app.get('/auth/v1/repository/:namespace/:id', async ({ params: { namespace, id } }, res) => {
  answer(res, namespace, await readOne(pool, namespace, id));
});
app.get('/auth/v1/repository/:namespace', async ({ params: { namespace } }, res) => {
  answer(res, namespace, await readList(pool, namespace));
});
app.get('/auth/v1/:namespace/job/:name', async ({ params: { namespace, name } }, res) => {
  answer(res, namespace, await readJob(pool, namespace, name));
});

const server = app.listen(0, '127.0.0.1', () =>
  console.log((server.address() as AddressInfo).port),
);
