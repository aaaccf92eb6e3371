/** A Loam process that drives a cluster and can be killed. Its port, database and data folder stay the same. */
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { newToken } from '../../../src/identity/credentials.ts';
import { openCuttableProxy } from '../cut.ts';
import { eventually } from '../eventually.ts';
import { type Client, clientsOf, cloneDatabase } from '../harness.ts';
import type { Victim } from '../kills/killer.ts';
import { freePort } from '../ports.ts';
import { type ServerProcess, startServer } from '../process.ts';

export type ServerUnderChaos = AsyncDisposable & {
  admin: Client;
  pool: pg.Pool;
  dataDir: string;
  /** Its address for nodes. */
  agentUrl: string;
  /** The server, and the network between the nodes and it. */
  victims: readonly Victim[];
  /** Warnings and errors since the first start. */
  said(): string;
};

type Options = {
  env: Record<string, string>;
  /** Address of this machine at which nodes reach it. */
  hostAddress: string;
};

export async function startChaosServer({ env, hostAddress }: Options): Promise<ServerUnderChaos> {
  await using cleanup = new AsyncDisposableStack();
  const database = await cloneDatabase();
  cleanup.defer(() => database.drop());
  const dataDir = await mkdtemp(join(tmpdir(), 'loam-chaos-'));
  cleanup.defer(() => rm(dataDir, { recursive: true, force: true, maxRetries: 5 }));
  const pool = new pg.Pool({ connectionString: database.url, max: 2 });
  cleanup.defer(() => pool.end());
  const port = await freePort();
  const proxy = cleanup.use(openCuttableProxy());
  const token = newToken();
  const agentUrl = `http://${await proxy.before(port, hostAddress)}`;
  const variables = {
    PORT: String(port),
    DATABASE_URL: database.url,
    LOAM_DATA_DIR: dataDir,
    LOAM_ADMIN_TOKEN: token,
    LOAM_RATE_LIMITS: 'off',
    LOAM_AGENT_URL: agentUrl,
    // The shortest, so that the test sees its end.
    LOAM_AGENT_LEASE_MINUTES: '1',
    ...env,
  };
  let child: ServerProcess['child'] | undefined;
  let said = '';
  const start = async () => {
    await startServer(variables, {
      spawned(process) {
        child = process;
        for (const stream of [process.stdout, process.stderr])
          stream?.on('data', (text) => {
            said += text;
          });
      },
    });
  };
  const end = async (signal: NodeJS.Signals) => {
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const closed = once(child, 'close');
    child.kill(signal);
    await closed;
  };
  cleanup.defer(() => end('SIGTERM'));
  await start();
  const owned = cleanup.move();
  return {
    admin: clientsOf(`http://127.0.0.1:${port}`, token).admin,
    pool,
    dataDir,
    agentUrl,
    said: () => said,
    victims: [
      // A start fails while the connections of the previous process still exist.
      { name: 'Loam', kill: () => end('SIGKILL'), start: () => eventually(start) },
      { name: 'network to Loam', kill: proxy.cut, start: proxy.mend },
    ],
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}
