/** Runs the commands of the pages for beginners in a shell, as printed. */
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { readConfig } from '../../src/base/config/config.ts';
import { startApp, type TestApp } from '../support/harness.ts';
import { needs } from '../support/needs.ts';
import { makeAuthority, startReceiver } from '../support/webhook-receiver.ts';

const run = promisify(execFile);

async function blocksOf(page: string, language: string): Promise<string[]> {
  const text = await readFile(join(import.meta.dirname, '../../docs', page), 'utf8');
  const found = text.matchAll(new RegExp(`^( *)\`\`\`${language}\\n(.*?)^ *\`\`\`$`, 'gms'));
  return [...found].map(([, indent = '', block = '']) =>
    block.replaceAll(new RegExp(`^${indent}`, 'gm'), ''),
  );
}

/** @returns the output of the shell */
async function paste(app: TestApp, script: string): Promise<string> {
  const lines = script
    .replace('LOAM=http://127.0.0.1:3000', `LOAM=${app.base}`)
    .replace('LOAM_TOKEN=loam_pat_…', `LOAM_TOKEN=${app.admin.token}`);
  expect(lines).toContain(app.base);
  expect(lines).toContain(app.admin.token);
  const { stdout } = await run('bash', ['--norc', '-eu', '-o', 'pipefail', '-c', lines]);
  expect(stdout).not.toMatch(/"errors?":/);
  return stdout;
}

test('the first user and organization', async (ctx) => {
  needs(ctx, 'curl');
  await using app = await startApp();
  const output = await paste(app, (await blocksOf('first-user.md', 'sh')).join(''));
  expect(output).toMatch(/"url":"http:\S+\/login\/link\?secret=/);
  const { namespace } = await app.admin.gql(
    '{ namespace(name: "acme") { members { nodes { role user { username } } } } }',
  );
  expect(namespace.members.nodes).toEqual(
    expect.arrayContaining([
      { role: 'ADMIN', user: { username: 'admin' } },
      { role: 'WRITE', user: { username: 'ada' } },
    ]),
  );
  expect(output).toContain('"full_name":"acme/hello"');
  const commits = '{ commits(first: 1) { nodes { sha } } }';
  const created = await app.admin.gql(
    `{ hello: repository(namespace: "acme", name: "hello") ${commits}
       project: repository(namespace: "acme", name: "project") ${commits} }`,
  );
  expect(created).toMatchObject({
    hello: { commits: { nodes: [{ sha: expect.any(String) }] } },
    project: { commits: { nodes: [] } },
  });

  // Who may create repositories, as the page says.
  const bob = await app.user('bob');
  await app.admin.setMembers('acme', { bob: 'WRITE' });
  expect((await bob.post('/auth/v1/repository/acme', { name: 'other' })).status).toBe(403);
  expect((await bob.post('/auth/v1/repository/bob', { name: 'other' })).status).toBe(201);
});

test('the first webhook', async (ctx) => {
  needs(ctx, 'curl', 'openssl');
  await using authority = await makeAuthority();
  await using receiver = await startReceiver(authority);
  const webhooks = { allow: ['127.0.0.1'], authorities: authority.file };
  await using app = await startApp({ config: { webhooks } });
  const blocks = await blocksOf('first-webhook.md', 'sh');
  const script = blocks.join('').replace('https://hooks.example.com/loam', `${receiver.url}/loam`);
  const output = await paste(app, script);
  expect(output).toContain('"event_type":"ping"');
  await expect.poll(() => receiver.received.map(({ path }) => path)).toEqual(['/loam']);
  expect(receiver.received[0]?.headers).toHaveProperty('webhook-signature');
});

test('the example of docs/webhooks.md', async (ctx) => {
  needs(ctx, 'curl', 'openssl');
  await using app = await startApp();
  await app.organization('acme');
  const [first = ''] = await blocksOf('webhooks.md', 'sh');
  expect(await paste(app, first)).toContain('"namespaces":["acme"]');
});

test('the first TLS', async () => {
  const [settings = ''] = await blocksOf('first-tls.md', 'sh');
  const env = [...settings.matchAll(/^export (\w+)=(\S+)$/gm)].map(([, name = '', value]) => [
    name,
    value,
  ]);
  expect(readConfig(Object.fromEntries(env))).toMatchObject({
    host: '127.0.0.1',
    baseUrl: 'https://loam.example.com',
    trustedProxies: ['127.0.0.0/8', '::1'],
  });
  // `test/slow/servers/proxy.test.ts` runs the other copy.
  expect(await blocksOf('first-tls.md', 'caddyfile')).toEqual(
    (await blocksOf('proxy.md', 'caddyfile')).slice(0, 1),
  );
});
