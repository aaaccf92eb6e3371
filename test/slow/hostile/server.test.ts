/** A whole server on a machine where no sandbox works, and a job that searches for its secrets. */
import { chown, mkdtemp, rm } from 'node:fs/promises';
import { expect, test } from 'vitest';
import { Client } from '../../support/harness.ts';
import { needs } from '../../support/needs.ts';
import { startServer } from '../../support/process.ts';
import { lines, submit, until } from '../../support/submit.ts';

const TOKEN = 'a-token-that-no-job-may-read';
/** PostgreSQL needs a user with a name. */
const NOBODY = 65_534;

/** The sandbox programs exist and fail, for the server and all its children. */
const WITHOUT_SANDBOX = [
  ...['unshare', '--mount', '--', '/bin/sh', '-c'],
  'for p in bwrap unshare; do f=$(command -v $p) && mount --bind /bin/false $f; done; exec "$@"',
  'sh',
];

test.for([
  { who: 'root', user: 0, reads: [], says: /each as a user of its own/ },
  {
    who: 'an ordinary user',
    user: NOBODY,
    reads: ['secret-key'],
    says: /with the rights of this server/,
  },
])('without a sandbox, by a server that is $who', async ({ user, reads, says }, ctx) => {
  needs(ctx, 'root', 'shared-checkout', 'mount');
  const data = await mkdtemp('/tmp/loam-hostile-');
  if (user) await chown(data, user, user);
  try {
    const env = { LOAM_DATA_DIR: data, LOAM_ADMIN_TOKEN: TOKEN, LOAM_RATE_LIMITS: 'off' };
    await using server = await startServer(env, { user: `${user}`, wrapper: WITHOUT_SANDBOX });
    expect(server.output()).toMatch(/Jobs run UNCONFINED/);
    expect(server.output()).toMatch(says);
    expect(server.output()).not.toMatch(/A job can read LOAM_ADMIN_TOKEN/);
    const admin = new Client(server.base, `Bearer ${TOKEN}`);
    await admin.post('/auth/v1/repository/admin', { name: 'code' });
    // Not as an argument, because the job's own command line would match too.
    const command = [
      `cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c '^LOAM_ADMIN_TOKEN=a-to[k]en'`,
      `for f in secret-key; do cat ${data}/$f > /dev/null 2>&1 && echo $f; done; echo end`,
    ].join('\n');
    await submit(admin, { namespace: 'admin', name: 'look', repo: 'admin/code', command });
    await until(admin, 'admin', 'look', 'SUCCEEDED');
    const said = await lines(admin, 'admin', 'look');
    expect(said).toEqual(['0', ...reads, 'end']);
  } finally {
    await rm(data, { recursive: true, force: true, maxRetries: 5 });
  }
});
