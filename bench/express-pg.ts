/**
 * A peer of `bench/rest.ts`: what one would write by hand with Express and `pg`, for speed. The same credentials are read at each
 * request in one prepared statement with the user and the roles (Loam's share it where several come at once), and each answer in
 * another; everything else is left out that Loam does beside it: validation, scopes of tokens, a request log, rate limits.
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

/** What is not there and what is not the user's look alike. */
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
