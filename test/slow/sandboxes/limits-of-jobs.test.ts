/** Limits of process jobs, and the cleanup after their end: with and without control groups, as root and as an ordinary user. */
import { execFile, execFileSync, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  statSync,
  utimesSync,
} from 'node:fs';
import { chmod, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { availableParallelism, getPriority, tmpdir, totalmem } from 'node:os';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import type { Cgroup } from '../../../src/runners/process/cgroup.ts';
import {
  openProcessRunner,
  type ProcessRunnerOptions,
} from '../../../src/runners/process/runner.ts';
import type { AttemptSpec, Outcome } from '../../../src/runners/runner.ts';
import { listDescendants, readProcessStat } from '../../../src/runners/supervisor/proc.ts';
import { eventually } from '../../support/eventually.ts';
import { startApp } from '../../support/harness.ts';
import { needs } from '../../support/needs.ts';
import { listCommandLines, listProcessesNaming } from '../../support/processes.ts';
import { allLines, attemptSpec, runToEnd } from '../../support/runner.contract.ts';
import { smallDisk } from '../../support/small-disk.ts';

const run = promisify(execFile);
const never = new AbortController().signal;
const MiB = 2 ** 20;

type Made = Awaited<ReturnType<typeof makeRunner>>;

async function makeRunner(options: Partial<ProcessRunnerOptions> = {}) {
  const dir = options.dir ?? (await mkdtemp(join(tmpdir(), 'loam-limits-')));
  const opened = { ...options, dir };
  const runner = await openProcessRunner(opened);
  return {
    dir,
    runner,
    again: () => openProcessRunner(opened),
    /** Waits until nothing of ended attempts is left. */
    async emptied() {
      await eventually(async () => expect(await readdir(join(dir, '.trash'))).toEqual([]));
    },
    async [Symbol.asyncDispose]() {
      await runner[Symbol.asyncDispose]();
      await using last = await openProcessRunner(opened);
      await last.sweep(new Set());
      await this.emptied();
      // A shim that has just started may still be writing Node's compile cache.
      await rm(dir, { recursive: true, maxRetries: 5 });
      expect(groupsOf(dir)).toEqual([]);
    },
  };
}

function cgroupOf(dir: string, attempt: string): Cgroup {
  return JSON.parse(readFileSync(join(dir, attempt, 'holds.json'), 'utf8')).cgroup;
}

/** Control groups of attempts of the runner on `dir`. */
function groupsOf(dir: string): string[] {
  const prefix = createHash('sha256').update(dir).digest('hex').slice(0, 8);
  const own = readFileSync('/proc/self/cgroup', 'utf8').trim().split('\n');
  return own.flatMap((line) => {
    const [, controllers = '', path = ''] = line.split(':');
    return [`/sys/fs/cgroup/${controllers}${path}`, `/sys/fs/cgroup${path}`].flatMap((at) => {
      const parent = join(at, 'loam');
      return existsSync(parent) ? readdirSync(parent).filter((n) => n.startsWith(prefix)) : [];
    });
  });
}

async function shimLog(made: Made, spec: AttemptSpec): Promise<number> {
  return statSync(join(made.dir, spec.id, 'log')).size;
}

/** The line of the log with the reason why the job ended. */
const noteOf = (outcome: Outcome) => (outcome.kind === 'exited' ? outcome.note : undefined);
const hardware = (changes: object) => ({ ...attemptSpec('').hardware, ...changes });
/** Doubles a string until memory is exhausted: `head | tail` and similar commands differ between machines. */
const EAT = `exec ${process.execPath} --max-old-space-size=4000 -e 'const a=[];for(;;)a.push(Buffer.alloc(1<<20,1))'`;

describe('with control groups', () => {
  test('a job that exceeds its memory fails with 137, and its log has the reason', async (ctx) => {
    needs(ctx, 'cgroups');
    await using made = await makeRunner({ limits: { memoryBytes: 100 * MiB }, sandbox: 'none' });
    const { outcome } = await runToEnd(made.runner, attemptSpec(EAT));
    expect(outcome).toMatchObject({ kind: 'exited', exitCode: 137, timedOut: false });
    expect(noteOf(outcome)).toBe(
      'The job ran out of memory: a process was killed. It may use 100 MB.',
    );
  });

  test('a job fails and is retried when one of its processes was killed for lack of memory, even if the job exits with 0', async (ctx) => {
    needs(ctx, 'cgroups');
    await using made = await makeRunner({ limits: { memoryBytes: 100 * MiB }, sandbox: 'none' });
    await using app = await startApp({ overrides: { runner: made.runner } });
    const alice = await app.user('alice');
    await alice.post('/auth/v1/repository/alice', { name: 'code', auto_init: true });
    const command = `(${EAT}); echo attempt $JOB_ATTEMPT`;
    const json = { name: 'half', command, repo: 'alice/code', gpu: 'none', retries: 1 };
    await alice.post('/auth/v1/seed/alice/jobs', json);
    await eventually(async () => {
      const { body } = await alice.get('/alice/job/half');
      expect(body).toMatchObject({ status: 'failed', exit_code: 0, retry_count: 1 });
    });
    const { body: log } = await alice.get('/alice/job/half/logs');
    const line = 'The job ran out of memory: a process was killed. It may use 100 MB.';
    const messages = log.lines.map(({ message }: { message: string }) => message);
    // Shells print their own message when a process is killed.
    expect(messages.filter((message: string) => !/^Killed/.test(message))).toEqual([
      ...['attempt 1', line, 'attempt 2', line],
    ]);
  });

  test('a fork bomb is limited, leaves processes for the machine, and ends on SIGKILL', async (ctx) => {
    needs(ctx, 'cgroups');
    for (const sandbox of ['auto', 'none'] as const) {
      await using made = await makeRunner({ limits: { processes: 64 }, sandbox });
      const { runner } = made;
      const tag = `304.${process.pid}`;
      // Bounded, so that the machine survives if the limit does not work.
      const bomb = `for n in $(seq 1000); do sleep ${tag} & done 2>&1 | head -1`;
      const spec = attemptSpec(`${bomb}; sleep ${tag}`);
      const handle = await runner.prepare(spec, never);
      await runner.start(handle);
      for await (const { lines } of runner.logs(handle, null, never))
        if (lines.some(({ message }) => /fork/i.test(message))) break;
      expect(listCommandLines(`sleep ${tag}`).length).toBeLessThanOrEqual(64);
      await runner.signal(handle, 'KILL');
      expect(await runner.wait(handle, never)).toMatchObject({ exitCode: 137 });
      await eventually(() => expect(listCommandLines(`sleep ${tag}`)).toEqual([]));
    }
  });

  test('a daemon with an empty environment dies with its job, even without a sandbox', async (ctx) => {
    needs(ctx, 'cgroups');
    await using made = await makeRunner({ sandbox: 'none' });
    const tag = `305.${process.pid}`;
    const command = `setsid env -i sleep ${tag} >/dev/null 2>&1 & sleep 0.2; echo done`;
    const { lines } = await runToEnd(made.runner, attemptSpec(command));
    expect(lines).toEqual(['done']);
    expect(listCommandLines(`sleep ${tag}`)).toEqual([]);

    // Also when its shim was killed.
    const lost = attemptSpec(`setsid env -i sleep ${tag} & sleep 600`);
    const handle = await made.runner.prepare(lost, never);
    await made.runner.start(handle);
    await eventually(() => expect(listCommandLines(`sleep ${tag}`)).toContain(`sleep ${tag} `));
    const claim = JSON.parse(readFileSync(join(made.dir, lost.id, 'claim'), 'utf8'));
    process.kill(claim.pid, 'SIGKILL');
    expect(await made.runner.wait(handle, never)).toEqual({ kind: 'lost' });
    await eventually(() => expect(listCommandLines(`sleep ${tag}`)).toEqual([]));
  });

  test('groups are removed with their attempts, also by the next server, and measure usage', async (ctx) => {
    needs(ctx, 'cgroups');
    await using made = await makeRunner();
    const { runner } = made;
    const spec = attemptSpec(
      'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo up; sleep 600',
    );
    const handle = await runner.prepare(spec, never);
    await runner.start(handle);
    for await (const _ of runner.logs(handle, null, never)) break;
    const usage = await runner.stats(handle);
    expect(usage?.cpuPercent).toBeGreaterThan(0);
    expect(usage?.memoryBytes).toBeGreaterThan(0);
    expect(usage?.memoryBytes).toBeLessThan(200 * MiB);
    expect(groupsOf(made.dir)).not.toEqual([]);
    const cgroup = cgroupOf(made.dir, spec.id);
    const valueIn = (...names: string[]) =>
      cgroup.folders
        .flatMap((folder) => names.map((name) => join(folder, name)))
        .filter((file) => existsSync(file))
        .map((file) => Number(readFileSync(file, 'utf8').split(' ')[0]));
    const cpus = Math.min(2, availableParallelism());
    // As far as this machine has the controllers.
    for (const quota of valueIn('cpu.cfs_quota_us', 'cpu.max')) expect(quota).toBe(cpus * 100_000);
    // The group of all jobs, whatever each job requested.
    for (const together of valueIn('../memory.limit_in_bytes', '../memory.max'))
      expect(together).toBeLessThan(0.91 * totalmem());
    const second = await made.again();
    await second.sweep(new Set());
    // The first runner keeps a group for its next job.
    expect(cgroup.folders.filter((folder) => existsSync(folder))).toEqual([]);
    await second[Symbol.asyncDispose]();
  });

  test('the next sweep ends and removes the processes of an attempt whose folder is gone', async (ctx) => {
    needs(ctx, 'cgroups');
    await using made = await makeRunner();
    const tag = `308.${process.pid}`;
    const spec = attemptSpec(`sleep ${tag}`);
    await made.runner.start(await made.runner.prepare(spec, never));
    await eventually(() => expect(listCommandLines(tag)).toContain(`sleep ${tag} `));
    // The shim may still be creating a file in the folder.
    await rm(join(made.dir, spec.id), { recursive: true, maxRetries: 5 });
    await using second = await made.again();
    await second.sweep(new Set());
    expect(groupsOf(made.dir).filter((name) => name.endsWith(spec.id))).toEqual([]);
    await eventually(() => expect(listCommandLines(`sleep ${tag}`)).toEqual([]));
  });
});

test('an attempt whose shim was killed before the start is started by another shim', async (ctx) => {
  needs(ctx, 'bubblewrap', 'slirp4netns');
  await using made = await makeRunner({ network: 'internet' });
  const { dir, runner } = made;
  const handle = await runner.prepare(attemptSpec('echo up; exit 3'), never);
  // The shim already opens the network.
  const { shim, network } = await eventually(() => {
    const [found] = listProcessesNaming(dir);
    if (!found) throw new Error('there is no shim yet');
    const network = listDescendants(found.pid);
    expect(network.length).toBeGreaterThan(1);
    return { shim: found.pid, network };
  });
  process.kill(shim, 'SIGKILL');
  await eventually(() => expect(network.filter((pid) => readProcessStat(pid))).toEqual([]));
  const start = () => runner.start(handle);
  // The caller retries if the death of the shim was not known yet.
  await start().catch(start);
  expect(await allLines(runner, handle)).toEqual(['up']);
  expect(await runner.wait(handle, never)).toMatchObject({ kind: 'exited', exitCode: 3 });
});

test('the server has priority over a job and its shim', async () => {
  await using made = await makeRunner();
  const { lines } = await runToEnd(made.runner, attemptSpec('nice'));
  expect(Number(lines[0])).toBe(Math.min(19, getPriority() + 3));
});

test('a shim whose folder was removed ends with its job, and leaves no control group', async () => {
  await using made = await makeRunner();
  const spec = attemptSpec('echo up; sleep 600');
  const handle = await made.runner.prepare(spec, never);
  await made.runner.start(handle);
  for await (const _ of made.runner.logs(handle, null, never)) break;
  const { pid } = JSON.parse(readFileSync(join(made.dir, spec.id, 'claim'), 'utf8'));
  // The shim may be writing a file there.
  await rm(join(made.dir, spec.id), { recursive: true, maxRetries: 5 });
  process.kill(pid, 'SIGUSR2');
  await eventually(() => expect(existsSync(`/proc/${pid}`)).toBe(false));
  expect(groupsOf(made.dir).filter((name) => name.endsWith(spec.id))).toEqual([]);
});

test('groups that nobody has used for an hour are removed by any server', async (ctx) => {
  needs(ctx, 'cgroups', 'root');
  await using made = await makeRunner();
  const handle = await made.runner.prepare(attemptSpec('true'), never);
  const prepared = cgroupOf(made.dir, String(handle.attempt)).folders;
  const forgotten = prepared.map((folder) => join(dirname(folder), `forgotten-${process.pid}`));
  const old = new Date(Date.now() - 2 * 60 * 60_000);
  for (const folder of forgotten) {
    mkdirSync(join(folder, 'job'), { recursive: true });
    utimesSync(folder, old, old);
  }
  await using other = await makeRunner();
  await other.runner.sweep(new Set());
  expect(forgotten.filter((folder) => existsSync(folder))).toEqual([]);
  expect(await made.runner.attach(handle)).toBe('prepared');
  await made.runner.start(handle);
  expect(await made.runner.wait(handle, never)).toMatchObject({ exitCode: 0 });
});

describe('without control groups', () => {
  test('the memory of all processes of a job is measured, and exceeding the limit ends the job with 137', async () => {
    for (const sandbox of ['auto', 'none'] as const) {
      await using made = await makeRunner({
        cgroups: 'off',
        sandbox,
        limits: { memoryBytes: 100 * MiB },
      });
      // Three processes with 60 MB each: none exceeds the limit alone.
      const each = '(head -c 60m /dev/zero | tail -c 60m | sleep 600) &';
      const { outcome } = await runToEnd(made.runner, attemptSpec(`${each} ${each} ${each} wait`));
      expect(outcome).toMatchObject({ kind: 'exited', exitCode: 137 });
      expect(noteOf(outcome)).toBe('The job ran out of memory and was ended. It may use 100 MB.');
    }
  });

  test('a process has limits of its own', async () => {
    // Most machines allow no core files anyway; where we may, we raise our own limit.
    spawnSync('prlimit', [`--pid=${process.pid}`, '--core=unlimited']);
    await using made = await makeRunner({ cgroups: 'off', limits: { processes: 5_000 } });
    const { lines } = await runToEnd(made.runner, attemptSpec('ulimit -a; ulimit -c; ulimit -n'));
    const text = lines.join('\n');
    expect(text).toMatch(/proc\S*( .*)? 5000$/m);
    expect(text).toMatch(/data.* 5242880$/m);
    expect(lines.at(-2)).toBe('0');
    expect(Number(lines.at(-1))).toBeLessThanOrEqual(65_536);
  });
});

/** Lines without end. They are long, so that fewer have to be stored. */
const FLOOD = `yes "$(head -c 4000 /dev/zero | tr '\\0' x)"`;

describe('the disk', () => {
  test('a job that exceeds its disk_gb or its number of files is ended, and its log has the reason', async () => {
    await using made = await makeRunner({ limits: { diskBytes: 20 * MiB, files: 2_000 } });
    const large = attemptSpec('head -c 40000000 /dev/urandom > $HOME/x; sleep 600');
    const first = await runToEnd(made.runner, large);
    expect(first.outcome).toMatchObject({ kind: 'exited', exitCode: 137 });
    expect(noteOf(first.outcome)).toMatch(
      /^The job was ended: it keeps \d\d MB on disk, and disk_gb allows 20 MB.$/,
    );
    const many = attemptSpec('mkdir d; cd d; seq 3000 | xargs touch; chmod 0 .; sleep 600');
    const second = await runToEnd(made.runner, many);
    expect(second.outcome).toMatchObject({ kind: 'exited', exitCode: 137 });
    expect(noteOf(second.outcome)).toMatch(
      /^The job was ended: it keeps \d+ files, and 2000 are allowed with its disk_gb.$/,
    );
    const unlinked = attemptSpec('exec 9> x; rm x; head -c 40000000 /dev/urandom >&9; sleep 600');
    const third = await runToEnd(made.runner, unlinked);
    expect(third.outcome).toMatchObject({ kind: 'exited', exitCode: 137 });
    expect(noteOf(third.outcome)).toMatch(/^The job was ended: it keeps \d\d MB on disk, /);
  });

  test('a log is stored up to its limits and says where it ends; the job continues', async () => {
    await using made = await makeRunner();
    const log = { bytes: 1_000_000, lines: 1_000 };
    for (const [command, kept] of [
      ['seq 1000000; exit 3', 1_000],
      [`head -c 20000000 /dev/zero | tr '\\0' x | fold -w 9999; exit 3`, 100],
      [`yes '' | head -1000000; exit 3`, 1_000],
    ] as const) {
      const spec = attemptSpec(command, { log });
      const { outcome, lines } = await runToEnd(made.runner, spec);
      expect(outcome).toMatchObject({ exitCode: 3 });
      expect(lines).toHaveLength(kept + 1);
      expect(lines.at(-1)).toBe(
        'The log ends here: it may hold 1000000 bytes and 1000 lines. What the job prints from here on is not kept.',
      );
      expect(await shimLog(made, spec)).toBeLessThan(log.bytes + 64 * 1024);
    }
  });

  test('a flood of lines does not increase the memory of the shim', async () => {
    await using made = await makeRunner();
    const tag = `307.${process.pid}`;
    const flood = "tr '\\0' x < /dev/zero | head -c 150m; yes | head -c 100m; echo";
    const spec = attemptSpec(`${flood}; sleep ${tag}`, {
      log: { bytes: 20 * MiB, lines: 1_000_000 },
    });
    const handle = await made.runner.prepare(spec, never);
    await made.runner.start(handle);
    const { pid } = JSON.parse(readFileSync(join(made.dir, spec.id, 'claim'), 'utf8'));
    await eventually(() => expect(listCommandLines(tag)).toContain(`sleep ${tag} `));
    const peak = /^VmHWM:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1];
    expect(Number(peak) * 1024).toBeLessThan(130 * MiB);
    expect(await shimLog(made, spec)).toBeLessThan(20 * MiB + 1_000_000 * 16 + 2 * 64 * 1024);
  });

  test('a full disk fails the job with the reason, at whichever step it occurs', async (ctx) => {
    needs(ctx, 'root');
    await using disk = await smallDisk(8);
    await using made = await makeRunner({ dir: disk.dir });
    const { runner } = made;

    // The shim's own log.
    const flood = await runToEnd(runner, attemptSpec(FLOOD));
    expect(flood.outcome).toMatchObject({ kind: 'exited', exitCode: 137 });
    expect(noteOf(flood.outcome)).toBe('The job was ended: the disk of the server is full.');
    await runner.remove(flood.handle);
    await made.emptied();

    // The start, after the preparation.
    const handle = await runner.prepare(attemptSpec('true'), never);
    await run('sh', ['-c', `cat /dev/zero > ${disk.path}/full`]).catch(() => {});
    await expect(runner.start(handle)).rejects.toMatchObject({ code: 'ENOSPC' });
    await runner.remove(handle);
    await made.emptied();
    await rm(join(disk.path, 'full'));
  });

  test('before the server would have to stop writing, the job with the largest disk usage is ended and its files are removed', async (ctx) => {
    needs(ctx, 'root');
    await using disk = await smallDisk(16);
    await using made = await makeRunner({ dir: disk.dir, diskFloor: 4 * MiB });
    const small = attemptSpec('head -c 100k /dev/zero > x; sleep 600');
    const spared = await made.runner.prepare(small, never);
    await made.runner.start(spared);
    const large = attemptSpec('head -c 13m /dev/urandom > x; sleep 600');
    const { outcome } = await runToEnd(made.runner, large);
    expect(outcome).toMatchObject({ kind: 'exited', exitCode: 137 });
    expect(noteOf(outcome)).toMatch(
      /^The job was ended: the server's disk is nearly full, and the job keeps 1\d MB on it.$/,
    );
    expect(await readdir(join(made.dir, large.id, 'work'))).toEqual([]);
    expect(existsSync(join(made.dir, small.id, 'exit'))).toBe(false);
  });

  test('an attempt that cannot be prepared because the disk is full leaves neither a user nor a control group', async (ctx) => {
    needs(ctx, 'root', 'bubblewrap', 'slirp4netns');
    await using disk = await smallDisk(12);
    const usersTaken = () =>
      readdirSync('/run/loam/job-uids').filter((uid) =>
        readlinkSync(join('/run/loam/job-uids', uid)).startsWith(`${disk.dir}/`),
      );
    {
      await using made = await makeRunner({ dir: disk.dir, network: 'internet' });
      const { runner } = made;
      await runner.remove((await runToEnd(runner, attemptSpec('true'))).handle);
      for (let round = 0; round < 3; round++) {
        await run('sh', ['-c', `cat /dev/zero > ${disk.path}/full`]).catch(() => {});
        const spec = attemptSpec('true');
        await expect(runner.prepare(spec, never)).rejects.toThrow();
        await rm(join(disk.path, 'full'));
        await runner.remove({ attempt: spec.id });
        const { handle, lines } = await runToEnd(runner, attemptSpec('echo here'));
        expect(lines).toEqual(['here']);
        await runner.remove(handle);
        expect(usersTaken()).toEqual([]);
      }
    }
    expect(usersTaken()).toEqual([]);
  });

  test('in the API: the job has failed with the reason in its log, and never counts as a lost machine', async (ctx) => {
    needs(ctx, 'root');
    await using disk = await smallDisk(8);
    await using runner = await openProcessRunner({ dir: disk.dir, graceMs: 300 });
    let refused = 0;
    const prepare = runner.prepare.bind(runner);
    runner.prepare = (...args) =>
      prepare(...args).catch((error) => {
        refused++;
        throw error;
      });
    // Artifacts may be stored on another disk.
    await using artifacts = await smallDisk(1);
    await using app = await startApp({
      // The free space of this disk is below any threshold from the start.
      config: { storage: { kind: 'folder', path: artifacts.path }, diskFloor: 0 },
      overrides: { runner },
    });
    const alice = await app.user('alice');
    await alice.post('/auth/v1/repository/alice', { name: 'code', auto_init: true });
    const send = async (body: { name: string; command: string; output_path?: string }) => {
      const json = { repo: 'alice/code', gpu: 'none', ...body };
      expect((await alice.post('/auth/v1/seed/alice/jobs', json)).status).toBe(201);
    };
    const over = (name: string) =>
      eventually(async () => {
        const { body: now } = await alice.get(`/alice/job/${name}`);
        expect(['failed', 'succeeded']).toContain(now.status);
        const { body: log } = await alice.get(`/alice/job/${name}/logs`);
        return { ...now, last: log.lines.at(-1)?.message };
      });
    await send({ name: 'flood', command: FLOOD });
    const flood = await over('flood');
    expect(flood.last).toBe('The job was ended: the disk of the server is full.');
    expect(flood).toMatchObject({ status: 'failed', exit_code: 137 });

    // Files removed in the background would free space again.
    await eventually(async () => expect(await readdir(join(disk.dir, '.trash'))).toEqual([]));
    // Before its start a job waits until others free space.
    await run('sh', ['-c', `cat /dev/zero > ${disk.path}/full`]).catch(() => {});
    await send({ name: 'late', command: 'echo here' });
    await eventually(() => expect(refused).toBeGreaterThan(0));
    await rm(join(disk.path, 'full'));
    expect(await over('late')).toMatchObject({ status: 'succeeded', last: 'here' });

    await send({ name: 'large', command: 'head -c 3m /dev/urandom > out', output_path: 'out' });
    expect(await over('large')).toMatchObject({
      status: 'failed',
      exit_code: 125,
      last: 'The artifacts were not kept: the disk of the server is full',
    });
    await send({ name: 'small', command: 'echo this > out', output_path: 'out' });
    expect(await over('small')).toMatchObject({ status: 'succeeded', artifacts: { files: 1 } });
  });
});

describe('cleanup', () => {
  test('folders deeper than PATH_MAX and folders without permissions are removed after the end', async () => {
    for (const sandbox of ['auto', 'none'] as const) {
      await using made = await makeRunner({ sandbox });
      const deep =
        'n=$(head -c 200 /dev/zero | tr "\\0" d); i=0; while [ $i -lt 60 ]; do mkdir $n; cd -P $n; i=$((i+1)); done';
      const hidden = 'mkdir -p $HOME/a/b; touch $HOME/a/b/c; chmod 0 $HOME/a/b $HOME/a';
      const { handle } = await runToEnd(made.runner, attemptSpec(`${hidden}; ${deep}`));
      await made.runner.remove(handle);
      expect(await made.runner.attach(handle)).toBe('gone');
      await made.emptied();
    }
  });

  test('a start does not wait for a cleanup, and continues it', async () => {
    await using made = await makeRunner();
    const { handle } = await runToEnd(made.runner, attemptSpec('mkdir -p a/b'));
    await made.runner[Symbol.asyncDispose]();
    await made.runner.remove(handle);
    expect(await readdir(join(made.dir, '.trash'))).toHaveLength(1);
    const second = await made.again();
    await second.sweep(new Set());
    await made.emptied();
    await second[Symbol.asyncDispose]();
  });

  test('immutable files are removed, and mounts are left unchanged', async (ctx) => {
    needs(ctx, 'root');
    await using made = await makeRunner({ sandbox: 'none' });
    const outside = await mkdtemp(join(tmpdir(), 'loam-outside-'));
    await writeFile(join(outside, 'precious'), 'kept');
    const command = 'touch fixed; mkdir ../tmp/m';
    const { handle } = await runToEnd(made.runner, attemptSpec(command));
    // Jobs have no rights to do this today; a job of an earlier version, or in a container with more rights, may have had them.
    const script = 'chattr +i work/fixed work || true; mount --bind "$1" tmp/m; ls tmp/m';
    const cwd = join(made.dir, String(handle.attempt));
    const listed = execFileSync('sh', ['-c', script, 'sh', outside], { cwd, encoding: 'utf8' });
    expect(listed).toContain('precious');
    await made.runner.remove(handle);
    await made.emptied();
    expect(readFileSync(join(outside, 'precious'), 'utf8')).toBe('kept');
    await rm(outside, { recursive: true });
  });
});

test('files that a job without a sandbox leaves in world-writable folders are removed with its user', async (ctx) => {
  needs(ctx, 'root');
  await using made = await makeRunner({ sandbox: 'none' });
  const name = `loam-left-${process.pid}`;
  const command = `cd /tmp && mkdir -p ${name}/d && touch ${name}/d/f && chmod 0 ${name} && echo x > /dev/shm/${name}
    (ipcmk -M 4096; ipcmk -Q; ipcmk -S 1) >/dev/null && id -u`;
  const { handle, lines } = await runToEnd(made.runner, attemptSpec(command));
  const [uid = ''] = lines;
  const ipc = () =>
    ['shm', 'msg', 'sem'].filter((kind) =>
      readFileSync(`/proc/sysvipc/${kind}`, 'utf8').includes(` ${uid} `),
    );
  const files = () => [`/tmp/${name}`, `/dev/shm/${name}`].filter((path) => existsSync(path));
  expect([ipc().length, files().length, Number(uid) > 0]).toEqual([3, 2, true]);
  await made.runner.remove(handle);
  expect([ipc(), files()]).toEqual([[], []]);
});

test('GPUs of an attempt are not given to another attempt after a restart', async () => {
  const bin = await mkdtemp(join(tmpdir(), 'loam-gpus-'));
  await writeFile(
    join(bin, 'nvidia-smi'),
    '#!/bin/sh\nprintf "0, Tesla T4, 0\\n1, Tesla T4, 0\\n"\n',
  );
  await chmod(join(bin, 'nvidia-smi'), 0o755);
  const path = process.env.PATH;
  process.env.PATH = `${bin}:${path}`;
  try {
    await using made = await makeRunner();
    const wish = { hardware: hardware({ gpu: 'T4' }) };
    const first = await made.runner.prepare(attemptSpec('true', wish), never);
    expect(first.gpus).toBe('0');
    // Nothing has attached to the first attempt yet.
    const second = await made.again();
    expect((await second.prepare(attemptSpec('true', wish), never)).gpus).toBe('1');
    await expect(second.prepare(attemptSpec('true', wish), never)).rejects.toThrow('not free');
    await second.remove(first);
    expect((await second.prepare(attemptSpec('true', wish), never)).gpus).toBe('0');
    await second[Symbol.asyncDispose]();
  } finally {
    process.env.PATH = path;
    await rm(bin, { recursive: true });
  }
});

test('the timeout, the grace period and the SIGKILL after it work while no server runs', async () => {
  await using made = await makeRunner({ graceMs: 300 });
  const spec = attemptSpec('trap "echo no" TERM; echo up; while :; do sleep 0.05; done', {
    timeoutMs: 500,
  });
  const handle = await made.runner.prepare(spec, never);
  await made.runner.start(handle);
  await made.runner[Symbol.asyncDispose]();
  await eventually(() => expect(existsSync(join(made.dir, spec.id, 'exit'))).toBe(true));
  const outcome = (await made.runner.wait(handle, never)) as Extract<Outcome, { kind: 'exited' }>;
  expect(outcome).toMatchObject({ exitCode: 137, timedOut: true });
  const ran = outcome.endedAt.getTime() - outcome.startedAt.getTime();
  expect(ran).toBeGreaterThanOrEqual(800);
  expect(await allLines(made.runner, handle)).toContain('no');
});
