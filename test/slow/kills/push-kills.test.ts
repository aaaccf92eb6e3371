/**
 * Kills the server at random times, with all git processes that it has started, while clients push many refs at once. Every
 * acknowledged push is there afterwards, with one event; other pushes are there or not; and the repository accepts the next
 * push, whatever locks are left.
 *
 * `LOAM_TEST_KILLS=20 LOAM_TEST_SEED=7 npx vitest run test/slow/kills/push-kills.test.ts`
 */
import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { readdir, utimes } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { Disk } from '../../../src/git/disk/disk.ts';
import { remote, Workspace } from '../../support/git.ts';
import { startKillableServer } from '../../support/kills/killable-server.ts';
import { mulberry32 } from '../../support/kills/killer.ts';

const KILLS = Number(process.env.LOAM_TEST_KILLS ?? 3);
const SEED = Number(process.env.LOAM_TEST_SEED ?? Math.floor(Math.random() * 1e6));
/** Many refs are updated in one step (`src/git/disk/ref-files.ts`), few refs one by one. */
const REFS = { many: 400, few: 20 };
/** The approximate time of a push here. */
const PUSH_MS = 1_200;
const NONE = '0'.repeat(40);

/** The commit that a push was to give to all of its refs, and whether the push was acknowledged. */
type Pushed = { refs: readonly string[]; sha: string; acknowledged: boolean };

test(`pushes of many refs through ${KILLS} kills`, {
  timeout: 300_000 + KILLS * 30_000,
}, async (ctx) => {
  console.log(`LOAM_TEST_SEED=${SEED}`);
  const random = mulberry32(SEED);
  const server = await startKillableServer(ctx);
  const { admin, folder, pool, cleanup } = server;
  const disk = new Disk(join(folder, 'data/repositories'), 'test');
  const workspace = cleanup.use(await Workspace.open());

  const pushers = await Promise.all(
    Object.entries(REFS).map(async ([name, count]) => {
      const { status, text, body } = await admin.post('/auth/v1/repository/admin', { name });
      expect(status, text).toBe(201);
      await workspace.git('.', 'init', '-q', '-b', 'main', name);
      const made = await workspace.git('.', 'ls-remote', remote(admin, `admin/${name}`), 'main');
      // The first commit is expected until a push succeeds.
      const [sha = ''] = made.split('\t');
      const pushes: Pushed[] = [{ refs: [], sha, acknowledged: true }];
      return { name, count, pushes, id: body.id as string, dir: disk.pathOf(body.id) };
    }),
  );
  type Pusher = (typeof pushers)[number];

  /** Moves half of the existing refs, and creates as many. */
  async function push({ name, count, pushes }: Pusher): Promise<Pushed> {
    const sha = await workspace.commit(name, { 'a.txt': `${pushes.length}` });
    const first = (pushes.length * count) / 2;
    const refs = Array.from({ length: count }, (_, i) => `refs/heads/topic/${first + i}`);
    const made: Pushed = { refs, sha, acknowledged: false };
    pushes.push(made);
    const url = remote(admin, `admin/${name}`);
    const specs = refs.map((ref) => `+HEAD:${ref}`);
    const { code } = await workspace.try(name, 'push', '-q', url, '+HEAD:main', ...specs);
    made.acknowledged = code === 0;
    return made;
  }

  /** As if the next push came later: with an external database a server does not treat a lock younger than a minute as stale. */
  async function age(dir: string): Promise<number> {
    const names = await readdir(dir, { recursive: true });
    const locks = names.filter((one) => /\.lock$|packed-refs\.new$/.test(one));
    for (const lock of locks) await utimes(join(dir, lock), 0, 0).catch(() => {});
    return locks.length;
  }

  async function check({ name, dir, id, pushes }: Pusher): Promise<void> {
    const url = remote(admin, `admin/${name}`);
    const listed = await workspace.git('.', 'ls-remote', url);
    const refs = new Map(
      listed.split('\n').map((line) => line.split('\t').reverse() as [string, string]),
    );
    /** The possible values of each ref: the last acknowledged one, and those of later pushes. */
    const possible = new Map<string, Set<string>>();
    for (const { refs, sha, acknowledged } of pushes)
      for (const ref of [...refs, 'refs/heads/main']) {
        const before = possible.get(ref) ?? new Set([NONE]);
        possible.set(ref, acknowledged ? new Set([sha]) : before.add(sha));
      }
    const wrong = [...possible].filter(([ref, shas]) => !shas.has(refs.get(ref) ?? NONE));
    expect([name, wrong]).toEqual([name, []]);
    const fsck = execFileSync('git', ['fsck', '--connectivity-only', '--no-dangling'], {
      cwd: dir,
      env: { PATH: process.env.PATH, GIT_DIR: '.' },
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    expect(fsck).toBe('');
    const { rows } = await pool.query<{ after: string; moved: number }>(
      `select data -> 'push' -> 'refs' -> 0 ->> 'after' as after, count(*)::int as moved
       from events where subject = $1 and type = 'repository.pushed' group by 1`,
      [id],
    );
    const told = new Map(rows.map(({ after, moved }) => [after, moved]));
    for (const { sha, acknowledged } of pushes.slice(1))
      if (acknowledged) expect([name, sha, told.get(sha)]).toEqual([name, sha, 1]);
  }

  const counts = { acknowledged: 0, 'cut off': 0, locks: 0 };
  for (let kill = 1; kill <= KILLS; kill++) {
    const running = Promise.all(pushers.map(push));
    await delay(random() * PUSH_MS, undefined, { signal: ctx.signal });
    const ended = server.kill();
    for (const { dir } of pushers) killAllIn(dir);
    await ended;
    for (const { acknowledged } of await running)
      counts[acknowledged ? 'acknowledged' : 'cut off']++;
    for (const { dir } of pushers) counts.locks += await age(dir);
    await server.start();
    for (const pusher of pushers) {
      await check(pusher);
      // Only a push that the killed server had accepted may be recorded meanwhile.
      expect(await push(pusher)).toMatchObject({ acknowledged: true });
      await check(pusher);
    }
  }
  console.log(counts);
});

/** Kills every process that works in the folder, as at the end of a container. */
function killAllIn(dir: string): void {
  for (const name of readdirSync('/proc')) {
    try {
      if (!/^\d+$/.test(name) || readlinkSync(`/proc/${name}/cwd`) !== dir) continue;
      if (readFileSync(`/proc/${name}/cmdline`).length > 0) process.kill(Number(name), 'SIGKILL');
    } catch {
      // The process has ended meanwhile, or belongs to another user.
    }
  }
}
