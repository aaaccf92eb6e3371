/**
 * Repeatedly kills a process that puts, removes and sweeps large files. Acknowledged files exist, removed files do not,
 * counts are right, and at the end no byte is left.
 *
 * `LOAM_TEST_KILLS=20 LOAM_TEST_SEED=7 npx vitest run test/slow/kills/large-file-kills.test.ts`
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { buffer } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { newId } from '../../../src/base/ids.ts';
import { startApp } from '../../support/harness.ts';
import { contentsOf, type Line, oidOf, VERSIONS } from '../../support/kills/large-files.ts';
import { checkStore, sweepAll } from '../../support/large-files.ts';

const KILLS = Number(process.env.LOAM_TEST_KILLS ?? 5);
const SEED = Number(process.env.LOAM_TEST_SEED ?? Math.floor(Math.random() * 1e6));
/** The longest time from the first line of a process to its kill. */
const LIFE_MS = 1_500;

test(`large files through ${KILLS} kills`, { timeout: 300_000 + KILLS * 10_000 }, async (ctx) => {
  const cleanup = new AsyncDisposableStack();
  ctx.onTestFinished(() => cleanup.disposeAsync());
  console.log(`LOAM_TEST_SEED=${SEED}`);
  const { app, config } = cleanup.use(await startApp());
  const { pool, storage, largeFiles } = app.services;
  const { rows: owners } = await pool.query('select id from namespaces limit 1');
  const repositories = Array.from({ length: 4 }, () => newId('repo'));
  for (const [i, id] of repositories.entries())
    await pool.query(
      `insert into repositories (id, namespace_id, name, name_key, default_branch, content_addressed)
       values ($1, $2, $3, $3, 'main', $4)`,
      [id, owners[0].id, `r${i}`, i > 0],
    );
  const { url } = config.database as { url: string };
  const folder = join(config.dataDir, 'storage');

  /** Whether a version is in a repository; null if its last operation was interrupted. */
  const has = new Map<string, boolean | null>();
  const counts = { put: 0, remove: 0, sweep: 0, cut: 0 };
  const note = ({ step, action, repository, version }: Line) => {
    if (step === 'done') counts[action]++;
    if (action === 'sweep') return;
    has.set(`${repository} ${version}`, step === 'done' ? action === 'put' : null);
  };

  for (let kill = 0; kill < KILLS; kill++) {
    const program = join(import.meta.dirname, '../../support/kills/large-files.ts');
    const args = [program, url, folder, `${SEED + kill}`, ...repositories];
    const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] });
    const ended = once(child, 'close');
    let said = '';
    child.stderr.on('data', (text) => {
      said += text;
    });
    const lines = createInterface(child.stdout);
    lines.on('line', (line) => note(JSON.parse(line)));
    await Promise.race([once(lines, 'line'), ended]);
    await Promise.race([delay(((SEED * (kill + 7)) % 97) * (LIFE_MS / 97)), ended]);
    child.kill('SIGKILL');
    const [, signal] = await ended;
    expect(signal, said).toBe('SIGKILL');
    // Connections of the killed process may still be active, and change the counts that are compared.
    await expect
      .poll(async () => {
        const { rows } = await pool.query(
          `select count(*)::int as count from pg_stat_activity
           where datname = current_database() and state <> 'idle' and pid <> pg_backend_pid()`,
        );
        return rows[0].count;
      })
      .toBe(0);
  }
  counts.cut = [...has.values()].filter((one) => one === null).length;
  console.log(counts);

  async function checkAll(): Promise<void> {
    for (const repository of repositories)
      for (let version = 0; version < VERSIONS; version++) {
        const bytes = contentsOf(version);
        const found = await largeFiles.open(repository, oidOf(bytes));
        const key = `${repository} ${version}`;
        const known = has.has(key) ? has.get(key) : false;
        if (known !== null) expect(found !== null, `version ${key}`).toBe(known);
        if (found) expect((await buffer(found.body())).equals(bytes)).toBe(true);
      }
  }
  await checkAll();
  await checkStore(app.services);
  await sweepAll(app.services);
  await checkStore(app.services);
  await checkAll();
  const oids = Array.from({ length: VERSIONS }, (_, version) => oidOf(contentsOf(version)));
  for (const repository of repositories) await largeFiles.remove(repository, oids);
  await sweepAll(app.services);
  const left = await checkStore({ pool, storage });
  expect(left).toEqual({ objects: 0, chunks: 0, packs: 0, bytes: 0 });
});
