/** The statements of `bare-http.ts` and `express-pg.ts`: hand-written SQL for the responses of `rest.ts`. */
import type pg from 'pg';

const COLUMNS = `r.id, r.name, n.name as namespace, n.name || '/' || r.name as full_name, r.description, r.visibility,
  r.default_branch, r.size_bytes::int as size_bytes, r.language`;
const TIMES = 'r.created_at, r.updated_at, r.pushed_at';
/** Prepared once per connection. */
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
const JOB = {
  name: 'job',
  text: `select j.id, j.name, n.name as namespace, j.status, j.command, j.repo, j.branch, j.image, j.gpu, j.gpu_count, j.cpu,
    j.memory_gb, j.disk_gb, j.region, j.progress, j.exit_code, j.cost_per_hour::float8 as cost_per_hour, j.timeout_minutes,
    j.retries, j.retry_count, j.runtime_seconds, j.output_path, j.created_at, j.started_at, j.completed_at
    from jobs j join namespaces n on n.id = j.namespace_id where n.name = $1 and j.name = $2`,
};

export async function readOne(pool: pg.Pool, namespace: string, id: string): Promise<unknown> {
  return (await pool.query({ ...ONE, values: [id, namespace] })).rows[0];
}

export async function readList(pool: pg.Pool, namespace: string): Promise<unknown> {
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

export async function readJob(pool: pg.Pool, namespace: string, name: string): Promise<unknown> {
  return (await pool.query({ ...JOB, values: [namespace, name] })).rows[0];
}
