/** The shell that joins a control group and waits for the command of a job (`first-process.ts`). */
import { readFileSync } from 'node:fs';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import type { Cgroup } from '../../src/runners/process/cgroup.ts';
import { startFirstProcess } from '../../src/runners/process/first-process.ts';
import { baseEnvironment, launch } from '../../src/runners/process/launch.ts';
import type { Network } from '../../src/runners/process/namespace.ts';
import { listMarkedPids } from '../../src/runners/supervisor/proc.ts';
import { eventually } from '../support/eventually.ts';

/** Unique to this process, because marked processes are searched on the whole machine. */
const ATTEMPT = `att_${process.pid}`;

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'loam-first-'));
});
afterEach(() => rm(dir, { recursive: true }));

/** `setup`: makes `launch` treat the command as sandboxed. `network`: what the launch waits for. */
function launched(
  argv: string[],
  {
    setup = null,
    cgroup = null,
    network,
  }: { setup?: string | null; cgroup?: Cgroup | null; network?: Promise<Network> } = {},
) {
  const [out, err] = [join(dir, 'out'), join(dir, 'err')];
  const none = { argv: [], uid: null };
  const spec = network ? { hold: none, ipCommands: '', connect: none, enter: [] } : null;
  const command = { argv, cwd: '/', setup, env: '', uid: null, network: spec };
  return launch({
    attempt: ATTEMPT,
    command,
    limitCommands: [],
    dir,
    out,
    err,
    cgroup,
    connected: network,
  });
}

/** The waiting shell. */
function waiting(): Promise<number> {
  return eventually(() => {
    const [pid = 0] = listMarkedPids(ATTEMPT);
    expect(pid).toBeGreaterThan(0);
    return pid;
  });
}

test.each([null, ''])(
  'a first process that was killed while it waited has not run its command, and the launch ends at once (setup %j)',
  async (setup) => {
    const { promise: network, resolve: open } = Promise.withResolvers<Network>();
    const launching = launched(['true'], { setup, network });
    process.kill(await waiting(), 'SIGKILL');
    await eventually(() => expect(listMarkedPids(ATTEMPT)).toEqual([]));
    open({ enter: [], broken: new Promise(() => {}), close() {} });
    const { ended } = await launching;
    expect(await ended).toEqual({ exitCode: 137, ran: false });
    expect(await readdir(dir)).toEqual([]);
  },
);

test('the first process ends when its network cannot be opened', async () => {
  const { promise: network, reject: fail } = Promise.withResolvers<Network>();
  const launching = launched(['true'], { network });
  await waiting();
  fail(new Error('no network'));
  await expect(launching).rejects.toThrow('no network');
  expect(listMarkedPids(ATTEMPT)).toEqual([]);
});

test('temporary files are removed once they are open, and arguments are passed unchanged', async () => {
  const argv = ["it's", 'two\nlines', '$HOME `id` \\', ''];
  const wait = 'while [ -e "$0/next" ]; do sleep 0.01; done';
  const list = `${wait}; ls -A "$0"; printf "<%s>" "$@"; exit 7`;
  const { ended } = await launched(['/bin/sh', '-c', list, dir, ...argv]);
  expect(await ended).toEqual({ exitCode: 7, ran: true });
  const said = readFileSync(join(dir, 'out'), 'utf8');
  expect(said).toMatch(/^err\nout\n/);
  expect(said.endsWith(argv.map((each) => `<${each}>`).join(''))).toBe(true);
});

test('a first process has the mark of its attempt from the start, and ends with its input', async () => {
  const first = startFirstProcess(null, baseEnvironment(ATTEMPT));
  const environment = () => readFileSync(`/proc/${first.pid}/environ`, 'utf8').split('\0');
  await eventually(() => expect(environment()).toContain(`LOAM_ATTEMPT_ID=${ATTEMPT}`));
  await first.cancel();
  expect(await first.exited).toMatchObject({ code: 0 });
});

test('a control group that cannot be joined stops the command before it runs', async () => {
  const { ended } = await launched(['true'], { cgroup: { folders: [join(dir, 'gone')] } });
  expect(await ended).toEqual({ exitCode: 125, ran: false });
  expect(readFileSync(join(dir, 'err'), 'utf8')).toMatch(
    /^The control group cannot be joined: .*gone/,
  );
  expect((await readdir(dir)).sort()).toEqual(['err', 'out']);
});
