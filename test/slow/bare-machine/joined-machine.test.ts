/** The first lines of docs/machines.md, as the page prints them, on a Debian that has only Node.js and curl. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, expect, test } from 'vitest';
import { buildPrograms } from '../../../src/programs/build.ts';
import { startApp } from '../../support/harness.ts';
import { needs } from '../../support/needs.ts';

const MINUTE = 60_000;
const ROOT = join(import.meta.dirname, '../../..');
const PAGE = readFileSync(join(ROOT, 'docs/machines.md'), 'utf8');
const [, BLOCK = ''] = /```sh\n(.*?)```/s.exec(PAGE) ?? [];
const [ADDRESS = '', ...LINES] = BLOCK.trim().split('\n');

beforeAll(async () => void (await buildPrograms()), 5 * MINUTE);

test.for(['root', 'newcomer'])(
  'the page leads %s from nothing to the first job',
  {
    timeout: 4 * MINUTE,
  },
  async (user, ctx) => {
    needs(ctx, 'root', 'mmdebstrap', 'curl');
    expect(LINES.length).toBeLessThan(10);
    expect(ADDRESS).toMatch(/^export LOAM_URL=\S+ LOAM_TOKEN=\S+ +#/);
    await using app = await startApp({ config: { runner: 'none' } });
    const given = `export LOAM_URL=${app.base} LOAM_TOKEN=${app.admin.token}`;
    // A terminal ends at its last line; the program that was started in it does not.
    const command = [given, ...LINES, 'ended=$?', 'cat worker.log', 'exit $ended'].join('\n');
    const machine = spawn(
      join(ROOT, 'test/support/bare-machine.sh'),
      [user, command, process.execPath],
      { stdio: ['ignore', 'pipe', 'pipe'], detached: true },
    );
    let output = '';
    for (const stream of [machine.stdout, machine.stderr])
      stream.setEncoding('utf8').on('data', (text: string) => {
        output += text;
      });
    const closed = once(machine, 'close');
    ctx.onTestFinished(async () => {
      if (machine.exitCode === null) process.kill(-(machine.pid as number), 'SIGTERM');
      await closed;
    });
    expect((await closed)[0], output).toBe(0);
    expect(output).toContain('Jobs share the network of this machine');
    expect(output).toMatch(/^second\tonline\t/m);
    expect(output).toMatch(/^Linux job .*\n\.git$/m);
  },
);
