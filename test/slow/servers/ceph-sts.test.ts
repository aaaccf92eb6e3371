/** Identity tokens of jobs at a real relying party: the STS of Ceph's gateway gives S3 credentials for them. */
import { execFile } from 'node:child_process';
import { createPublicKey } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { promisify } from 'node:util';
import { CreateBucketCommand, S3Client } from '@aws-sdk/client-s3';
import { expect, test } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { fakeRunner } from '../../support/fake-runner.ts';
import { startApp } from '../../support/harness.ts';
import { needs } from '../../support/needs.ts';
import { startS3 } from '../../support/s3-server.ts';
import { submit } from '../../support/submit.ts';

const run = promisify(execFile);
const AUDIENCE = 'sts.example.com';

type Jwk = { kid: string; x5c?: string[] };

/** A certificate of the public key, signed by a throw-away authority, and its fingerprint as Ceph wants it. */
async function certify(dir: string, jwk: object): Promise<{ x5c: string; thumbprint: string }> {
  const at = (name: string) => join(dir, name);
  const openssl = (...args: string[]) => run('openssl', args);
  const pem = createPublicKey({ key: jwk as never, format: 'jwk' }).export({
    type: 'spki',
    format: 'pem',
  });
  await writeFile(at('public.pem'), pem);
  const subject = ['-subj', '/CN=test', '-nodes'];
  await openssl('req', '-newkey', 'rsa:2048', ...subject, '-keyout', at('ca'), '-out', at('csr'));
  await openssl('req', '-x509', '-key', at('ca'), '-subj', '/CN=test', '-out', at('ca.pem'));
  await openssl(
    ...['x509', '-req', '-in', at('csr'), '-CA', at('ca.pem'), '-CAkey', at('ca')],
    ...['-CAcreateserial', '-force_pubkey', at('public.pem'), '-out', at('cert.pem')],
  );
  const text = await readFile(at('cert.pem'), 'utf8');
  const { stdout } = await openssl('x509', '-in', at('cert.pem'), '-noout', '-fingerprint');
  return {
    x5c: text.replace(/-----[^-]+-----|\s/g, ''),
    thumbprint: stdout.split('=')[1]?.replaceAll(':', '').trim() ?? '',
  };
}

/**
 * The address of the issuer. Ceph before version 20 reads keys from certificates only, so this adds them; all else is the
 * answer of Loam.
 */
async function openIssuer(certificates: Map<string, string>) {
  let target = '';
  const server = createServer(async (req, res) => {
    const { authorization = '', 'content-type': type = '' } = req.headers;
    const answer = await fetch(target + req.url, {
      method: req.method ?? 'GET',
      headers: { ...(authorization && { authorization }), ...(type && { 'content-type': type }) },
      ...(req.method === 'POST' && { body: await text(req) }),
    });
    const body = (await answer.json()) as { keys?: Jwk[] };
    for (const key of body.keys ?? []) key.x5c = [certificates.get(key.kid) ?? ''];
    res.writeHead(answer.status, { 'Content-Type': 'application/json' });
    res.end(JSON.stringify(body));
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    forwardTo(address: string) {
      target = address;
    },
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      server.close();
    },
  };
}

test('a role of Ceph trusts the jobs of one branch, and nothing else', async (ctx) => {
  needs(ctx, 'ceph', 'curl');
  const dir = await mkdtemp(join(tmpdir(), 'loam-sts-'));
  await using cleanup = new AsyncDisposableStack();
  cleanup.defer(() => rm(dir, { recursive: true }));
  const s3 = cleanup.use(
    await startS3('rgw sts key = abcdefghijklmnop\nrgw s3 auth use sts = true\n'),
  );
  const certificates = new Map<string, string>();
  const issuer = cleanup.use(await openIssuer(certificates));
  const runner = fakeRunner({ images: true });
  const app = cleanup.use(
    await startApp({ config: { baseUrl: issuer.url, jobSlots: 100 }, overrides: { runner } }),
  );
  issuer.forwardTo(app.app.address);
  const ada = await app.user('ada');
  await ada.repository('ada/model');
  const createBranch = async (name: string) => {
    const { repository } = await ada.gql('{ repository(namespace: "ada", name: "model") { id } }');
    const input = { id: repository.id, name, from: 'main' };
    await ada.gql(
      'mutation ($input: CreateBranchInput!) { createBranch(input: $input) { repository { id } } }',
      { input },
    );
  };
  await createBranch('other');
  const tokenOf = async (name: string, branch: string, audience = AUDIENCE) => {
    const idTokens = [{ variable: 'CLOUD', audience }];
    const input = { namespace: 'ada', name, command: 'hold', repo: 'ada/model', branch, idTokens };
    const { id } = await submit(ada, input);
    return eventually(() => {
      const token = runner.running().find((spec) => spec.job.id === id)?.files.CLOUD;
      if (!token) throw new Error('the job does not run yet');
      return token;
    });
  };

  const { keys } = (await (await fetch(`${issuer.url}/.well-known/jwks.json`)).json()) as {
    keys: Jwk[];
  };
  const [key] = keys;
  if (!key) throw new Error('Loam publishes no key');
  const { x5c, thumbprint } = await certify(dir, key);
  certificates.set(key.kid, x5c);

  const { endpoint, region, credentials } = s3.config;
  const { accessKeyId, secretAccessKey } = credentials ?? { accessKeyId: '', secretAccessKey: '' };
  await s3.admin('caps', 'add', '--uid=test', '--caps=oidc-provider=*');
  const provider = new URLSearchParams({
    Action: 'CreateOpenIDConnectProvider',
    Version: '2010-05-08',
    Url: issuer.url,
    'ClientIDList.member.1': AUDIENCE,
    'ThumbprintList.member.1': thumbprint,
  });
  const user = `${accessKeyId}:${secretAccessKey}`;
  const signing = ['--aws-sigv4', 'aws:amz:default:iam', '--user', user];
  const { stdout } = await run('curl', ['-sS', ...signing, '-d', `${provider}`, `${endpoint}/`]);
  expect(stdout).toContain('CreateOpenIDConnectProviderResult');
  const host = issuer.url.replace('http://', '');
  const trust = {
    Version: '2012-10-17',
    Statement: [
      {
        Effect: 'Allow',
        Principal: { Federated: [`arn:aws:iam:::oidc-provider/${host}`] },
        Action: ['sts:AssumeRoleWithWebIdentity'],
        Condition: { StringEquals: { [`${host}:sub`]: 'repo:ada/model:ref:refs/heads/main' } },
      },
    ],
  };
  const role = ['--role-name=train', '--path=/'];
  await s3.admin('role', 'create', ...role, `--assume-role-policy-doc=${JSON.stringify(trust)}`);
  const allowed = { Effect: 'Allow', Action: ['s3:*'], Resource: 'arn:aws:s3:::*' };
  const policy = JSON.stringify({ Version: '2012-10-17', Statement: [allowed] });
  const named = ['--role-name=train', '--policy-name=all', `--policy-doc=${policy}`];
  await s3.admin('role-policy', 'put', ...named);

  const assume = async (token: string) => {
    const body = new URLSearchParams({
      Action: 'AssumeRoleWithWebIdentity',
      Version: '2011-06-15',
      RoleSessionName: 'job',
      RoleArn: 'arn:aws:iam:::role/train',
      WebIdentityToken: token,
    });
    const answer = await fetch(`${endpoint}/`, { method: 'POST', body });
    return { status: answer.status, xml: await answer.text() };
  };
  const { status, xml } = await assume(await tokenOf('trusted', 'main'));
  expect(status, xml).toBe(200);
  const textOf = (name: string) => new RegExp(`<${name}>(.*?)</${name}>`).exec(xml)?.[1] ?? '';
  const session = {
    accessKeyId: textOf('AccessKeyId'),
    secretAccessKey: textOf('SecretAccessKey'),
    sessionToken: textOf('SessionToken'),
  };
  const client = new S3Client({ endpoint, region, credentials: session, forcePathStyle: true });
  await client.send(new CreateBucketCommand({ Bucket: 'results' }));
  client.destroy();

  expect((await assume(await tokenOf('of-other-branch', 'other'))).status).toBe(403);
  expect((await assume(await tokenOf('of-other-audience', 'main', 'other'))).status).toBe(403);
  const [head, payload] = (await tokenOf('unsigned', 'main')).split('.');
  expect((await assume(`${head}.${payload}.${'A'.repeat(342)}`)).status).toBe(403);
});
