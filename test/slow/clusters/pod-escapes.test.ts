/**
 * What a job can reach from its pod: nothing of the cluster's API, of other attempts, or of the agent beside it. The cluster of
 * the tests enforces no NetworkPolicy, so the stored policy is evaluated here.
 */
import { BlockList } from 'node:net';
import type {
  V1NetworkPolicy,
  V1NetworkPolicyPeer,
  V1NetworkPolicyPort,
  V1Pod,
} from '@kubernetes/client-node';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { type Client, startApp } from '../../support/harness.ts';
import { type KubeCluster, openKubeCluster } from '../../support/kube/kube.ts';
import { has, needs } from '../../support/needs.ts';
import { lines, submit, until, variables } from '../../support/submit.ts';

const SECRET = 'correct-horse-battery';

let cluster: KubeCluster;

beforeAll(async () => {
  if (has('kubernetes')) cluster = await openKubeCluster();
});
afterAll(() => cluster?.[Symbol.asyncDispose]());
beforeEach((ctx) => needs(ctx, 'kubernetes'));

const list = async <T>(kind: string): Promise<T[]> =>
  JSON.parse(await cluster.kubectl('get', kind, '-o', 'json')).items;

/** Two users on a server that drives the cluster; Bob has a job with a secret that runs. */
async function start() {
  await using cleanup = new AsyncDisposableStack();
  const app = cleanup.use(
    await startApp({
      config: {
        host: cluster.hostAddress,
        runner: 'none',
        clusters: [{ name: 'kubernetes', kind: 'kubernetes', options: cluster.config }],
      },
    }),
  );
  const ada = await app.user('ada');
  const bob = await app.user('bob');
  cleanup.defer(async () => {
    await bob.post('/auth/v1/seed/bob/jobs/other/cancel');
    await eventually(async () => expect(await list('pods')).toEqual([]));
  });
  await submit(bob, {
    ...jobOf('bob', 'other', 'echo up; exec sleep 600'),
    secrets: variables({ TOKEN: SECRET }),
  });
  await eventually(async () => expect(await lines(bob, 'bob', 'other')).toEqual(['up']));
  const [pod] = await list<V1Pod>('pods');
  const owned = cleanup.move();
  return { app, ada, pod: pod as V1Pod, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}

const jobOf = (namespace: string, name: string, command: string) => ({
  namespace,
  name,
  command,
  image: 'loam.test/node:1',
  cpu: 2,
  memoryGb: 1,
  diskGb: 1,
  retries: 0,
});

/** Runs a program of Node.js as a job. @returns what it logs as JSON */
async function probe(ada: Client, program: string, env: Record<string, string>) {
  await submit(ada, {
    ...jobOf('ada', 'probe', 'node --input-type=module --eval "$PROGRAM"'),
    env: variables({ PROGRAM: program, NODE_TLS_REJECT_UNAUTHORIZED: '0', ...env }),
  });
  await until(ada, 'ada', 'probe', 'SUCCEEDED').catch(async (error) => {
    throw new Error(`${error}: ${(await lines(ada, 'ada', 'probe')).join('\n')}`);
  });
  const found = (await lines(ada, 'ada', 'probe')).find((line) => line.startsWith('{'));
  return JSON.parse(found ?? '{}');
}

/** Looks around in the pod, and sends a request to each URL with each credential. */
const PROGRAM = `import { readdirSync, readFileSync } from 'node:fs';
const read = (path) => { try { return readFileSync(path, 'utf8'); } catch (error) { return error.code; } };
const list = (path) => { try { return readdirSync(path); } catch (error) { return error.code; } };
const statuses = {};
for (const url of process.env.URLS.split(' '))
  for (const headers of [{}, { authorization: 'Bearer ' + 'x'.repeat(43) }])
    (statuses[url] ??= []).push(await fetch(url, { headers }).then(({ status }) => status, ({ cause, message }) => cause?.code ?? message));
const processes = list('/proc').filter((name) => /^[0-9]+$/.test(name));
const { PROGRAM, ...env } = process.env;
console.log(JSON.stringify({
  statuses, env,
  folders: ['/var/run/secrets', '/loam-token', '/agent', '/job'].map(list),
  commands: processes.map((pid) => read('/proc/' + pid + '/cmdline')),
  environments: processes.map((pid) => read('/proc/' + pid + '/environ')),
  mounts: read('/proc/self/mounts'),
  status: read('/proc/self/status'),
}));`;

test('a job gets nothing from the API of the cluster, the kubelets, other attempts and its agent', async () => {
  await using made = await start();
  const { app, ada, pod } = made;
  const { KUBERNETES_SERVICE_HOST: host, KUBERNETES_SERVICE_PORT: port } = cluster.inPod;
  const api = `https://${host}:${port}`;
  const nodes = await cluster.admin(
    ...[
      'get',
      'nodes',
      '-o',
      'jsonpath={.items[*].status.addresses[?(@.type=="InternalIP")].address}',
    ],
  );
  const kubelets = nodes.split(' ').map((address) => `https://${address}:10250`);
  const attempt = pod.metadata?.annotations?.['loam/attempt-id'];
  const urls = [
    ...['secrets', 'pods', 'pods?watch=1'].map((of) => `${api}/api/v1/namespaces/loam-jobs/${of}`),
    ...['/api', '/version', '/api/v1/nodes'].map((path) => `${api}${path}`),
    ...kubelets.flatMap((kubelet) => [`${kubelet}/pods`, `${kubelet}/metrics`]),
    ...['checkout', 'control'].map((path) => `${app.base}/agents/${attempt}/${path}`),
  ];
  const seen = await probe(ada, PROGRAM, { URLS: urls.join(' ') });
  expect(Object.keys(seen.statuses)).toEqual(urls);
  for (const url of urls) expect(seen.statuses[url], url).toEqual([401, 401]);
  expect(seen.folders).toEqual(['ENOENT', 'ENOENT', 'ENOENT', 'ENOENT']);
  const text = JSON.stringify(seen);
  expect(text).not.toContain(SECRET);
  expect(Object.keys(seen.env).filter((name) => /token|secret|password/i.test(name))).toEqual([]);
  // The agent is in the other container, whose processes are not visible here.
  expect(seen.commands.join()).not.toContain('runAgent');
  expect(seen.environments.join()).not.toContain('NODE_NAME');
  expect(seen.mounts).not.toContain('/loam-token');
  expect(seen.status).toMatch(/^Uid:\t1000\t1000\t1000\t1000$/m);
  for (const set of ['CapPrm', 'CapEff', 'CapBnd', 'CapAmb'])
    expect(seen.status).toMatch(new RegExp(`^${set}:\\t0{16}$`, 'm'));
  expect(seen.status).toMatch(/^NoNewPrivs:\t1$/m);
  expect(seen.status).toMatch(/^Seccomp:\t2$/m);
});

test('the stored pod has no rights on its node, and neither command nor secrets', async () => {
  await using made = await start();
  const { spec } = made.pod;
  expect(JSON.stringify(made.pod)).not.toContain(SECRET);
  expect(JSON.stringify(made.pod)).not.toContain('echo up');
  expect(spec).toMatchObject({
    automountServiceAccountToken: false,
    securityContext: {
      runAsNonRoot: true,
      runAsUser: 1000,
      seccompProfile: { type: 'RuntimeDefault' },
    },
  });
  for (const field of ['hostNetwork', 'hostPID', 'hostIPC', 'shareProcessNamespace'] as const)
    expect(spec?.[field]).toBeFalsy();
  const volumes = (spec?.volumes ?? []).map(({ name, ...kind }) => [name, Object.keys(kind)[0]]);
  expect(Object.groupBy(volumes, ([, kind]) => kind as string)).toEqual({
    emptyDir: expect.anything(),
    downwardAPI: [['account', 'downwardAPI']],
    secret: [['token', 'secret']],
  });
  const [job] = (spec?.containers ?? []).filter(({ name }) => name === 'job');
  expect(job?.volumeMounts?.map(({ name }) => name)).not.toContain('token');
  for (const { securityContext, ports } of spec?.containers ?? []) {
    expect(securityContext).toMatchObject({
      allowPrivilegeEscalation: false,
      capabilities: { drop: ['ALL'] },
    });
    expect(securityContext?.privileged).toBeFalsy();
    expect(ports).toBeUndefined();
  }
  // Even a token of the account that the pod has would allow nothing, and Loam's own account cannot read Secrets.
  expect(spec?.serviceAccountName).toBe('default');
  for (const verb of ['get', 'list', 'create', 'delete'])
    for (const kind of ['pods', 'secrets', 'nodes'])
      expect(await may('default', verb, kind), `${verb} ${kind}`).toBe('no');
  expect(await may('loam', 'create', 'secrets')).toBe('yes');
  for (const what of ['get secrets', 'list secrets', 'create pods exec', 'get pods log'])
    expect(await may('loam', ...what.split(' ')), what).toBe('no');
});

/** Whether a service account of the namespace has a permission. */
async function may(account: string, verb = '', kind = '', subresource = ''): Promise<string> {
  const as = `--as=system:serviceaccount:loam-jobs:${account}`;
  const output: string = await cluster
    .kubectl('auth', 'can-i', verb, kind, `--subresource=${subresource}`, as)
    .catch(({ stdout }) => stdout);
  return output.trim();
}

type Target = { address: string; port: number; protocol?: string; labels?: Record<string, string> };

/** What a network plugin decides on a connection from a pod with the policy. */
function allowsEgress(
  { spec }: V1NetworkPolicy,
  { address, port, protocol = 'TCP', labels }: Target,
) {
  const isPort = (one: V1NetworkPolicyPort) =>
    (one.protocol ?? 'TCP') === protocol && (one.port === undefined || one.port === port);
  const isPeer = ({ ipBlock, podSelector }: V1NetworkPolicyPeer) =>
    ipBlock
      ? isIn(address, ipBlock.cidr) && !ipBlock.except?.some((range) => isIn(address, range))
      : labels !== undefined &&
        Object.entries(podSelector?.matchLabels ?? {}).every(
          ([key, value]) => labels[key] === value,
        );
  return (spec?.egress ?? []).some(
    ({ ports, to }) => (!ports?.length || ports.some(isPort)) && (!to?.length || to.some(isPeer)),
  );
}

function isIn(address: string, cidr: string): boolean {
  const family = (text: string) => (text.includes(':') ? 'ipv6' : 'ipv4');
  const [net = '', bits] = cidr.split('/');
  const range = new BlockList();
  range.addSubnet(net, Number(bits), family(net));
  return family(address) === family(net) && range.check(address, family(address));
}

test('the stored policy keeps jobs from private addresses, other pods and the database', async () => {
  await using made = await start();
  const { app, pod } = made;
  const { labels = {} } = pod.metadata ?? {};
  const policies = await list<V1NetworkPolicy>('networkpolicies');
  const selecting = policies.filter(({ spec }) =>
    Object.entries(spec?.podSelector?.matchLabels ?? {}).every(
      ([key, value]) => labels[key] === value,
    ),
  );
  const [policy] = selecting as [V1NetworkPolicy];
  // A second policy could only allow more.
  expect(selecting).toHaveLength(1);
  expect(policy.spec).toMatchObject({ policyTypes: ['Ingress', 'Egress'] });
  // No incoming connections at all.
  expect(policy.spec?.ingress ?? []).toEqual([]);
  const { KUBERNETES_SERVICE_HOST: api, KUBERNETES_SERVICE_PORT: port } = cluster.inPod;
  const server = { address: cluster.hostAddress, port: Number(new URL(app.base).port) };
  const closed: Record<string, Target> = {
    'the API server': { address: api, port: Number(port) },
    'the metadata of a cloud': { address: '169.254.169.254', port: 80 },
    'the metadata of a cloud by IPv6': { address: 'fd00:ec2::254', port: 80 },
    'another pod of a job': { address: pod.status?.podIP ?? '', port: 8080, labels },
    "Loam's database beside the server": { ...server, port: 5432 },
    'a database in the cluster': { address: '10.3.2.1', port: 5432, labels: { app: 'postgres' } },
    'a kubelet': { address: pod.status?.hostIP ?? '', port: 10250 },
    'a private network': { address: '192.168.1.1', port: 443 },
    'a public address mapped to IPv6': { address: '64:ff9b::a00:1', port: 443 },
  };
  for (const [what, target] of Object.entries(closed))
    expect(allowsEgress(policy, target), what).toBe(false);
  const open: Record<string, Target> = {
    'the server of the agent': server,
    'a nameserver': { address: '10.97.0.10', port: 53, protocol: 'UDP' },
    'the internet': { address: '1.1.1.1', port: 443 },
    'the internet by IPv6': { address: '2606:4700:4700::1111', port: 443 },
  };
  for (const [what, target] of Object.entries(open))
    expect(allowsEgress(policy, target), what).toBe(true);
});
