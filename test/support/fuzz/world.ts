/** Existing objects, so that fuzzing reaches the code behind "not found"; deleted objects are created again. */
import { randomBytes } from 'node:crypto';
import fc from 'fast-check';
import type { Client, Loam } from '../harness.ts';
import { ENDPOINT } from '../rest/cases.ts';

export type World = {
  /** Real values for a parameter or field with this name, in the spelling of REST or GraphQL. */
  known(name: string): fc.Arbitrary<unknown> | undefined;
  /** Creates deleted objects again. */
  restore(): Promise<void>;
  callers: fc.Arbitrary<Client>;
};

export async function createWorld(loam: Loam): Promise<World> {
  const { admin, anonymous } = loam;
  // With a new name each time, because a server may be fuzzed more than once.
  const visitorName = `visitor-${randomBytes(4).toString('hex')}`;
  const namespaces = () => fc.constantFrom('admin', visitorName, 'no-such-namespace');
  const visitor = await loam.user(visitorName);
  const repository = { id: '', name: 'fuzzed' };
  const jobs = ['fuzzed', 'gone'];
  const webhook = { id: '', delivery: '' };

  async function restore(): Promise<void> {
    const path = '/auth/v1/repository/admin';
    const made = await admin.post(path, { name: repository.name, gitignore_template: 'Node' });
    if (made.status === 201) repository.id = made.body.id;
    const job = {
      name: 'fuzzed',
      command: 'true',
      repo: `admin/${repository.name}`,
      gpu: 'none',
      cpu: 2,
      memory_gb: 2,
    };
    await admin.post('/auth/v1/seed/admin/jobs', job);
    for (const name of ['pat', 'api_keys'])
      await admin.post(`/auth/v1/${name}`, { name: 'fuzzed' });
    await restoreWebhook();
  }

  async function restoreWebhook(): Promise<void> {
    const path = '/auth/v1/seed/webhooks';
    const input = { name: 'fuzzed', url: ENDPOINT, event_types: ['job.failed'] };
    const json = { namespaces: ['admin'], active: true };
    const { status } = await admin.request('PATCH', `${path}/${webhook.id}`, { json });
    if (status !== 200)
      webhook.id = (await admin.post(path, { ...input, namespaces: ['admin'] })).body.id;
    webhook.delivery = (await admin.post(`${path}/${webhook.id}/test`)).body.id;
  }

  const names: Record<string, () => fc.Arbitrary<unknown>> = {
    namespace: namespaces,
    newnamespace: namespaces,
    id: () => fc.constantFrom(repository.id, webhook.id),
    repositoryid: () => fc.constant(repository.id),
    webhookid: () => fc.constant(webhook.id),
    delivery: () => fc.constant(webhook.delivery),
    deliveryid: () => fc.constant(webhook.delivery),
    namespaces,
    url: () => fc.constantFrom(ENDPOINT, 'http://hooks.acme.example', 'https://10.0.0.1'),
    secret: () => fc.constantFrom('hush', 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', 'whsec_'),
    name: () => fc.constantFrom(repository.name, ...jobs, 'Fresh_1.x'),
    username: () => fc.constantFrom('admin', visitorName),
    repo: () => fc.constantFrom(`admin/${repository.name}`, 'admin/none', 'none'),
    branch: () => fc.constantFrom('main', 'none'),
    ref: () => fc.constantFrom('main', 'HEAD', 'none', 'refs/heads/main'),
    revision: () => fc.constantFrom('main', 'a'.repeat(40)),
    path: () => fc.constantFrom('', '/', '.gitignore', 'none/at/all'),
    command: () => fc.constant('true'),
    since: () => fc.constant(new Date(0).toISOString()),
    email: () => fc.constantFrom('a@example.com', 'no address'),
    stream: () => fc.constant(false),
  };
  await restore();
  return {
    // Read again for each value, because ids change when the world is restored.
    known: (name) => {
      const make = names[name.toLowerCase().replaceAll('_', '')];
      return make && fc.constant(null).chain(make);
    },
    restore,
    callers: fc.oneof(
      { arbitrary: fc.constant(admin), weight: 8 },
      {
        arbitrary: fc.constantFrom(
          visitor,
          anonymous,
          loam.client('Bearer none'),
          loam.client('API-Key a$b'),
        ),
        weight: 2,
      },
    ),
  };
}

export function count(local: number, inCI: number): number {
  return process.env.LOAM_TEST_REQUIRE === 'all' ? inCI : local;
}
