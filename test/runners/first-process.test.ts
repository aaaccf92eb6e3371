/** The shell that joins a control group and waits to become a job (`first-process.ts`). */
import { readFileSync } from 'node:fs';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import {
  type FirstProcess,
  startFirstProcess,
} from '../../src/jobs/runners/process/first-process.ts';
import { environmentOf, launch } from '../../src/jobs/runners/process/launch.ts';
import { eventually } from '../support/eventually.ts';

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'loam-first-'));
});
afterEach(() => rm(dir, { recursive: true }));

/** In a sandbox, for all that `launch` knows, when there is a `setup`. */
function launched(first: FirstProcess, argv: string[], setup: string | null = null) {
  const [out, err] = [join(dir, 'out'), join(dir, 'err')];
  const command = { argv, cwd: '/', setup, env: '', uid: null, network: null };
  return launch({
    ...{ attempt: 'att_1', command, orders: [], dir, out, err },
    first: async () => first,
  });
}

test.each([null, ''])(
  'one that was killed while it waited has not run, and nobody waits for it (setup %j)',
  async (setup) => {
    const first = startFirstProcess(null, environmentOf());
    process.kill(first.pid ?? 0, 'SIGKILL');
    await first.exited;
    await first.reported;
    expect(first.isWaiting).toBe(false);
    const { ended } = await launched(first, ['true'], setup);
    expect(await ended).toEqual({ exitCode: 137, ran: false });
    expect(await readdir(dir)).toEqual([]);
  },
);

test('its files go as soon as it has opened them, and the arguments of the command are as they were given', async () => {
  const first = startFirstProcess(null, environmentOf());
  const argv = ["it's", 'two\nlines', '$HOME `id` \\', ''];
  const wait = 'while [ -e "$0/next" ]; do sleep 0.01; done';
  const list = `${wait}; ls -A "$0"; printf "<%s>" "$@"; exit 7`;
  const { ended } = await launched(first, ['/bin/sh', '-c', list, dir, ...argv]);
  expect(await ended).toEqual({ exitCode: 7, ran: true });
  const said = readFileSync(join(dir, 'out'), 'utf8');
  expect(said).toMatch(/^err\nout\n/);
  expect(said.endsWith(argv.map((each) => `<${each}>`).join(''))).toBe(true);
});

test('one that is started for an attempt has its mark from the first moment, and ends with its input', async () => {
  const first = startFirstProcess(null, environmentOf('att_1'));
  const environment = () => readFileSync(`/proc/${first.pid}/environ`, 'utf8').split('\0');
  await eventually(() => expect(environment()).toContain('LOAM_ATTEMPT_ID=att_1'));
  await first.end();
  expect(await first.exited).toMatchObject({ code: 0 });
});

test('a control group that cannot be joined stops the command before it runs', async () => {
  const first = startFirstProcess({ folders: [join(dir, 'gone')] }, environmentOf());
  const { ended } = await launched(first, ['true']);
  expect(await ended).toEqual({ exitCode: 125, ran: false });
  expect(readFileSync(join(dir, 'err'), 'utf8')).toMatch(
    /^The control group cannot be joined: .*gone/,
  );
  expect((await readdir(dir)).sort()).toEqual(['err', 'out']);
});
