/** An engine that is killed and restarted, with and without `live-restore`, which keeps containers running. */
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { beforeEach, expect, test } from 'vitest';
import {
  type AttemptSpec,
  type Handle,
  type Outcome,
  RunnerUnavailable,
} from '../../../src/runners/runner.ts';
import { readProcessIdentity, readProcessStat } from '../../../src/runners/supervisor/proc.ts';
import { BUSYBOX, dockerRunner } from '../../support/docker.ts';
import { eventually } from '../../support/eventually.ts';
import { startApp } from '../../support/harness.ts';
import { needs } from '../../support/needs.ts';
import { startOwnEngine } from '../../support/own-engine.ts';
import { allLines, attemptSpec } from '../../support/runner.contract.ts';
import { job, lines, submit, until } from '../../support/submit.ts';

const never = new AbortController().signal;

beforeEach((ctx) => needs(ctx, 'docker', 'root'));

test('no line and no exit code is lost when an engine with live-restore is killed', async () => {
  await using engine = await startOwnEngine({ liveRestore: true });
  await using made = await dockerRunner({ docker: engine.config });
  const { runner } = made;
  const command = 'for i in $(seq 60); do echo $i; echo err $i >&2; sleep 0.1; done; exit 5';
  const handle = await runner.prepare(attemptSpec(command), never);
  await runner.start(handle);
  const ended = runner.wait(handle, never);
  const seen: string[] = [];
  const following = (async () => {
    for await (const batch of runner.logs(handle, null, never))
      seen.push(...batch.lines.map(({ message }) => message));
  })();
  await eventually(() => expect(seen.length).toBeGreaterThan(10));
  await engine.kill('SIGKILL');
  await engine.start();
  await eventually(() => expect(seen.length).toBeGreaterThan(40));
  await engine.kill('SIGKILL');
  // The container ends while the engine is down, and its lines arrive all the same.
  await eventually(() => expect(seen).toHaveLength(120));
  await engine.start();
  expect(await ended).toMatchObject({ kind: 'exited', exitCode: 5 });
  await following;
  const numbers = Array.from({ length: 60 }, (_, i) => String(i + 1));
  expect(seen.filter((line) => !line.startsWith('err'))).toEqual(numbers);
  expect(seen.filter((line) => line.startsWith('err'))).toEqual(numbers.map((n) => `err ${n}`));
  expect((await allLines(runner, handle)).sort()).toEqual(seen.sort());
});

test('an engine that was killed before saving its state causes no second run and no unknown exit code', async () => {
  await using engine = await startOwnEngine({ liveRestore: true });
  await using made = await dockerRunner({ docker: engine.config, network: { mode: 'none' } });
  const { runner, dir } = made;
  /** Restarts the engine with an earlier state of the container. */
  async function forget(remembered: () => Promise<void>): Promise<void> {
    await engine.kill('SIGKILL');
    await remembered();
    await engine.start();
  }

  // The engine was killed after it started the container, and before it saved that.
  const spec = attemptSpec('echo $PPID once; sleep 1; exit 7');
  const first = await runner.prepare(spec, never);
  const container = `loam-${spec.id}`;
  const asCreated = await engine.remember(container);
  await engine.docker('start', container);
  const pid = await engine.docker('inspect', '--format', '{{.State.Pid}}', container);
  await forget(asCreated);
  expect(existsSync(`/proc/${pid}`)).toBe(true);
  expect(await runner.attach(first)).toBe('prepared');
  await expect(runner.start(first)).rejects.toThrow(RunnerUnavailable);
  expect(await runner.attach(first)).toBe('unprepared');
  expect(readProcessStat(pid)?.state ?? 'Z').toBe('Z');

  // The engine was killed after the container ended, and before it saved that.
  const handle = await runner.prepare(spec, never);
  await runner.start(handle);
  const asRunning = await engine.remember(container);
  await eventually(async () => expect(await engine.docker('ps', '-q')).toBe(''));
  const over = Date.now();
  await forget(asRunning);
  const code = await engine.docker('inspect', '--format', '{{.State.ExitCode}}', container);
  expect(['0', '255']).toContain(code);
  const again = await made.again();
  const outcome = await again.wait(handle, never);
  expect(outcome).toMatchObject({ kind: 'exited', exitCode: 7 });
  // The end time is that of the shim, not that of the engine's restart.
  const { startedAt, endedAt } = outcome as Extract<Outcome, { kind: 'exited' }>;
  expect(endedAt.getTime() - startedAt.getTime()).toBeGreaterThan(990);
  expect(endedAt.getTime()).toBeLessThan(over + 1_000);
  expect(await allLines(again, handle)).toEqual([expect.stringMatching(/^\d+ once$/)]);
  await again.remove(handle);
  expect(readdirSync(dir).filter((name) => !name.startsWith('.'))).toEqual([]);
});

test('removing a container whose engine was killed during its start leaves no process', async () => {
  await using engine = await startOwnEngine({ liveRestore: true });
  await using made = await dockerRunner({ docker: engine.config, network: { mode: 'none' } });
  const { runner } = made;
  const spec = attemptSpec('true');
  const handle = await runner.prepare(spec, never);
  const asCreated = await engine.remember(`loam-${spec.id}`);
  await engine.docker('start', `loam-${spec.id}`);
  const pid = await engine.docker('inspect', '--format', '{{.State.Pid}}', `loam-${spec.id}`);
  await engine.kill('SIGKILL');
  await asCreated();
  await engine.start();
  expect(readProcessStat(pid)?.state ?? 'Z').not.toBe('Z');
  // The job was cancelled meanwhile.
  await runner.remove(handle);
  expect(readProcessStat(pid)?.state ?? 'Z').toBe('Z');
});

test.for(['disconnected', 'connected'] as const)(
  'a container is recreated when its engine was killed while its network was %s',
  async (done) => {
    await using engine = await startOwnEngine({ liveRestore: true, sharesNetwork: true });
    await using made = await dockerRunner({ docker: engine.config });
    const { runner } = made;
    expect(runner.warning).toBe(undefined);
    const spec = attemptSpec('ip -o -4 addr show eth0; echo $PPID once');
    const first = await runner.prepare(spec, never);
    const container = `loam-${spec.id}`;
    const network = (...args: string[]) => engine.docker('network', ...args, container);
    await engine.docker('start', container);
    // The engine makes this change without saving it for the container.
    if (done === 'connected') await network('disconnect', 'none');
    const before = await engine.remember(container);
    if (done === 'disconnected') await network('disconnect', 'none');
    else await network('connect', 'bridge');
    await engine.kill('SIGKILL');
    await before();
    await engine.start();
    await expect(runner.start(first)).rejects.toThrow(RunnerUnavailable);
    expect(await runner.attach(first)).toBe('unprepared');

    const handle = await runner.prepare(spec, never);
    await runner.start(handle);
    expect(await runner.wait(handle, never)).toMatchObject({ kind: 'exited', exitCode: 0 });
    expect(await allLines(runner, handle)).toEqual([
      expect.stringMatching(/ inet 192\.0\.2\.\d+\/28 /),
      expect.stringMatching(/^\d+ once$/),
    ]);
  },
);

test('a shim that is killed is replaced by another, which continues the log', async () => {
  await using made = await dockerRunner({ network: { mode: 'none' } });
  const { runner, dir } = made;
  const spec = attemptSpec('for i in $(seq 30); do echo $i; sleep 0.05; done; exit 3');
  const handle = await runner.prepare(spec, never);
  await runner.start(handle);
  const claim = () => JSON.parse(readFileSync(join(dir, spec.id, 'claim'), 'utf8'));
  const { pid } = claim();
  const seen: string[] = [];
  for await (const { lines } of runner.logs(handle, null, never)) {
    seen.push(...lines.map(({ message }) => message));
    if (seen.length === 10) process.kill(pid, 'SIGKILL');
  }
  expect(seen).toEqual(Array.from({ length: 30 }, (_, i) => String(i + 1)));
  expect(claim().pid).not.toBe(pid);
  expect(await runner.wait(handle, never)).toMatchObject({ exitCode: 3 });
});

test('a command begins only under a shim', async () => {
  await using made = await dockerRunner({ network: { mode: 'none' } });
  const { runner, dir } = made;
  const spec = attemptSpec('echo ran; exit 3');
  const handle = await runner.prepare(spec, never);
  // Stands for a shim that is killed right after its claim.
  const shim = spawn('sleep', ['600']);
  const pid = shim.pid as number;
  const claim = JSON.stringify({ pid, ...readProcessIdentity(pid) });
  await writeFile(join(dir, spec.id, 'claim'), claim);
  await expect(runner.start(handle)).rejects.toThrow(/has not started/);
  const ended = once(shim, 'exit');
  shim.kill('SIGKILL');
  await ended;
  await runner.start(handle);
  expect(await runner.wait(handle, never)).toMatchObject({ kind: 'exited', exitCode: 3 });
  expect(await allLines(runner, handle)).toEqual(['ran']);
});

test('a job that ends while neither shim nor server runs has the exit code that its engine saw', async () => {
  await using engine = await startOwnEngine({ liveRestore: true });
  await using made = await dockerRunner({ docker: engine.config, network: { mode: 'none' } });
  const { runner, dir } = made;
  const spec = () => attemptSpec('echo up; until [ -e go ]; do sleep 0.1; done; echo over');
  const specs = [spec(), spec()];
  const handles = [];
  for (const spec of specs) {
    const handle = await runner.prepare(spec, never);
    await runner.start(handle);
    handles.push(handle);
  }
  const [seen, forgotten] = specs as [AttemptSpec, AttemptSpec];
  for (const { id } of specs)
    process.kill(JSON.parse(readFileSync(join(dir, id, 'claim'), 'utf8')).pid, 'SIGKILL');
  const end = async ({ id }: AttemptSpec) => {
    await writeFile(join(dir, id, 'work/go'), '');
    await eventually(async () => expect(await engine.docker('ps')).not.toContain(`loam-${id}`));
  };
  const asRunning = await engine.remember(`loam-${forgotten.id}`);
  await end(forgotten);
  await engine.kill('SIGKILL');
  await asRunning();
  await engine.start();
  await end(seen);

  const again = await made.again();
  const [one, other] = handles as [Handle, Handle];
  const outcome = await again.wait(one, never);
  expect(outcome).toMatchObject({ kind: 'exited', exitCode: 0, note: /may be missing/ });
  // The engine has forgotten the exit code too, so it is unknown whether the job succeeded.
  expect(await again.wait(other, never)).toEqual({ kind: 'lost' });
});

test('a job on an unavailable engine is given up if it was cancelled or is past its timeout', async () => {
  await using engine = await startOwnEngine({ liveRestore: true });
  const options = { engineTimeoutMs: 1_000, graceMs: 500, network: { mode: 'none' } } as const;
  await using made = await dockerRunner({ ...options, docker: engine.config });
  const { runner } = made;
  const begun = async (timeoutMs: number) => {
    const handle = await runner.prepare({ ...attemptSpec('sleep 600'), timeoutMs }, never);
    await runner.start(handle);
    const over = new AbortController();
    let outcome: Outcome | undefined;
    const waiting = runner.wait(handle, over.signal).then(
      (how) => {
        outcome = how;
      },
      () => {},
    );
    return { handle, waiting, outcome: () => outcome, end: () => over.abort() };
  };
  const [cancelled, overdue, wanted] = [
    await begun(600_000),
    await begun(3_000),
    await begun(600_000),
  ];
  await engine.kill('SIGKILL');
  await expect(runner.signal(cancelled.handle, 'TERM')).rejects.toThrow(RunnerUnavailable);
  const unreachable = { kind: 'lost', unreachable: true };
  await eventually(() => expect(cancelled.outcome()).toEqual(unreachable));
  await eventually(() => expect(overdue.outcome()).toEqual(unreachable));
  expect(wanted.outcome()).toBeUndefined();
  await engine.start();
  await runner.signal(wanted.handle, 'KILL');
  await eventually(() => expect(wanted.outcome()).toMatchObject({ exitCode: 137 }));
  for (const { handle } of [cancelled, overdue, wanted]) await runner.remove(handle);
  expect(await engine.docker('ps', '--all', '--quiet')).toBe('');
});

test.for(['cat /dev/zero', 'yes begun', 'yes exit 0'])(
  'a shim uses little memory and CPU, whatever a job writes into the FIFO for reports: %s',
  async (writes) => {
    await using made = await dockerRunner({ network: { mode: 'none' } });
    const { runner, dir } = made;
    const at = (name: string) => join(dir, spec.id, name);
    const spec = attemptSpec(
      `${writes} >/.loam/end & echo up; until [ -e go ]; do sleep 0.1; done; kill $!; echo exit 7 >/.loam/end; exit 4`,
    );
    const handle = await runner.prepare(spec, never);
    await runner.start(handle);
    for await (const { lines } of runner.logs(handle, null, never)) {
      expect(lines.map(({ message }) => message)).toEqual(['up']);
      const { pid } = JSON.parse(readFileSync(at('claim'), 'utf8'));
      const [from, seconds] = [secondsOf(pid), 3];
      await delay(seconds * 1_000);
      expect((secondsOf(pid) - from) / seconds).toBeLessThan(0.1);
      const most = /^VmHWM:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1];
      expect(Number(most)).toBeLessThan(150_000);
      await writeFile(at('work/go'), '');
    }
    expect(await runner.wait(handle, never)).toMatchObject({ exitCode: 4 });
  },
);

/** CPU seconds of a process; the kernel counts 100 ticks per second. */
function secondsOf(pid: number): number {
  const fields = readProcessStat(pid)?.fields ?? [];
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

test('a container whose shell ends at the start barrier is not recreated forever', async () => {
  const image = `loam-test/ends:${process.pid}`;
  const shell = "printf '#!/bin/busybox ash\\nexit 255\\n' > /sh && rm /bin/sh && mv /sh /bin/sh";
  execFileSync('docker', ['build', '--quiet', '--network=none', `--tag=${image}`, '-'], {
    input: `FROM ${BUSYBOX}\nRUN ["/bin/busybox", "ash", "-c", ${JSON.stringify(`${shell} && chmod 755 /bin/sh`)}]\n`,
  });
  await using cleanup = new AsyncDisposableStack();
  cleanup.defer(() => void execFileSync('docker', ['rmi', image]));
  const { runner } = cleanup.use(await dockerRunner({ network: { mode: 'none' } }));
  const spec = attemptSpec('true', { image });
  let again = 0;
  for (;;) {
    const handle = await runner.prepare(spec, never);
    const begun = await runner.start(handle).catch((error) => error);
    if (begun === true) {
      const outcome = await runner.wait(handle, never);
      if (outcome.kind !== 'exited') {
        const reason = expect.stringMatching(/could not begin: .* exit code 255$/);
        expect(outcome).toEqual({ kind: 'unstartable', reason });
        break;
      }
      // The container may still have been running when it was checked. Then the shim, which gets no report from such
      // a shell, counts it as killed.
      expect([255, 137]).toContain(outcome.exitCode);
      break;
    }
    expect(begun).toBeInstanceOf(RunnerUnavailable);
    again++;
  }
  expect(again).toBeLessThanOrEqual(3);
});

test('a job whose container ended with its engine runs again, and queued jobs wait for the engine', async () => {
  await using engine = await startOwnEngine({ liveRestore: false });
  await using app = await startApp({ config: { runner: 'auto', docker: engine.config } });
  const { admin } = app;
  const run = (name: string, command: string) =>
    submit(admin, { namespace: 'admin', image: BUSYBOX, name, command });
  await run('again', 'echo attempt $JOB_ATTEMPT; [ $JOB_ATTEMPT = 2 ] || sleep 600');
  await run('own', 'echo up; kill -TERM $$');
  await until(admin, 'admin', 'own', 'FAILED');
  await eventually(async () => expect(await lines(admin, 'admin', 'again')).toHaveLength(1));

  await engine.kill('SIGKILL');
  await run('later', 'echo later');
  await eventually(async () =>
    expect((await job(admin, 'admin', 'later')).progress).toMatch(/container engine/),
  );
  await engine.start();
  expect(await until(admin, 'admin', 'again', 'SUCCEEDED')).toMatchObject({
    retryCount: 0,
    attempts: { nodes: [{ outcome: 'LOST' }, { outcome: 'EXITED', exitCode: 0 }] },
  });
  expect(await lines(admin, 'admin', 'again')).toEqual(['attempt 1', 'attempt 2']);
  expect(await until(admin, 'admin', 'later', 'SUCCEEDED')).toMatchObject({ retryCount: 0 });
  // A job that ended by itself while the engine was running has failed.
  expect(await job(admin, 'admin', 'own')).toMatchObject({
    exitCode: 143,
    attempts: { nodes: [{ outcome: 'EXITED', exitCode: 143 }] },
  });

  // The engine restarts while no server runs, so only the engine can report what happened.
  await run('unseen', '[ $JOB_ATTEMPT = 2 ] || sleep 600');
  await until(admin, 'admin', 'unseen', 'RUNNING');
  await app.app[Symbol.asyncDispose]();
  await engine.kill('SIGTERM');
  await engine.start();
  await app.restart();
  expect(await until(admin, 'admin', 'unseen', 'SUCCEEDED')).toMatchObject({
    attempts: { nodes: [{ outcome: 'LOST' }, { outcome: 'EXITED' }] },
  });
});

test('an engine with quotas limits the disk of a container at once, and other engines work without quotas', async (ctx) => {
  needs(ctx, 'btrfs');
  await using engine = await startOwnEngine({ liveRestore: false, quotas: true });
  const options = { network: { mode: 'none' }, limits: { diskBytes: 32 * 2 ** 20 } } as const;
  await using held = await dockerRunner({ ...options, docker: engine.config });
  const spec = attemptSpec('true');
  await held.runner.prepare(spec, never);
  const copy = async (megabytes: number) => {
    const file = join(engine.config.configFolder, `${megabytes}`);
    await writeFile(file, Buffer.alloc(megabytes * 2 ** 20));
    await engine.docker('cp', file, `loam-${spec.id}:/full`);
  };
  await copy(16);
  await expect(copy(64)).rejects.toThrow(/quota exceeded|No space left/i);

  await using watched = await dockerRunner(options);
  const other = await watched.runner.prepare(attemptSpec('exit 3'), never);
  await watched.runner.start(other);
  expect(await watched.runner.wait(other, never)).toMatchObject({ exitCode: 3 });
});
