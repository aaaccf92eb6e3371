/** Servers that are killed while they copy the inputs of a job. */
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { startKillableServer } from '../../support/kills/killable-server.ts';
import { needs } from '../../support/needs.ts';
import { job, lines, submit, until } from '../../support/submit.ts';

const FILES = 30_000;
const KILLS = 3;

test('a killed server copies the inputs of a job again', { timeout: 300_000 }, async (ctx) => {
  needs(ctx, 'bubblewrap');
  const server = await startKillableServer(ctx);
  const { admin, folder } = server;
  await admin.post('/auth/v1/repository/admin', { name: 'code' });
  const common = { namespace: 'admin', repo: 'admin/code' };
  const command = `mkdir out && cd out && seq ${FILES} | xargs touch && echo last > z`;
  await submit(admin, { ...common, name: 'source', command, outputPath: 'out' });
  await until(admin, 'admin', 'source', 'SUCCEEDED');
  await submit(admin, {
    ...common,
    name: 'user',
    command: 'ls in | wc -l; cat in/z; ls -A | sort',
    inputs: [{ job: 'source', to: 'in' }],
  });
  const attempts = join(folder, 'data/attempts');
  const copied = async () => {
    const names = await readdir(attempts);
    const counts = names.map((name) =>
      readdir(join(attempts, name, 'work/in')).then(
        (found) => found.length,
        () => 0,
      ),
    );
    return Math.max(0, ...(await Promise.all(counts)));
  };
  let interrupted = 0;
  for (let kills = 0; kills < KILLS; kills++) {
    await eventually(async () => expect(await copied()).toBeGreaterThan(100));
    await server.kill();
    if ((await copied()) < FILES) interrupted += 1;
    await server.start();
  }
  expect(interrupted).toBeGreaterThan(0);
  await until(admin, 'admin', 'user', 'SUCCEEDED');
  expect(await lines(admin, 'admin', 'user')).toEqual([`${FILES + 1}`, 'last', '.git', 'in']);
  expect((await job(admin, 'admin', 'user')).attempts.nodes).toHaveLength(1);
});
