/**
 * Jobs with very large output, as a process and in a container: all of it is stored, and the server's memory stays constant.
 *
 * `LOAM_TEST_OUTPUT=1000000000 npx vitest run test/slow/load/large-output.test.ts`: 1 GB each.
 */
import { existsSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { BUSYBOX, DOCKER } from '../../support/docker.ts';
import { eventually } from '../../support/eventually.ts';
import { Workspace } from '../../support/git.ts';
import { Client, cloneDatabase } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { type ServerProcess, startServer } from '../../support/process.ts';
import { job, lines, submit } from '../../support/submit.ts';

const MB = 1_000_000;
/** The output of each job, in bytes. */
const OUTPUT = Number(process.env.LOAM_TEST_OUTPUT ?? 64 * MB);
/** A line of 64 bytes with its newline. */
const LINE = 'step 1200 of 5000: loss 0.4321, 41234 tokens a second, lr 3e-04';
const LINES = Math.floor(OUTPUT / (LINE.length + 1));
/** Bytes per second that a busy machine stores. */
const SLOWEST = MB;
const WAIT_MS = 60_000 + (OUTPUT / SLOWEST) * 1_000;
const TOKEN = 'a-token-of-some-length';

let cleanup: AsyncDisposableStack;
let server: ServerProcess;
let admin: Client;
let pool: pg.Pool;

beforeAll(async () => {
  cleanup = new AsyncDisposableStack();
  const database = await cloneDatabase();
  cleanup.defer(() => database.drop());
  pool = new pg.Pool({ connectionString: database.url, max: 1 });
  cleanup.defer(() => pool.end());
  const workspace = cleanup.use(await Workspace.open());
  server = cleanup.use(
    await startServer({
      DATABASE_URL: database.url,
      LOAM_DATA_DIR: join(workspace.path, 'data'),
      LOAM_ADMIN_TOKEN: TOKEN,
      LOAM_RATE_LIMITS: 'off',
      ...(has('docker') && { LOAM_RUNNER: 'auto', DOCKER_HOST: DOCKER.host }),
    }),
  );
  admin = new Client(server.base, `Bearer ${TOKEN}`);
  await admin.repository('admin/code');
});
afterAll(() => cleanup.disposeAsync());

/** Runs a job that prints this many lines, and follows it to its end. */
async function run(name: string, place: { repo: string } | { image: string }, count: number) {
  const command = `yes '${LINE}' | head -n ${count}`;
  await submit(admin, { namespace: 'admin', ...place, name, command });
  await eventually(async () => {
    const { status, progress } = await job(admin, 'admin', name);
    expect(status, progress).not.toMatch(/QUEUED|RUNNING/);
  }, WAIT_MS);
  expect(await job(admin, 'admin', name)).toMatchObject({ status: 'SUCCEEDED', exitCode: 0 });
}

/** The server's memory in bytes: resident now, and the peak since `forgetPeak`. */
async function memory(): Promise<{ now: number; peak: number }> {
  const status = await readFile(`/proc/${server.child.pid}/status`, 'utf8');
  const of = (name: string) =>
    Number(new RegExp(`^${name}:\\s+(\\d+) kB`, 'm').exec(status)?.[1]) * 1024;
  return { now: of('VmRSS'), peak: of('VmHWM') };
}

/** See proc(5). */
const forgetPeak = () => writeFile(`/proc/${server.child.pid}/clear_refs`, '5');

test.for([
  ['process', { repo: 'admin/code' }],
  ['container', { image: BUSYBOX }],
] as const)(
  `a %s that prints ${OUTPUT / MB} MB`,
  { timeout: 2 * WAIT_MS },
  async ([kind, place], ctx) => {
    if (!existsSync('/proc/self/clear_refs'))
      ctx.skip('the most that a process took is not told here');
    if (kind === 'container') needs(ctx, 'docker');
    // The first job loads modules that are loaded on first use.
    await run(`small-${kind}`, place, 20_000);
    await forgetPeak();
    const before = (await memory()).now;
    const since = performance.now();
    await run(kind, place, LINES);
    const seconds = (performance.now() - since) / 1_000;
    const growth = (await memory()).peak - before;
    console.log(
      `${kind}: ${LINES} lines in ${seconds.toFixed(0)} s; the server took ${(before / MB).toFixed(0)} MB before, and at most ${(growth / MB).toFixed(0)} MB more`,
    );
    const { rows } = await pool.query(
      `select log_lines::int as lines, log_bytes::bigint::float as bytes, log_full as "isFull",
       (select sum(lines)::int from journal_pages where job_id = jobs.id) as paged
     from jobs where name = $1`,
      [kind],
    );
    expect(rows).toEqual([
      { lines: LINES, bytes: LINES * (LINE.length + 1), isFull: false, paged: LINES },
    ]);
    expect(new Set(await lines(admin, 'admin', kind))).toEqual(new Set([LINE]));
    expect(growth).toBeLessThan(150 * MB);
  },
);
