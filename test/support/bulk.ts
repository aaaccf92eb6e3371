/** Changes of many jobs by one call, and the jobs for them. */
import { expect } from 'vitest';
import type { Client, TestApp } from './harness.ts';

export type Verb = 'cancel' | 'rerun' | 'delete';

/** The raw answer; `{errors}` if it is refused. */
export function changeRaw(client: Client, verb: Verb, input: object) {
  const name = `${verb[0]?.toUpperCase()}${verb.slice(1)}JobsInput`;
  return client.graphql(
    `mutation ($input: ${name}!) { ${verb}Jobs(input: $input) {
      matched done skipped { reason count names message } endCursor } }`,
    { input },
  );
}

export async function change(client: Client, verb: Verb, input: object) {
  const { data, errors } = await changeRaw(client, verb, input);
  expect(errors).toBeUndefined();
  return data[`${verb}Jobs`];
}

let firstId = 0;

/** Inserts copies of a job; their ids are in the order of their numbers. */
export async function addJobs(
  { pool }: TestApp,
  namespace: string,
  { count, like, prefix, status }: { count: number; like: string; prefix: string; status: string },
) {
  const columns = await pool.query<{ names: string }>(
    `select string_agg(quote_ident(column_name), ', ') as names from information_schema.columns
     where table_name = 'jobs' and column_name not in ('id', 'name', 'status', 'next_seq', 'created_at', 'attempt_id')`,
  );
  const names = columns.rows[0]?.names;
  firstId += 100_000;
  await pool.query(
    `insert into jobs (id, name, status, next_seq, created_at, ${names})
     select 'job_' || lpad((n + $6)::text, 26, '0'), $3 || n, $4::"JobStatus", 1, now() + n * interval '1 ms', ${names}
     from jobs, generate_series(1, $5) n
     where name = $2 and namespace_id = (select id from namespaces where name = $1)`,
    [namespace, like, prefix, status, count, firstId],
  );
}
