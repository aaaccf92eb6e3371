/**
 * Checkpoints while the server, or the command of the job, is killed at random:
 *
 * `LOAM_TEST_KILLS=40 LOAM_TEST_SEED=7 npx vitest run test/slow/kills/checkpoint-kills.test.ts`
 */
import { readdirSync, readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { checkpointTopic } from '../../../src/jobs/checkpoints/store.ts';
import { openFolder } from '../../../src/platform/storage/folder.ts';
import { eventually } from '../../support/eventually.ts';
import { startKillableServer } from '../../support/kills/killable-server.ts';
import { mulberry32 } from '../../support/kills/killer.ts';
import { lines, submit, until } from '../../support/submit.ts';

const KILLS = Number(process.env.LOAM_TEST_KILLS ?? 4);
const SEED = Number(process.env.LOAM_TEST_SEED ?? Math.floor(Math.random() * 1e6));
const RETRIES = 5;
const LINES = 50_000;
/** Longer than a checkpoint takes here. */
const LATEST_KILL_MS = 1_500;

/** Says what it has found, and then goes on with new steps until the test ends it. Each file is complete at any time. */
const COMMAND = `
mkdir -p ckpt
step=$(cat ckpt/step 2>/dev/null || echo 0)
echo "from $step, data of $(sort -u ckpt/data 2>/dev/null | tr '\\n' ' ')in $(cat ckpt/data 2>/dev/null | wc -l) lines"
until [ -e stop ]; do
  step=$((step + 1))
  yes $step | head -n ${LINES} > new; mv new ckpt/data
  echo $step > new; mv new ckpt/step
done`;

test(`checkpoints through ${KILLS} kills`, { timeout: 120_000 + KILLS * 30_000 }, async (ctx) => {
  console.log(`LOAM_TEST_SEED=${SEED}`);
  const random = mulberry32(SEED);
  const server = await startKillableServer(ctx, { LOAM_RUNNER: 'process' });
  const { admin, pool, cleanup } = server;
  await admin.post('/auth/v1/repository/admin', { name: 'code' });
  const counts = { server: 0, command: 0, stored: 0 };
  for (let number = 1; counts.server + counts.command < KILLS; number++) {
    const name = `counting-${number}`;
    const job = { namespace: 'admin', name, repo: 'admin/code', command: COMMAND };
    const checkpoint = { checkpointPath: 'ckpt', checkpointMinutes: 0, retries: RETRIES };
    const { id } = await submit(admin, { ...job, ...checkpoint });
    await until(admin, 'admin', name, 'RUNNING');
    /** The checkpoint that is stored has at least this step. */
    let acknowledged = 0;
    const storing = new AbortController();
    cleanup.defer(() => storing.abort());
    const observed = observe();

    for (let retries = 0; retries < RETRIES && counts.server + counts.command < KILLS; ) {
      await delay(random() * LATEST_KILL_MS, undefined, { signal: ctx.signal });
      const before = acknowledged;
      if (random() < 0.5) {
        counts.server++;
        await server.kill();
        await server.start();
        continue;
      }
      counts.command++;
      retries++;
      await eventually(() => killCommand(name));
      const found = await eventually(async () => {
        const said = (await lines(admin, 'admin', name)).filter((line) => line.startsWith('from'));
        expect(said).toHaveLength(retries + 1);
        return said.at(-1) as string;
      });
      const [, from, data, count] = /^from (\d+), data of (\d+) in (\d+) lines$/.exec(found) ?? [];
      expect([found, count]).toEqual([found, `${LINES}`]);
      expect(Math.min(Number(from), Number(data)), found).toBeGreaterThanOrEqual(before);
    }
    storing.abort();
    await observed;
    await eventually(() => writeFile(join(workFolder(), 'stop'), ''));
    await until(admin, 'admin', name, 'SUCCEEDED');

    /** Has checkpoints stored all the time, and notes what they have at least. */
    async function observe(): Promise<void> {
      while (!storing.signal.aborted) {
        const step = readStep();
        const since = new Date();
        await pool.query('select pg_notify($1, $2)', ['loam', checkpointTopic(id)]);
        for (let tries = 0; tries < 20 && !storing.signal.aborted; tries++) {
          await delay(25);
          const { rows } = await pool.query(
            'select from checkpoints where job_id = $1 and is_current and created_at > $2',
            [id, since],
          );
          if (rows.length === 0) continue;
          counts.stored++;
          acknowledged = Math.max(acknowledged, step);
          break;
        }
      }
    }
  }
  console.log(counts);
  expect(counts.stored).toBeGreaterThan(0);

  const storage = cleanup.use(await openFolder(join(server.folder, 'storage')));
  await eventually(async () => {
    const keys = await Array.fromAsync(storage.list('checkpoints/'), ({ key }) => key);
    const { rows } = await pool.query('select id from checkpoints');
    expect([keys, rows]).toEqual([[], []]);
  });

  /** Of the only attempt that runs. */
  function workFolder(): string {
    const attempts = join(server.folder, 'data/attempts');
    const [attempt = ''] = readdirSync(attempts).filter((entry) => entry.startsWith('att_'));
    return join(attempts, attempt, 'work');
  }

  function readStep(): number {
    try {
      return Number(readFileSync(join(workFolder(), 'ckpt/step'), 'utf8'));
    } catch {
      return 0;
    }
  }
});

/** Kills the shell of the job, which ends its attempt. */
function killCommand(name: string): void {
  const pids = readdirSync('/proc').filter((pid) => {
    try {
      const environment = readFileSync(`/proc/${pid}/environ`, 'latin1');
      return environment.split('\0').includes(`JOB_NAME=${name}`);
    } catch {
      return false;
    }
  });
  expect(pids).not.toEqual([]);
  for (const pid of pids)
    try {
      process.kill(Number(pid), 'SIGKILL');
    } catch (error) {
      // It has ended since. Another try would kill the next attempt.
      if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
    }
}
