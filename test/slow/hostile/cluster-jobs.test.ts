/** Hostile jobs on the nodes of a real Slurm cluster, and full disks of nodes and workers. */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, statfsSync, writeFileSync } from 'node:fs';
import { readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { newId } from '../../../src/base/ids.ts';
import { createLog } from '../../../src/base/log.ts';
import { openSlurmEngine } from '../../../src/runners/slurm/engine.ts';
import { openLog } from '../../../src/runners/supervisor/lines.ts';
import { framesOf, openForger } from '../../support/agent-forger.ts';
import { agentRunner } from '../../support/agent-runner.ts';
import { eventually } from '../../support/eventually.ts';
import { LoopbackEngine } from '../../support/loopback-engine.ts';
import { has, needs } from '../../support/needs.ts';
import { listCommandLines } from '../../support/processes.ts';
import { allLines, attemptSpec, runToEnd } from '../../support/runner.contract.ts';
import { openSlurmCluster, type SlurmCluster } from '../../support/slurm/slurm.ts';

const never = new AbortController().signal;

function mountSmall(megabytes: number): { path: string; free(): number } & Disposable {
  const path = mkdtempSync(join(tmpdir(), 'loam-small-'));
  execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${megabytes}m`, 'none', path]);
  return {
    path,
    free() {
      const { bavail, bsize } = statfsSync(path);
      return bavail * bsize;
    },
    [Symbol.dispose]() {
      execFileSync('umount', ['--lazy', path]);
      rmSync(path, { recursive: true });
    },
  };
}

describe('full disks', () => {
  test('a disk of the worker that is full loses and doubles no line', async (ctx) => {
    needs(ctx, 'root', 'mount');
    using disk = mountSmall(4);
    await using made = await openForger({ dir: disk.path });
    const attempt = await made.begin();
    const filler = join(disk.path, 'filler');
    writeFileSync(filler, Buffer.alloc(disk.free() - 300_000));
    const parts = Array.from({ length: 20 }, (_, i) => framesOf(`${i} ${'x'.repeat(50_000)}`));
    let sent = 0;
    let refused = 0;
    for (const part of parts)
      for (;;) {
        const { status, text } = await attempt.log(sent, part);
        if (status === 200) {
          sent = JSON.parse(text).size;
          break;
        }
        expect(status).toBe(500);
        expect(text).toMatch(/disk/);
        refused++;
        // The agent stays in touch, so its lease does not end.
        expect((await attempt.send('GET', 'control')).status).toBe(200);
        await rm(filler, { force: true });
      }
    expect(refused).toBe(1);
    expect((await attempt.exit({ logBytes: sent })).status).toBe(200);
    const lines = await allLines(made.runner, attempt.handle);
    expect(lines.map((line) => line.split(' ')[0])).toEqual(parts.map((_, i) => `${i}`));
  });

  test('the lines that meet a full disk are written into the room of the reserve', (ctx) => {
    needs(ctx, 'root', 'mount');
    using disk = mountSmall(1);
    const [file, reserve] = [join(disk.path, 'log'), join(disk.path, 'reserve')];
    writeFileSync(reserve, Buffer.alloc(65_536));
    const errors: Error[] = [];
    const log = openLog(file, { bytes: 2 ** 20, lines: 1_000 }, (error) => {
      errors.push(error);
      rmSync(reserve);
    });
    writeFileSync(join(disk.path, 'filler'), Buffer.alloc(disk.free()));
    log.write('1700000000000 o first\n');
    log.write('1700000000000 o discarded\n');
    log.close();
    expect(errors).toMatchObject([{ code: 'ENOSPC' }]);
    expect(readFileSync(file, 'utf8')).toBe('1700000000000 o first\n');
  });

  test('a job that fills the disk of its node ends with the reason, and its lines are kept', async (ctx) => {
    needs(ctx, 'root', 'mount');
    using disk = mountSmall(16);
    await using made = await agentRunner(async () => new LoopbackEngine(disk.path));
    const fill =
      'echo before; head -c 100000000 /dev/zero > file; echo "after $?"; seq 20000; sleep 600';
    const { outcome, lines } = await runToEnd(made.runner, attemptSpec(fill));
    expect(lines.slice(0, 1)).toEqual(['before']);
    expect(outcome).toMatchObject({
      kind: 'exited',
      exitCode: 137,
      note: expect.stringMatching(/disk/),
    });
    // A job with the limit of its own exceeded.
    using own = mountSmall(1_500);
    await using other = await agentRunner(async () => new LoopbackEngine(own.path));
    const grow = 'head -c 1200000000 /dev/zero > file; echo grown; sleep 600';
    const grown = await runToEnd(other.runner, attemptSpec(grow));
    expect(grown.outcome).toMatchObject({ exitCode: 137, note: expect.stringMatching(/disk_gb/) });
  });
});

describe('on Slurm', () => {
  let cluster: SlurmCluster;
  beforeAll(async () => {
    if (has('slurm')) cluster = await openSlurmCluster({ killWait: 2 });
  });
  afterAll(() => cluster?.[Symbol.asyncDispose]());

  const open = () => {
    const worker = newId('srv');
    const log = createLog('silent');
    return agentRunner(() => openSlurmEngine({ config: cluster.config, worker, log }));
  };
  const leftovers = async () =>
    (await readdir(cluster.shared, { recursive: true })).filter(isOfAttempt);
  const isOfAttempt = (name: string) => /^[^/]+\/loam-att_[^/]+$/.test(name);

  for (const how of ['KILL', 'STOP'])
    test(`a job that sends SIG${how} to its supervisor leaves nothing`, async (ctx) => {
      needs(ctx, 'slurm');
      await using made = await open();
      const mark = `/left-by-${how}-${process.pid}`;
      const command = `(setsid sh -c 'trap "" TERM HUP; exec -a ${mark} sleep 600' >/dev/null 2>&1 &); sleep 0.5; kill -${how} $PPID; sleep 600`;
      const handle = await made.runner.prepare(
        attemptSpec(`exec bash -c '${command.replaceAll("'", "'\\''")}'`),
        never,
      );
      await made.runner.start(handle);
      if (how === 'KILL') expect(await made.runner.wait(handle, never)).toEqual({ kind: 'lost' });
      else await eventually(() => expect(listCommandLines(mark)).not.toEqual([]));
      await made.runner.remove(handle);
      await eventually(async () => {
        expect(listCommandLines(mark)).toEqual([]);
        expect(listCommandLines(String(handle.attempt))).toEqual([]);
        expect(await leftovers()).toEqual([]);
      });
    });

  test('a job that forks without end is ended with all its processes', async (ctx) => {
    needs(ctx, 'slurm');
    await using made = await open();
    const mark = `/forked-${process.pid}`;
    // Bounded, because Slurm limits the processes of a job only where its administrator does.
    const command = `i=0; while [ $i -lt 150 ]; do setsid bash -c 'trap "" TERM; (exec -a ${mark} sleep 600)' & i=$((i+1)); done; echo forked; wait`;
    const handle = await made.runner.prepare(attemptSpec(command), never);
    await made.runner.start(handle);
    await eventually(() => expect(listCommandLines(mark).length).toBeGreaterThan(140));
    await made.runner.signal(handle, 'KILL');
    expect(await made.runner.wait(handle, never)).toMatchObject({ exitCode: 137 });
    await made.runner.remove(handle);
    await eventually(() => expect(listCommandLines(mark)).toEqual([]));
  });

  test('the token of an attempt is in no argument, environment or list', async (ctx) => {
    needs(ctx, 'slurm');
    await using made = await open();
    const command = `echo "$$ $PPID"; tr '\\0' '\\n' < /proc/$PPID/cmdline; tr '\\0' '\\n' < /proc/$PPID/environ; env; echo done`;
    const secret = 'correct-horse-battery';
    const { handle, lines } = await runToEnd(
      made.runner,
      attemptSpec(`SECRET=; ${command}`, { env: { SECRET: secret } }),
    );
    expect(lines).toContain('done');
    const listed = await cluster.command('scontrol', 'show', 'job', '--details');
    expect(listed).toContain(String(handle.attempt));
    for (const text of [lines.join('\n'), listed]) {
      expect(text).not.toContain(secret);
      // 32 bytes in base64url.
      expect(text).not.toMatch(/(?<![\w-])[\w-]{43}(?![\w-])/);
    }
  });
});
