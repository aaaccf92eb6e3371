/** The upgrade of docs/operations.md: two servers of the previous release become two of this one, and nobody notices. */
import { setTimeout as delay } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { chooseOwner } from '../../../src/cluster/placement.ts';
import { RELEASE, readFunctions, readMigrations } from '../../../src/platform/database/migrate.ts';
import { eventually } from '../../support/eventually.ts';
import { remote, Workspace } from '../../support/git.ts';
import { type OneServer, type Servers, startServers } from '../../support/many-servers.ts';
import { needs } from '../../support/needs.ts';
import { extractPreviousRelease } from '../../support/previous-release.ts';
import { followStream } from '../../support/sse.ts';
import { cancel, job, submit, until } from '../../support/submit.ts';

const ROOT = process.cwd();
/** 50 requests a second, unless so many are unanswered: the test is not about overload. */
const REQUEST_MS = 20;
const MAX_OPEN_REQUESTS = 25;
const PUSH_MS = 1_000;
const JOBS = Array.from({ length: 10 }, (_, i) => `counter-${i}`);
const FOLLOWERS_PER_JOB = 2;

/** Says its last number when it is cancelled. Without the shell's word on the end of `sleep`. */
const COUNT = `exec 2>/dev/null; i=0; trap 'echo "end $i"; exit 0' TERM
while :; do i=$((i+1)); echo "$i"; sleep 0.2 & wait $!; done`;

/** Git reads it, on the server that has the repository. */
const READ =
  '{ repository(namespace: "admin", name: "code") { commits(first: 5) { nodes { sha } } } }';

/** What clients do meanwhile. `failures` has a line for each failure that a client has seen. */
class Load implements AsyncDisposable {
  readonly failures: string[] = [];
  /** What the operator does, for the failures. */
  step = 'before';
  answered = 0;
  pushed = 0;
  /** Key of a follower → the messages that it has received. */
  readonly followed = new Map<string, string[]>();
  readonly #loam: Servers;
  readonly #stopping = new AbortController();
  readonly #open = new Set<Promise<void>>();

  constructor(loam: Servers) {
    this.#loam = loam;
  }

  #fail(what: string): void {
    this.failures.push(`${this.step}: ${what}`);
  }

  start(workspace: Workspace): Promise<void>[] {
    this.#run(this.#request());
    this.#run(this.#push(workspace));
    const keys = JOBS.flatMap((name) =>
      Array.from({ length: FOLLOWERS_PER_JOB }, (_, i) => ({ name, key: `${name} of ${i}` })),
    );
    return keys.map(({ name, key }) => this.#follow(name, key));
  }

  #run(activity: Promise<void>): void {
    const open = activity
      .catch((error) => void this.failures.push(`${error}`))
      .finally(() => this.#open.delete(open));
    this.#open.add(open);
  }

  async #request(): Promise<void> {
    const { admin } = this.#loam;
    const set = `mutation ($value: String!) {
      setVariable(input: { namespace: "admin", name: "COUNT", value: $value }) { variable { name } } }`;
    const kinds = [
      () => admin.get('/auth/v1/whoami'),
      () => admin.get('/auth/v1/repository/admin'),
      () => admin.get('/admin/jobs'),
      () => admin.request('POST', '/graphql', { json: { query: READ } }),
      () =>
        admin.request('POST', '/graphql', {
          json: { query: set, variables: { value: `${this.answered}` } },
        }),
    ];
    let open = 0;
    for (let i = 0; !this.#stopping.signal.aborted; i++) {
      const next = delay(REQUEST_MS);
      const send = kinds[i % kinds.length] as (typeof kinds)[0];
      const answer = send().then(
        ({ status, text }) => {
          if (status === 200 && !text.includes('"errors"')) this.answered++;
          else this.#fail(`request ${i % kinds.length}: ${status} ${text}`);
        },
        (error) => void this.#fail(`request ${i % kinds.length}: ${error} ${error.cause}`),
      );
      open++;
      this.#run(answer.finally(() => open--));
      await next;
      while (open >= MAX_OPEN_REQUESTS) await delay(REQUEST_MS);
    }
  }

  async #push(workspace: Workspace): Promise<void> {
    while (!this.#stopping.signal.aborted) {
      const next = delay(PUSH_MS);
      await workspace.commit('code', { 'a.txt': `number ${this.pushed}\n` });
      const { code, stderr } = await workspace.try('code', 'push', '-q', 'origin', 'HEAD:main');
      if (code === 0) this.pushed++;
      else this.#fail(`push: ${stderr}`);
      await next;
    }
  }

  /** Resolves at the end of the log. A stream that breaks is resumed, as browsers do. */
  async #follow(name: string, key: string): Promise<void> {
    const messages: string[] = [];
    this.followed.set(key, messages);
    let last = '0';
    for (let hasEnded = false; !hasEnded; ) {
      await using stream = followStream(
        this.#loam.admin,
        `/admin/job/${name}/logs?stream=true`,
        last,
      );
      const followed = stream.each(({ id, event, data }) => {
        last = id ?? last;
        if (event === 'log') messages.push(data.message);
        hasEnded ||= event === 'end';
      });
      await followed.catch((error) => {
        if (error.message !== 'terminated') this.#fail(`stream: ${error} ${error.cause}`);
        return delay(REQUEST_MS);
      });
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopping.abort();
    await Promise.all(this.#open);
  }
}

/**
 * The server that does not have the repository comes first: servers until 28 November 2026 cut the pushes that they forward to a
 * server that stops.
 */
async function orderServers(
  { pool, servers }: Servers,
  repositoryId: string,
): Promise<OneServer[]> {
  const { rows } = await pool.query<{ id: string; url: string }>('select id, url from servers');
  const owner = chooseOwner(repositoryId, rows).id;
  const isOwner = ({ base }: OneServer) => rows.some(({ id, url }) => id === owner && url === base);
  return [...servers].sort((a, b) => Number(isOwner(a)) - Number(isOwner(b)));
}

test('two servers are upgraded one after the other, without a failed request or a lost line', async (ctx) => {
  needs(ctx, 'haproxy', 'ceph', 'previous-release');
  await using previous = await extractPreviousRelease();
  const env = { LOAM_JOB_SLOTS: String(JOBS.length / 2), LOAM_JOB_NETWORK: 'host' };
  await using loam = await startServers({ all: 2, root: previous.path, env });
  const { admin, pool } = loam;
  const created = await admin.post('/auth/v1/repository/admin', { name: 'code', auto_init: true });
  await using workspace = await Workspace.open();
  await workspace.clone(admin, 'admin/code', 'code');
  for (const name of JOBS)
    await submit(admin, { namespace: 'admin', repo: 'admin/code', name, command: COUNT });
  for (const name of JOBS) await until(admin, 'admin', name, 'RUNNING');

  await using load = new Load(loam);
  const following = load.start(workspace);
  const goOn = async () => {
    const { answered, pushed } = load;
    await eventually(() => {
      if (load.failures.length > 0) return;
      expect(load.answered).toBeGreaterThan(answered + 250);
      expect(load.pushed).toBeGreaterThan(pushed + 2);
    });
    expect(load.failures.slice(0, 5), loam.proxySaid()).toEqual([]);
  };
  await goOn();
  for (const server of await orderServers(loam, created.body.id)) {
    load.step = `${server.name} is drained`;
    await loam.setProxyState(server, 'drain');
    load.step = `${server.name} stops`;
    await server.stop();
    load.step = `${server.name} starts`;
    await server.start(ROOT);
    load.step = `${server.name} is upgraded`;
    await loam.setProxyState(server, 'ready');
    await goOn();
  }

  for (const name of JOBS) await cancel(admin, 'admin', name);
  await Promise.all(following);
  await load[Symbol.asyncDispose]();
  expect(load.failures, loam.proxySaid()).toEqual([]);
  expect(load.followed.size).toBe(JOBS.length * FOLLOWERS_PER_JOB);
  for (const [key, messages] of load.followed) {
    const count = messages.length - 1;
    const numbers = Array.from({ length: count }, (_, i) => String(i + 1));
    expect(messages, key).toEqual([...numbers, `end ${count}`]);
  }
  for (const name of JOBS)
    expect(await job(admin, 'admin', name)).toMatchObject({
      exitCode: 0,
      attempts: { nodes: [{ number: 1 }] },
    });
  const head = await workspace.git('code', 'rev-parse', 'HEAD');
  const found = await workspace.git('.', 'ls-remote', remote(admin, 'admin/code'), 'main');
  expect(found).toContain(head);
  for (const server of loam.servers) expect(server.hasDied(), server.said()).toBe(false);

  const { rows } = await pool.query(
    `select (select count(*)::int from _prisma_migrations) as migrations,
       (select convert_from(value, 'utf8') from settings where name = 'release') as release,
       (select convert_from(value, 'utf8') from settings where name = 'functions') as functions`,
  );
  const { version, checksum } = await readFunctions();
  expect(rows).toEqual([
    {
      migrations: (await readMigrations()).length,
      release: String(RELEASE),
      functions: `${version} ${checksum}`,
    },
  ]);
});
