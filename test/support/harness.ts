/**
 * Starts the real app, on a database cloned from the migrated template and with its own data folder.
 *
 *   await using app = await startApp();
 *   const alice = await app.user('alice');
 *   await alice.post('/auth/v1/repository/alice', { name: 'hello' });
 *
 * Disposing drops the database without force, so a connection that the app left open fails the test.
 */
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { inject, onTestFinished, vi } from 'vitest';
import { type App, createApp, type Overrides } from '../../src/app.ts';
import { type Config, readConfig } from '../../src/base/config/config.ts';
import { createLog } from '../../src/base/log.ts';
import { newToken } from '../../src/identity/credentials.ts';
import { openDockerRunner } from '../../src/runners/docker/runner.ts';
import { openProcessRunner } from '../../src/runners/process/runner.ts';
import { BUSYBOX, DOCKER } from './docker.ts';
import { eventually } from './eventually.ts';
import { fakeRunner } from './fake-runner.ts';

type Plan = 'free' | 'team' | 'enterprise' | 'unlimited';
/** Username → role. */
type Roles = Record<string, 'READ' | 'WRITE' | 'ADMIN'>;

/** The interface of a running Loam for test suites: one server in this process, or many behind a proxy. */
export type Loam = {
  base: string;
  /** The operator, `admin`. */
  admin: Client;
  anonymous: Client;
  client(authorization: string | null): Client;
  /** A new user with a token of full rights. */
  user(username: string, plan?: Plan): Promise<Client>;
  /** Creates an organization with these members. @returns its id */
  organization(name: string, roles?: Roles, plan?: Plan): Promise<string>;
  /** For states that no request can create. */
  readonly pool: pg.Pool;
};

export type TestApp = AsyncDisposable &
  Loam & {
    readonly app: App;
    /** Stops the server and starts another on the same data, at the same address. */
    restart(): Promise<void>;
    config: Config;
  };

export type StartOptions = {
  /**
   * Jobs run in a fake runner unless this names a real one, as in `{ runner: 'process' }`. Opening a real runner takes five
   * times as long as the rest of the start.
   */
  config?: Partial<Config>;
  overrides?: Overrides;
  /** Changes the address of the database, for example to a proxy that can be cut. */
  via?: (databaseUrl: string) => Promise<string>;
};

/** Until the end of the test, only notifications wake readers of the bus, which otherwise read every 15 s too. */
export function disablePolling({ app }: TestApp): void {
  const { bus } = app.services;
  const wakes = bus.wakes.bind(bus);
  const longestMs = 2 ** 31 - 1;
  const spy = vi
    .spyOn(bus, 'wakes')
    .mockImplementation((topics, reader) => wakes(topics, reader, longestMs));
  onTestFinished(() => spy.mockRestore());
}

export async function startApp({
  config: changes,
  overrides,
  via = async (url) => url,
}: StartOptions = {}): Promise<TestApp> {
  await using cleanup = new AsyncDisposableStack();
  const database = await cloneDatabase();
  cleanup.defer(() => database.drop());
  const dataDir = await mkdtemp(join(tmpdir(), 'loam-data-'));
  cleanup.defer(() => rm(dataDir, { recursive: true, force: true, maxRetries: 5 }));

  // Jobs outlive the server by design, and would outlive the test.
  cleanup.defer(async () => {
    for (const name of ['attempts', 'containers'] as const) {
      const dir = join(dataDir, name);
      const left = await readdir(dir).catch(() => []);
      if (left.length === 0) continue;
      await using runner = await (name === 'attempts'
        ? openProcessRunner({ dir, hidden: [dataDir] })
        : openDockerRunner({
            dir,
            docker: DOCKER,
            images: { allowed: null, fallback: BUSYBOX, configFolder: dir },
          }));
      await runner.sweep(new Set());
    }
  });

  const token = newToken();
  const config: Config = {
    ...readConfig({
      PORT: '0',
      // Needs a process that few tests use.
      LOAM_SSH_PORT: 'off',
      LOAM_DATA_DIR: dataDir,
      LOAM_ADMIN_TOKEN: token,
      DATABASE_URL: await via(database.url),
    }),
    rateLimits: 'off',
    runner: 'process',
    ...changes,
  };
  // `LOAM_TEST_LOG=debug` prints the server's log.
  const log = createLog(process.env.LOAM_TEST_LOG ?? 'silent');
  const given = { log, ...(!changes?.runner && { runner: fakeRunner() }), ...overrides };
  let app = await createApp(config, given);
  cleanup.defer(() => app[Symbol.asyncDispose]());

  const { base } = app.services.urls;
  const owned = cleanup.move();
  return {
    get app() {
      return app;
    },
    async restart() {
      await app[Symbol.asyncDispose]();
      app = await createApp({ ...config, port: Number(new URL(base).port) }, given);
    },
    config,
    ...clientsOf(base, token),
    get pool() {
      return app.services.pool;
    },
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}

/** `token` is the operator's. */
export function clientsOf(base: string, token: string): Omit<Loam, 'pool'> {
  const client = (authorization: string | null) => new Client(base, authorization);
  const admin = client(`Bearer ${token}`);
  return {
    base,
    admin,
    anonymous: client(null),
    client,
    async user(username, plan = 'unlimited') {
      await admin.gql(
        `mutation ($input: CreateUserInput!) { createUser(input: $input) { user { id } } }`,
        {
          input: { username, email: `${username}@example.com`, plan: plan.toUpperCase() },
        },
      );
      return admin.withToken({ username, name: 'test' });
    },
    async organization(name, roles = {}, plan = 'unlimited') {
      const { createOrganization } = await admin.gql(
        `mutation ($input: CreateOrganizationInput!) {
          createOrganization(input: $input) { namespace { id } } }`,
        { input: { name, plan: plan.toUpperCase() } },
      );
      await admin.setMembers(name, roles);
      return createOrganization.namespace.id;
    },
  };
}

// biome-ignore lint/suspicious/noExplicitAny: answers are asserted on, field by field.
type Json = any;
export type Answer = { status: number; headers: Headers; text: string; body: Json };

/** A client of REST and GraphQL with one credential. */
export class Client {
  readonly base: string;
  readonly authorization: string | null;

  constructor(base: string, authorization: string | null) {
    this.base = base;
    this.authorization = authorization;
  }

  /** The secret of a Bearer authorization, for git's Basic authentication. */
  get token(): string {
    return this.authorization?.replace(/^Bearer /, '') ?? '';
  }

  async request(
    method: string,
    path: string,
    init: { json?: unknown; headers?: Record<string, string>; body?: BodyInit } = {},
  ): Promise<Answer> {
    const headers = new Headers(init.headers);
    if (this.authorization && !headers.has('authorization'))
      headers.set('authorization', this.authorization);
    if (init.json !== undefined) headers.set('content-type', 'application/json');
    const body = init.json === undefined ? init.body : JSON.stringify(init.json);
    const url = path.startsWith('http') ? path : this.base + path;
    const response = await fetch(url, { method, headers, body, redirect: 'manual' });
    const text = await response.text();
    const isJson = /json/.test(response.headers.get('content-type') ?? '');
    return {
      status: response.status,
      headers: response.headers,
      text,
      body: isJson && text ? JSON.parse(text) : undefined,
    };
  }

  get(path: string, headers?: Record<string, string>) {
    return this.request('GET', path, { headers });
  }
  post(path: string, json?: unknown, headers?: Record<string, string>) {
    return this.request('POST', path, { json, headers });
  }
  put(path: string, json?: unknown) {
    return this.request('PUT', path, { json });
  }
  delete(path: string) {
    return this.request('DELETE', path);
  }

  /** The raw answer of a GraphQL operation: `{data, errors}`. */
  async graphql(
    query: string,
    variables: object = {},
  ): Promise<{
    data?: Json;
    errors?: {
      message: string;
      path?: (string | number)[];
      extensions: { code: string; field?: string };
    }[];
  }> {
    return (await this.post('/graphql', { query, variables })).body;
  }

  /** The data of a GraphQL operation that must succeed. */
  async gql(query: string, variables: object = {}): Promise<Json> {
    const { data, errors } = await this.graphql(query, variables);
    if (errors)
      throw new Error(errors.map((e) => `${e.path?.join('.') ?? ''}: ${e.message}`).join('\n'));
    return data;
  }

  /** Creates a repository, named as in `ada/code`. @returns its id */
  async repository(path: string, input: object = {}): Promise<string> {
    const [namespace, name] = path.split('/');
    const { createRepository } = await this.gql(
      `mutation ($input: CreateRepositoryInput!) {
        createRepository(input: $input) { repository { id } } }`,
      { input: { namespace, name, ...input } },
    );
    return createRepository.repository.id;
  }

  /** Gives users roles in a namespace. */
  async setMembers(namespace: string, roles: Roles): Promise<void> {
    for (const [username, role] of Object.entries(roles))
      await this.gql(
        'mutation ($input: SetMemberInput!) { setMember(input: $input) { member { id } } }',
        { input: { namespace, username, role } },
      );
  }

  /** A client with a new access token of the same user, limited by the `scopes` and other fields of `input`. */
  async withToken(input: object): Promise<Client> {
    const { createAccessToken } = await this.gql(
      'mutation ($input: CreateAccessTokenInput!) { createAccessToken(input: $input) { token } }',
      { input: { name: crypto.randomUUID(), ...input } },
    );
    return new Client(this.base, `Bearer ${createAccessToken.token}`);
  }
}

/** A new database, cloned from the template in about 50 ms. */
export async function cloneDatabase(): Promise<{ url: string; drop(): Promise<void> }> {
  const { host, user } = inject('postgres');
  const name = `test_${crypto.randomUUID().replaceAll('-', '')}`;
  const run = async (sql: string) => {
    const client = new pg.Client({ host, user, database: 'postgres' });
    await client.connect();
    await client.query(sql).finally(() => client.end());
  };
  // Copying the template's files took 40 ms; copying through the write-ahead log took 120 ms.
  await eventually(() => run(`create database ${name} template loam strategy file_copy`));
  return {
    url: `postgresql://${user}@localhost/${name}?host=${encodeURIComponent(host)}`,
    // Backends exit shortly after their client.
    drop: () => eventually(() => run(`drop database ${name}`)),
  };
}
