/** `loam webhooks …` against an endpoint with TLS. */
import { Webhook } from 'standardwebhooks';
import { expect, test } from 'vitest';
import { eventually } from '../support/eventually.ts';
import { startApp } from '../support/harness.ts';
import { LoamUser } from '../support/loam-command.ts';
import { needs } from '../support/needs.ts';
import { makeAuthority, startReceiver } from '../support/webhook-receiver.ts';

test('a webhook is created, tested, changed, sent again and deleted', async (ctx) => {
  needs(ctx, 'openssl');
  await using authority = await makeAuthority();
  await using receiver = await startReceiver(authority);
  const webhooks = { allow: ['127.0.0.1'], authorities: authority.file };
  await using app = await startApp({ config: { webhooks } });
  const ada = await app.user('ada');
  await using user = await LoamUser.open(ada);

  const url = `${receiver.url}/hook`;
  const created = await user.run([
    'webhooks',
    'create',
    url,
    '--events',
    'job.completed,job.failed',
  ]);
  expect([created.code, created.stdout]).toEqual([0, expect.stringMatching(/^whsec_\S+\n$/)]);
  const secret = created.stdout.trim();
  expect(created.stderr).not.toContain(secret);
  const [webhook] = JSON.parse(await user.loam(['webhooks', 'list', '--json']));
  expect(webhook).toMatchObject({
    url,
    name: `127.0.0.1:${receiver.port}`,
    namespaces: ['ada'],
    eventTypes: ['JOB_COMPLETED', 'JOB_FAILED'],
    hasSecret: true,
    active: true,
  });
  const { id } = webhook;
  expect(created.stderr).toContain(id);
  expect(await user.loam(['webhooks', 'list', '--namespace', 'ada'])).toMatch(
    new RegExp(`^${id}\ton\t.*\tada\t${url}\n$`),
  );

  const delivery = (await user.loam(['webhooks', 'test', id])).trim();
  const ping = await eventually(() => receiver.received[0] ?? expect.fail('nothing was received'));
  const headers = ping.headers as Record<string, string>;
  expect(new Webhook(secret).verify(ping.body, headers)).toMatchObject({ type: 'ping' });
  const deliveries = (...options: string[]) =>
    user.loam(['webhooks', 'deliveries', id, ...options]);
  await eventually(async () => {
    expect(await deliveries('--status', 'succeeded', '--event', 'ping')).toMatch(
      new RegExp(`^${delivery}\tping\tsucceeded\tstatus_204\t1\t`),
    );
  });
  expect(await deliveries('--status', 'failed')).toBe('');

  const again = await user.loam(['webhooks', 'redeliver', id, delivery, '--json']);
  expect(JSON.parse(again)).toMatchObject({ eventType: 'PING', attempts: 0 });
  await eventually(() => expect(receiver.received).toHaveLength(2));
  expect(receiver.received[1]?.headers['webhook-id']).toBe(ping.headers['webhook-id']);

  await user.loam([
    'webhooks',
    'update',
    id,
    '--name',
    'Chat',
    '--events',
    'repository.pushed',
    '--off',
  ]);
  const shown = await user.loam(['webhooks', 'show', id]);
  expect(shown).toContain('name\tChat\n');
  expect(shown).toContain('state\toff\n');
  expect(shown).toContain('events\trepository.pushed\n');
  expect((await user.run(['webhooks', 'test', id])).code).toBe(1);
  await user.loam(['webhooks', 'update', id, '--on', '--secret', '-'], { stdin: 'plain text\n' });
  await user.loam(['webhooks', 'test', id]);
  const third = await eventually(() => receiver.received[2] ?? expect.fail('nothing was received'));
  const verify = () =>
    new Webhook('plain text', { format: 'raw' }).verify(
      third.body,
      third.headers as Record<string, string>,
    );
  expect(verify()).toMatchObject({ type: 'ping' });
  await user.loam(['webhooks', 'update', id, '--no-secret']);
  expect(JSON.parse(await user.loam(['webhooks', 'show', id, '--json'])).hasSecret).toBe(false);

  const types = ['--events', 'job.failed,service.created'];
  const future = await user.run(['webhooks', 'update', id, ...types]);
  expect([future.code, future.stderr]).toEqual([
    0,
    expect.stringContaining('sends no events of these types: service.created\n'),
  ]);

  for (const wrong of [[], ['--on', '--off'], ['--secret', 'in-an-argument'], ['--events', 'none']])
    expect((await user.run(['webhooks', 'update', id, ...wrong])).code, `${wrong}`).toBe(2);
  await user.loam(['webhooks', 'delete', id]);
  expect((await user.run(['webhooks', 'show', id])).code).toBe(1);
  const refused = await user.run([
    'webhooks',
    'create',
    'http://a.example',
    '--events',
    'job.failed',
  ]);
  expect([refused.code, refused.stdout]).toEqual([1, '']);
});
