/**
 * The floor of `bench/rest.ts`: the same two answers from `node:http` and `pg` alone. No routing, no
 * authentication, no validation: what a REST server on Node cannot be faster than.
 *
 *   node bench/bare-http.ts <socket folder>     prints its port
 */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import pg from 'pg';

const [, , host] = process.argv;
const pool = new pg.Pool({ host, user: 'loam', database: 'loam', max: 20 });

const COLUMNS = `r.id, r.name, n.name as namespace, n.name || '/' || r.name as full_name, r.description, r.visibility,
  r.default_branch, r.size_bytes::int as size_bytes, r.language`;
const TIMES = 'r.created_at, r.updated_at, r.pushed_at';
const ONE = {
  name: 'one',
  text: `select ${COLUMNS}, r.content_addressed, r.branch_protection, r.secret_scanning,
    1 + (select count(*) from members m where m.namespace_id = r.namespace_id and m.role in ('write', 'admin'))::int as collaborators,
    r.branch_count as branches, r.tag_count as tags, ${TIMES}
    from repositories r join namespaces n on n.id = r.namespace_id where r.id = $1 and n.name = $2`,
};
const LIST = {
  name: 'list',
  text: `select ${COLUMNS}, ${TIMES} from repositories r join namespaces n on n.id = r.namespace_id
    where n.name = $1 order by r.updated_at desc, r.id desc limit 20`,
};
const COUNT = {
  name: 'count',
  text: 'select count(*)::int as total from repositories r join namespaces n on n.id = r.namespace_id where n.name = $1',
};

const server = createServer(async (req, res) => {
  const [, , , , namespace = '', id] = (req.url ?? '').split('/');
  const answer = id ? await one(id, namespace) : await list(namespace);
  const body = JSON.stringify(answer);
  res.writeHead(200, {
    'Content-Type': 'application/json',
    'Content-Length': Buffer.byteLength(body),
  });
  res.end(body);
});

async function one(id: string, namespace: string) {
  const { rows } = await pool.query({ ...ONE, values: [id, namespace] });
  return rows[0];
}

async function list(namespace: string) {
  const [page, count] = await Promise.all([
    pool.query({ ...LIST, values: [namespace] }),
    pool.query({ ...COUNT, values: [namespace] }),
  ]);
  const { total } = count.rows[0];
  return {
    data: page.rows,
    pagination: { page: 1, per_page: 20, total, total_pages: Math.ceil(total / 20) },
  };
}

server.listen(0, '127.0.0.1', () => console.log((server.address() as AddressInfo).port));
