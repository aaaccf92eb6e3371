/**
 * `node bench/checkouts.ts <folder> [rounds] [part of a title]`: this checkout against another one, for example of the commit
 * before a change, with its packages installed. Both servers run at once and take turns, so that other load of the machine
 * affects both. Prints, for each capability, the median time of a round, the CPU time of all processes of the server, and their
 * ratios; below 1 this checkout is better. Needs root for the CPU times, and an engine with `loam-test/busybox` for containers.
 */
import { once } from 'node:events';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { resolve } from 'node:path';
import Docker from 'dockerode';
import { DOCKER } from '../test/support/docker.ts';
import { makeAuthority } from '../test/support/webhook-receiver.ts';
import { createJob, firstLine, IMAGE, type JobSource } from './jobs.ts';
import { openAccount } from './process.ts';
import { type Bench, openBench, TOKEN } from './repository.ts';
import { queriesOf } from './seeded.ts';
import { alternate, type Side, show } from './sides.ts';

const [other, rounds = '15', part = ''] = process.argv.slice(2);
if (other === undefined) throw new Error('Name the folder of the other checkout');
const ROUNDS = Number(rounds);
const REPOSITORIES = 25;
/** Jobs of a round that run at once. */
const IN_FLIGHT = 8;
/** Deliveries of a round. */
const DELIVERIES = 50;
/** An organization with a webhook. */
const HOOKED = 'hooked';

await using cleanup = new AsyncDisposableStack();
const hasEngine = await findEngine();
const authority = cleanup.use(await makeAuthority());
const receiver = createServer(await authority.certify('IP:127.0.0.1'), (request, response) => {
  request.resume().on('end', () => {
    response.writeHead(204).end();
    receiver.emit('delivery');
  });
}).listen(0, '127.0.0.1');
await once(receiver, 'listening');
cleanup.defer(() => void receiver.close().closeAllConnections());

const env = {
  LOAM_JOB_SLOTS: String(IN_FLIGHT),
  LOAM_RUNNER: hasEngine ? 'auto' : 'process',
  LOAM_WEBHOOK_ALLOW: '127.0.0.0/8',
  LOAM_WEBHOOK_CA: authority.file,
  ...(hasEngine && { DOCKER_HOST: DOCKER.host }),
};
let names = 0;
const post = async (url: string, body: object | string) => {
  const response = await fetch(url, {
    method: 'POST',
    headers: { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });
  const text = await response.text();
  if (!response.ok) throw new Error(`${url} was answered ${response.status} ${text}`);
  return text;
};
const get = async (url: string) => {
  const response = await fetch(url, { headers: { authorization: `Bearer ${TOKEN}` } });
  if (!response.ok) throw new Error(`${url} was answered ${response.status}`);
  return response.text();
};
const repeat = async (times: number, work: () => Promise<unknown>) => {
  for (let i = 0; i < times; i++) await work();
};
const runJob = async (base: string, source: JobSource) => {
  const name = `bench-${names++}`;
  await createJob(base, { ...source, name, command: 'echo first line' });
  return firstLine(base, name);
};
const code: JobSource = { repo: 'admin/repository-0' };
const ours = await openSide('this', resolve(import.meta.dirname, '..'));
const theirs = await openSide('other', resolve(other));

await compare('REST, 200 reads of a repository', (base, id) =>
  repeat(200, () => get(`${base}/auth/v1/repository/admin/${id}`)),
);
await compare('REST, 100 lists of 20', (base) =>
  repeat(100, () => get(`${base}/auth/v1/repository/admin`)),
);
await compare('REST, 20 new repositories', (base) =>
  repeat(20, () => post(`${base}/auth/v1/repository/admin`, { name: `new-${names++}` })),
);
await compare('GraphQL, 100 reads of a repository', (base, id) =>
  repeat(100, () => post(`${base}/graphql`, queriesOf(id).one)),
);
await compare('GraphQL, 100 lists of 20', (base, id) =>
  repeat(100, () => post(`${base}/graphql`, queriesOf(id).list)),
);
await compare('process, to the first line', (base) => runJob(base, code));
await compare(`${IN_FLIGHT} processes at once, to their ends`, (base) =>
  Promise.all(Array.from({ length: IN_FLIGHT }, async () => (await runJob(base, code)).ended)),
);
if (hasEngine) {
  await compare('container, to the first line', (base) => runJob(base, { image: IMAGE }));
  await compare('4 containers at once, to their ends', (base) =>
    Promise.all(
      Array.from({ length: 4 }, async () => (await runJob(base, { image: IMAGE })).ended),
    ),
  );
} else console.log(`NOT MEASURED: containers. No engine with ${IMAGE} answers at ${DOCKER.host}`);
await compare(`${DELIVERIES} new repositories, each with a delivery`, async (base) => {
  let arrived = 0;
  const all = Promise.withResolvers<void>();
  const count = () => {
    if (++arrived === DELIVERIES) all.resolve();
  };
  receiver.on('delivery', count);
  await repeat(DELIVERIES, () =>
    post(`${base}/auth/v1/repository/${HOOKED}`, { name: `new-${names++}` }),
  );
  await all.promise;
  receiver.off('delivery', count);
});

type Opened = Side & { bench: Bench; id: string };

async function openSide(name: string, root: string): Promise<Opened> {
  const bench = cleanup.use(await openBench(env, { root }));
  const account = cleanup.use(await openAccount(name, bench.server.child.pid as number));
  let id = '';
  for (let i = 0; i < REPOSITORIES; i++) {
    const { createRepository } = await bench.graphql(
      `mutation { createRepository(input: {namespace: "admin", name: "repository-${i}"}) { repository { id } } }`,
    );
    id = createRepository.repository.id;
  }
  const url = bench.server.base;
  await bench.graphql(
    `mutation { createOrganization(input: { name: "${HOOKED}", plan: UNLIMITED }) { namespace { id } } }`,
  );
  const { port } = receiver.address() as AddressInfo;
  await bench.graphql(
    `mutation { createWebhook(input: { name: "bench", url: "https://127.0.0.1:${port}/", namespaces: ["${HOOKED}"],
      eventTypes: [REPOSITORY_CREATED], secret: "whsec_dHdlbnR5LWZvdXIgYnl0ZXMgb3IgbW9yZQ==" }) { webhook { id } } }`,
  );
  return { bench, account, url, samples: [], id };
}

async function compare(
  title: string,
  work: (base: string, id: string) => Promise<unknown>,
): Promise<void> {
  if (!title.includes(part)) return;
  for (const side of [ours, theirs]) side.samples = [];
  await alternate([ours, theirs], { rounds: ROUNDS, warmUp: 5 }, (url) =>
    work(url, url === ours.url ? ours.id : theirs.id),
  );
  show(title, ours.samples, theirs.samples);
}

async function findEngine(): Promise<boolean> {
  const request = { socketPath: new URL(DOCKER.host).pathname };
  return new Docker(request)
    .getImage(IMAGE)
    .inspect()
    .then(
      () => true,
      () => false,
    );
}
