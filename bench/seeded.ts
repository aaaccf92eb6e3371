/** A server with 25 repositories and a finished job, and the GraphQL queries for it. */
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { start } from './script.ts';

const TOKEN = 'loam_pat_benchmark_of_rest';

export type Seeded = {
  base: string;
  pid: number;
  /** The header with the token of an operator. */
  headers: Record<string, string>;
  /** The id of one of the repositories. */
  id: string;
  /** The folder of PostgreSQL's sockets. */
  sockets: string;
  postmaster: number;
};

/** `cleanup` stops the server and removes its data. */
export async function openSeeded(cleanup: AsyncDisposableStack): Promise<Seeded> {
  const dataDir = await mkdtemp(join(tmpdir(), 'loam-bench-'));
  cleanup.defer(() => rm(dataDir, { recursive: true, force: true, maxRetries: 5 }));
  const { pid, greeting } = await start(cleanup, 'src/main.ts', [], {
    PORT: '0',
    LOAM_DATA_DIR: dataDir,
    LOAM_ADMIN_TOKEN: TOKEN,
    LOAM_RATE_LIMITS: 'off',
    LOAM_LOG_LEVEL: 'warn',
    LOAM_SSH_PORT: 'off',
    LOAM_RUNNER: 'process',
  });
  const base = /http:\S+/.exec(greeting)?.[0] as string;
  const headers = { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' };
  const create = async (path: string, body: object): Promise<string> => {
    const response = await fetch(base + path, {
      method: 'POST',
      headers,
      body: JSON.stringify(body),
    });
    if (response.status !== 201) throw new Error(await response.text());
    return ((await response.json()) as { id: string }).id;
  };
  let id = '';
  for (let i = 0; i < 25; i++)
    id = await create('/auth/v1/repository/admin', {
      name: `repository-${i}`,
      description: 'One of twenty-five.',
    });
  await create('/auth/v1/seed/admin/jobs', {
    name: 'one',
    command: 'true',
    repo: 'admin/repository-0',
    gpu: 'none',
  });
  for (;;) {
    const answer = await fetch(`${base}/admin/job/one`, { headers });
    if (((await answer.json()) as { completed_at?: string }).completed_at) break;
    await delay(100);
  }
  const file = await readFile(join(dataDir, 'postgres/cluster/postmaster.pid'), 'utf8');
  const postmaster = Number(file.split('\n')[0]);
  return { base, pid, headers, id, sockets: join(dataDir, 'postgres/run'), postmaster };
}

const ITEM =
  'id name namespace fullName description visibility defaultBranch sizeBytes language createdAt updatedAt pushedAt';
const FULL = `${ITEM} contentAddressed branchProtection secretScanning collaboratorCount branchCount tagCount`;
const JOB = `id name namespace status command repo branch image gpu gpuCount cpu memoryGb diskGb region progress exitCode
  costPerHour timeoutMinutes retries retryCount outputPath createdAt startedAt completedAt`;

/** Request bodies. */
export function queriesOf(id: string) {
  return {
    one: JSON.stringify({
      query: `query ($id: ID!) { repository(namespace: "admin", id: $id) { ${FULL} } }`,
      variables: { id },
    }),
    list: JSON.stringify({
      query: `{ namespace(name: "admin") { repositories(first: 20) { totalCount nodes { ${ITEM} } pageInfo { hasNextPage endCursor } } } }`,
    }),
    job: JSON.stringify({ query: `{ job(namespace: "admin", name: "one") { ${JOB} } }` }),
  };
}
