/** Several instances of Loam on one database, one folder of repositories and one storage, all within this process. */
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'vitest';
import type { ProcessServices } from '../../src/app.ts';
import { type App, createApp, createWorker, type Overrides } from '../../src/app.ts';
import { type Config, readConfig } from '../../src/base/config/config.ts';
import { createLog } from '../../src/base/log.ts';
import { newToken } from '../../src/identity/credentials.ts';
import { openProcessRunner } from '../../src/runners/process/runner.ts';
import { eventually } from './eventually.ts';
import { Client, cloneDatabase } from './harness.ts';

const TOKEN = newToken();
const log = createLog(process.env.LOAM_TEST_LOG ?? 'silent');

/** Settings that differ between instances. */
type Changes = { config?: Partial<Config>; overrides?: Overrides };

export type Servers = AsyncDisposable & {
  /** The instances that answer requests, and for each a client with the operator's token. */
  apps: App[];
  clients: Client[];
  /** Contains the data folder of each instance, under its name. */
  folder: string;
  start(name: string, changes?: Changes): Promise<App>;
  /** Starts an instance with the role `work`. */
  work(name: string, changes?: Changes): Promise<App<ProcessServices>>;
};

/** Starts servers with a data folder each; when this returns, each knows all others. */
export async function startServers(count: number, changes?: Changes): Promise<Servers> {
  await using cleanup = new AsyncDisposableStack();
  const database = await cloneDatabase();
  cleanup.defer(() => database.drop());
  const folder = await mkdtemp(join(tmpdir(), 'loam-servers-'));
  cleanup.defer(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }));
  // Jobs outlive their worker.
  cleanup.defer(async () => {
    for (const name of await readdir(folder)) {
      const hidden = [join(folder, name)];
      const dir = join(folder, name, 'attempts');
      if ((await readdir(dir).catch(() => [])).length === 0) continue;
      await using runner = await openProcessRunner({ dir, hidden });
      await runner.sweep(new Set());
    }
  });
  const started: AsyncDisposable[] = [];
  cleanup.defer(async () => {
    for (const app of started) await app[Symbol.asyncDispose]();
  });
  const configOf = (name: string, role: string): Config =>
    readConfig({
      PORT: '0',
      LOAM_SSH_PORT: 'off',
      DATABASE_URL: database.url,
      LOAM_ROLE: role,
      LOAM_DATA_DIR: join(folder, name),
      ...(role !== 'work' && { LOAM_REPOSITORIES_DIR: join(folder, 'repositories') }),
      LOAM_STORAGE: join(folder, 'storage'),
      LOAM_SECRET_KEY: Buffer.alloc(32, 'key').toString('base64'),
      LOAM_ADMIN_TOKEN: TOKEN,
      LOAM_RATE_LIMITS: 'off',
    });
  const apps: App[] = [];
  const start = async (name: string, { config, overrides }: Changes = {}) => {
    const app = await createApp({ ...configOf(name, 'all'), ...config }, { log, ...overrides });
    started.push(app);
    apps.push(app);
    return app;
  };
  const work = async (name: string, { config, overrides }: Changes = {}) => {
    const app = await createWorker({ ...configOf(name, 'work'), ...config }, { log, ...overrides });
    started.push(app);
    return app;
  };
  for (let i = 0; i < count; i++) await start(`server-${i}`, changes);
  await eventually(() => {
    for (const { services } of apps) expect(services.cluster.members.serving).toHaveLength(count);
  });
  const clients = apps.map(({ services }) => new Client(services.urls.base, `Bearer ${TOKEN}`));
  const owned = cleanup.move();
  return { apps, clients, folder, start, work, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}
