/** A server of the test's own, with an external database, that the test kills and starts again at the same address. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import type { TestContext } from 'vitest';
import { newToken } from '../../../src/identity/credentials.ts';
import { eventually } from '../eventually.ts';
import { Client, cloneDatabase } from '../harness.ts';
import { freePort } from '../ports.ts';
import { type ServerProcess, startServer } from '../process.ts';

export type KillableServer = {
  port: number;
  base: string;
  /** Of the user `admin`. */
  token: string;
  admin: Client;
  /** The data of the server is in `data`. */
  folder: string;
  pool: pg.Pool;
  kill(): Promise<void>;
  start(): Promise<void>;
  /** Disposed at the end of the test, in reverse order, after the server has ended. */
  cleanup: AsyncDisposableStack;
};

export async function startKillableServer(
  ctx: TestContext,
  env: Record<string, string> = {},
): Promise<KillableServer> {
  // Not `await using`: vitest abandons a test at its timeout without disposing its resources.
  const cleanup = new AsyncDisposableStack();
  ctx.onTestFinished(() => cleanup.disposeAsync());
  const database = await cloneDatabase();
  cleanup.defer(() => eventually(() => database.drop()));
  const folder = await mkdtemp(join(tmpdir(), 'loam-killable-'));
  cleanup.defer(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }));
  const pool = new pg.Pool({ connectionString: database.url, max: 2 });
  cleanup.defer(() => pool.end());
  const token = newToken();
  const port = await freePort();
  let server: ServerProcess | undefined;
  const kill = async () => void (await server?.stop('SIGKILL'));
  const start = async () => {
    server = await startServer({
      PORT: `${port}`,
      DATABASE_URL: database.url,
      LOAM_DATA_DIR: join(folder, 'data'),
      LOAM_STORAGE: join(folder, 'storage'),
      LOAM_ADMIN_TOKEN: token,
      LOAM_RATE_LIMITS: 'off',
      ...env,
    });
  };
  await start();
  cleanup.defer(kill);
  const base = `http://127.0.0.1:${port}`;
  const admin = new Client(base, `Bearer ${token}`);
  return { port, base, token, admin, folder, pool, kill, start, cleanup };
}
