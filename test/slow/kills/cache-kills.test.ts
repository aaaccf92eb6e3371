/**
 * A server, and a joined machine, that are killed at random while their jobs restore and save caches:
 *
 * `LOAM_TEST_KILLS=40 LOAM_TEST_SEED=7 npx vitest run test/slow/kills/cache-kills.test.ts`
 */
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { readConfig } from '../../../src/base/config/config.ts';
import { createLog } from '../../../src/base/log.ts';
import { openFolder } from '../../../src/platform/storage/folder.ts';
import { createRepository } from '../../support/caches.ts';
import { joinMachine } from '../../support/joined-machine.ts';
import { startKillableServer } from '../../support/kills/killable-server.ts';
import { mulberry32 } from '../../support/kills/killer.ts';
import { checkStore, sweepAll } from '../../support/large-files.ts';
import { lines, submit, until } from '../../support/submit.ts';

const KILLS = Number(process.env.LOAM_TEST_KILLS ?? 3);
const SEED = Number(process.env.LOAM_TEST_SEED ?? Math.floor(Math.random() * 1e6));
const FILES = 200;
/** Longer than restoring, running and saving takes here. */
const LATEST_KILL_MS = 2_500;

/** Says whether it has found all files of one job, a part of them, or none, and leaves files of its own. */
const COMMAND = `
found=$(cat deps/name-* 2>/dev/null | sort | uniq -c | sed 's/^ *//')
echo "found: \${found:-nothing}"
mkdir -p deps
for i in $(seq ${FILES}); do echo "$JOB_NAME" > deps/name-$i; done
head -c 20000000 /dev/urandom > deps/large`;

test.for([
  ['processes', 'process'],
  ['a joined machine', 'none'],
] as const)(
  `caches of jobs: %s, through ${KILLS} kills`,
  {
    timeout: 120_000 + KILLS * 30_000,
  },
  async ([, runner], ctx) => {
    console.log(`LOAM_TEST_SEED=${SEED}`);
    const random = mulberry32(SEED);
    const server = await startKillableServer(ctx, { LOAM_RUNNER: runner });
    const { admin, pool, cleanup } = server;
    const restart = async () => {
      await server.kill();
      await server.start();
    };
    const victims = [{ name: 'the server', restart }];
    if (runner === 'none') {
      const machine = cleanup.use(
        await joinMachine(server, {
          dir: join(server.folder, 'machine'),
          name: 'm1',
          env: { LOAM_RUNNER: 'process' },
        }),
      );
      victims.push({
        name: 'the machine',
        restart: async () => {
          await machine.end('SIGKILL');
          machine.start();
        },
      });
    }
    const { repo } = await createRepository(admin, 'admin');
    for (let kill = 1; kill <= KILLS; kill++) {
      const name = `job-${kill}`;
      const cache = [{ path: 'deps', key: name, restoreKeys: ['job-'] }];
      await submit(admin, { namespace: 'admin', name, repo, command: COMMAND, cache });
      await delay(random() * LATEST_KILL_MS, undefined, { signal: ctx.signal });
      const victim = victims[Math.floor(random() * victims.length)] as (typeof victims)[number];
      const { rows } = await pool.query(
        'select progress, (select count(*)::int from job_caches) as caches from jobs where name = $1',
        [name],
      );
      console.log(
        `${kill}: kills ${victim.name} while ${rows[0].progress}, ${rows[0].caches} caches`,
      );
      await victim.restart();
      await until(admin, 'admin', name, 'SUCCEEDED');
      const [found, ...others] = await lines(admin, 'admin', name);
      expect(found).toMatch(
        kill === 1 ? /^found: nothing$/ : new RegExp(`^found: ${FILES} job-\\d+$`),
      );
      expect(others).toEqual([]);
    }
    const { rows } = await pool.query('select key from job_caches');
    expect(rows).toHaveLength(KILLS);
    const storage = server.cleanup.use(await openFolder(join(server.folder, 'storage')));
    const services = { pool, storage, log: createLog('warn'), config: readConfig({}) };
    await checkStore(services);
    await sweepAll(services);
    const { chunks, objects } = await checkStore(services);
    expect(objects).toBe(KILLS);
    const unused = await pool.query('select count(*)::int as n from large_chunks where uses = 0');
    expect([unused.rows[0].n, chunks > 0]).toEqual([0, true]);
  },
);
