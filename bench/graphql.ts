/**
 * `npm run bench:graphql`: a repository, a list of 20 with its total, and a job in GraphQL, against servers that generate an API
 * from the same tables: PostGraphile without authentication or permissions, and Directus with a token of its administrator and,
 * as by default, without its cache. Rounds alternate (`rivals.ts`). Not Hasura: no package registry has it.
 *
 * Peers that are not installed are skipped. Directus runs on the Node that installed it.
 *
 *   npm ci --prefix bench/peers/postgraphile
 *   npm install --prefix bench/peers/directus
 */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { access, constants } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { freePort } from '../test/support/ports.ts';
import { answerOf, compare, type Rival } from './rivals.ts';
import { start } from './script.ts';
import { openSeeded, queriesOf } from './seeded.ts';

const PEERS = join(import.meta.dirname, 'peers');

await using cleanup = new AsyncDisposableStack();
const { base, pid, headers, id, sockets, postmaster } = await openSeeded(cleanup);
const effort = { rounds: 7, seconds: 2, maxWarming: 8, postmaster };

type Peer = { name: string; pid: number; url: string; headers: Record<string, string> } & {
  bodies: Record<'one' | 'list' | 'job', string>;
};
const peers = [await openPostGraphile(), await openDirectus()].filter((peer) => peer !== null);
const ours = { name: 'loam', pid, url: `${base}/graphql`, headers, bodies: queriesOf(id) };
const ROWS = { one: 'a repository', list: 'a list of 20', job: 'a job' } as const;
for (const [row, title] of Object.entries(ROWS)) {
  const rivals = [ours, ...peers].map(
    ({ bodies, ...rival }): Rival => ({
      ...rival,
      method: 'POST',
      body: bodies[row as keyof typeof ROWS],
    }),
  );
  await Promise.all(
    rivals.map(async (rival) => {
      const text = JSON.stringify(await answerOf(rival));
      const found = text.split(row === 'job' ? '"one"' : '"repository-').length - 1;
      if (found !== (row === 'list' ? 20 : 1)) throw new Error(`${rival.name} answers ${text}`);
    }),
  );
  await compare(title, rivals, effort);
}

async function openPostGraphile(): Promise<Peer | null> {
  const folder = join(PEERS, 'postgraphile');
  if (!(await isInstalled('PostGraphile', folder))) return null;
  const { pid, greeting } = await start(cleanup, join(folder, 'serve.js'), [sockets], {
    GRAPHILE_ENV: 'production',
    NODE_ENV: 'production',
  });
  const item = `rowId name namespaceByNamespaceId { name } description visibility defaultBranch sizeBytes language
    createdAt updatedAt pushedAt`;
  const job = `rowId name status command repo branch image gpu gpuCount cpu memoryGb diskGb region progress exitCode costPerHour
    timeoutMinutes retries retryCount outputPath createdAt startedAt completedAt`;
  // PostGraphile offers a lookup for unique constraints only, and the name has a unique index.
  const ofAdmin = (fields: string) =>
    JSON.stringify({
      query: `{ allNamespaces(condition: { name: "admin" }, first: 1) { nodes { name ${fields} } } }`,
    });
  return {
    name: 'postgraphile',
    pid,
    url: `http://127.0.0.1:${greeting}/graphql`,
    headers: { 'content-type': 'application/json' },
    bodies: {
      one: JSON.stringify({
        query: `query ($id: String!) { repositoryByRowId(rowId: $id) {
          ${item} contentAddressed branchProtection secretScanning branchCount tagCount } }`,
        variables: { id },
      }),
      list: ofAdmin(`repositoriesByNamespaceId(first: 20, orderBy: [UPDATED_AT_DESC, PRIMARY_KEY_DESC]) {
        totalCount nodes { ${item} } pageInfo { hasNextPage endCursor } }`),
      job: ofAdmin(`jobsByNamespaceId(condition: { name: "one" }, first: 1) { nodes { ${job} } }`),
    },
  };
}

/** Directus stores its own data in tables beside ours. */
async function openDirectus(): Promise<Peer | null> {
  const folder = join(PEERS, 'directus');
  if (!(await isInstalled('Directus', folder))) return null;
  const [node, port] = [await nodeOfMachine(), await freePort()];
  const { stdout: version } = await promisify(execFile)(node, ['--version']);
  const token = 'directus-benchmark-token';
  const env = {
    PATH: process.env.PATH,
    NODE_ENV: 'production',
    DB_CLIENT: 'pg',
    DB_HOST: sockets,
    DB_PORT: '5432',
    DB_DATABASE: 'loam',
    DB_USER: 'loam',
    DB_PASSWORD: 'of no use',
    DB_POOL__MAX: '20',
    KEY: 'a key of the benchmark',
    SECRET: 'a secret of the benchmark that is long enough',
    ADMIN_EMAIL: 'admin@example.com',
    ADMIN_PASSWORD: 'a password of the benchmark',
    ADMIN_TOKEN: token,
    HOST: '127.0.0.1',
    PORT: `${port}`,
    TELEMETRY: 'false',
    NO_UPDATE_NOTIFIER: '1',
    HOME: sockets,
    LOG_LEVEL: 'error',
  };
  const cli = join(folder, 'node_modules/directus/cli.js');
  await promisify(execFile)(node, [cli, 'bootstrap'], { cwd: folder, env });
  const child = spawn(node, [cli, 'start'], {
    cwd: folder,
    env,
    stdio: ['ignore', 2, 2],
  });
  cleanup.defer(async () => {
    child.kill('SIGTERM');
    if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
  });
  const url = `http://127.0.0.1:${port}`;
  while (!(await fetch(`${url}/server/ping`).catch(() => null))?.ok) {
    if (child.exitCode !== null || child.signalCode !== null)
      throw new Error(`Directus ended with ${child.exitCode ?? child.signalCode}`);
    await delay(100);
  }
  const item = `id name namespace_id { name } description visibility default_branch size_bytes language created_at updated_at
    pushed_at`;
  const job = `id name namespace_id { name } status command repo branch image gpu gpu_count cpu memory_gb disk_gb region progress
    exit_code cost_per_hour timeout_minutes retries retry_count output_path created_at started_at completed_at`;
  const ofAdmin = 'namespace_id: { name: { _eq: "admin" } }';
  return {
    name: `directus on Node ${version.trim()}`,
    pid: child.pid as number,
    url: `${url}/graphql`,
    headers: { 'content-type': 'application/json', authorization: `Bearer ${token}` },
    bodies: {
      one: JSON.stringify({
        query: `query ($id: ID!) { repositories_by_id(id: $id) {
          ${item} content_addressed branch_protection secret_scanning branch_count tag_count } }`,
        variables: { id },
      }),
      list: JSON.stringify({
        query: `{ repositories(filter: { ${ofAdmin} }, sort: ["-updated_at", "-id"], limit: 20) { ${item} }
          repositories_aggregated(filter: { ${ofAdmin} }) { count { id } } }`,
      }),
      job: JSON.stringify({
        query: `{ jobs(filter: { name: { _eq: "one" }, ${ofAdmin} }, limit: 1) { ${job} } }`,
      }),
    },
  };
}

async function isInstalled(name: string, folder: string): Promise<boolean> {
  const isThere = await canAccess(join(folder, 'node_modules'), constants.R_OK);
  if (!isThere) console.log(`${name} is not measured: it is not installed (bench/graphql.ts)`);
  return isThere;
}

/** The Node of the machine. The native modules of Directus cannot be built for the Node of this project. */
async function nodeOfMachine(): Promise<string> {
  for (const folder of (process.env.PATH ?? '').split(delimiter)) {
    const node = join(folder, 'node');
    if (!folder.includes('node_modules') && (await canAccess(node, constants.X_OK))) return node;
  }
  return process.execPath;
}

function canAccess(path: string, mode: number): Promise<boolean> {
  return access(path, mode).then(
    () => true,
    () => false,
  );
}
