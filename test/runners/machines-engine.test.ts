/** What the engine of joined machines makes of their reports: of late ones, lies, copies, and machines that were removed. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { CONTRACT } from '../../src/base/hardware.ts';
import type { Submission } from '../../src/runners/agent/engine.ts';
import { openAgentRunner } from '../../src/runners/agent/runner.ts';
import { type MachineSettings, MachinesEngine } from '../../src/runners/machines/engine.ts';
import { machineReport } from '../../src/runners/machines/protocol.ts';
import { FORGED_FACTS } from '../support/forged-machine.ts';
import { attemptSpec } from '../support/runner.contract.ts';

const never = new AbortController().signal;

function settings(changes: Partial<MachineSettings> = {}): MachineSettings {
  return {
    id: 'mch_1',
    name: 'box',
    instance: 'boot',
    namespaceId: null,
    regions: [],
    facts: FORGED_FACTS,
    drainSince: null,
    drainDeadline: null,
    ...changes,
  };
}

function submission(attempt: string, machineId = 'mch_1'): Submission {
  return {
    attempt,
    machine: 'box',
    machineId,
    job: { id: 'job_1', name: 'job', namespace: 'ada' },
    agent: { url: '', token: `token of ${attempt}` },
    image: null,
    hardware: { gpu: 'none', gpuCount: 1, cpu: 2, memoryGb: 2, diskGb: 1, region: 'us-east-1' },
    cpus: 2,
    memoryBytes: 2 ** 31,
    timeoutMs: 60_000,
  };
}

function open(submitted: readonly Submission[] = []) {
  const engine = new MachinesEngine(submitted, { program: '', hardware: { current: CONTRACT } });
  let sequence = 0;
  return Object.assign(engine, {
    /** @param attempts ids of those that the machine has */
    report: (
      attempts: readonly string[],
      changes: Partial<MachineSettings> & { seen?: string; sequence?: number } = {},
    ) =>
      engine.poll(
        settings(changes),
        machineReport.parse({
          facts: FORGED_FACTS,
          load: { cpuPercent: 0, memoryBytes: 0, gpuPercent: null },
          attempts: attempts.map((id) => ({ id })),
          seen: changes.seen ?? '',
          sequence: changes.sequence ?? ++sequence,
        }),
        never,
      ),
  });
}

/** Whether it is settled without any further event. */
async function isSettled(promise: Promise<unknown>): Promise<boolean> {
  const pending = Symbol('pending');
  return (
    (await Promise.race([promise, new Promise((done) => setImmediate(done, pending))])) !== pending
  );
}

test('an attempt has left when the machine has seen the orders without it and does not report it', async () => {
  await using engine = open();
  await engine.report([]);
  await engine.submit(submission('a'));
  const given = await engine.report([]);
  expect(given.attempts).toEqual([{ id: 'a', token: 'token of a' }]);
  // The machine has the orders with the attempt, and its last report says nothing of it.
  const removed = engine.remove('a');
  expect(await isSettled(removed)).toBe(false);
  const { version } = await engine.report(['a'], { seen: given.version });
  void engine.report(['a'], { seen: version });
  expect(await isSettled(removed)).toBe(false);
  void engine.report([], { seen: version });
  await removed;
});

test('a report that arrives after a later one does not count, unless the machine was restarted', async () => {
  await using engine = open();
  await engine.report([], { sequence: 1 });
  await engine.submit(submission('a'));
  const { version } = await engine.report(['a'], { sequence: 3 });
  const removed = engine.remove('a');
  await expect(engine.report([], { seen: version, sequence: 2 })).rejects.toThrow('later report');
  const after = await engine.report(['a'], { sequence: 4 });
  expect(await isSettled(removed)).toBe(false);
  void engine.report([], { instance: 'next boot', seen: after.version, sequence: 1 });
  await removed;
});

test('a machine has one open request: a later one ends it', async () => {
  await using engine = open();
  const { version } = await engine.report([]);
  const polls = Array.from({ length: 100 }, () => engine.report([], { seen: version }));
  const last = polls.pop() as (typeof polls)[number];
  await Promise.all(polls);
  expect(await isSettled(last)).toBe(false);
});

test('attempts of which a machine reports lies are those that it was given only', async () => {
  await using engine = open([submission('a', 'mch_1'), submission('b', 'mch_2')]);
  const lost = (id: string) => ({ id, lost: 'so it says' });
  const report = machineReport.parse({
    facts: FORGED_FACTS,
    load: { cpuPercent: 0, memoryBytes: 0, gpuPercent: null },
    attempts: [lost('a'), lost('b'), lost('unknown')],
    seen: '',
  });
  await engine.report(['b'], { id: 'mch_2', name: 'other' });
  await engine.poll(settings(), report, never);
  expect(engine.state('a')).toMatchObject({ kind: 'ended', end: { isLoss: true } });
  expect(engine.state('b')).toMatchObject({ kind: 'running' });
  expect(engine.state('unknown')).toEqual({ kind: 'unknown' });
});

test('a machine that gets the name of a removed one gets nothing of it', async () => {
  await using engine = open([submission('of the previous process')]);
  await engine.report([]);
  await engine.submit(submission('a'));
  // It has joined before this process knows that the other one was removed.
  expect(await engine.report([], { id: 'mch_2' })).toMatchObject({ attempts: [] });
  engine.update([settings({ id: 'mch_2' })]);
  expect(engine.state('a')).toMatchObject({ kind: 'ended', end: { isLoss: true } });
  expect(engine.isRevoked('a')).toBe(true);
  expect(engine.idOf('box')).toBe('mch_2');
  await engine.submit(submission('b', engine.idOf('box')));
  expect((await engine.report([], { id: 'mch_2' })).attempts).toMatchObject([{ id: 'b' }]);
  expect(engine.isRevoked('b')).toBe(false);
});

test('the open request of a machine that is removed ends without orders', async () => {
  await using engine = open([submission('a')]);
  const { version } = await engine.report(['a']);
  const waiting = engine.report(['a'], { seen: version });
  engine.update([]);
  await expect(waiting).rejects.toThrow('does not drive');
  expect(engine.drives('mch_1')).toBe(false);
  expect(engine.machines).toEqual([]);
});

test('a request with older settings does not undo a drain', async () => {
  await using engine = open();
  await engine.report([]);
  expect(engine.machines).toMatchObject([{ id: 'box' }]);
  engine.update([settings({ drainSince: new Date() })]);
  await engine.report([]);
  expect(engine.machines).toEqual([]);
});

test('a machine gets no attempts while it has some that were removed during its silence', async () => {
  await using engine = open();
  await engine.report(['att_removed']);
  expect(engine.machines).toEqual([]);
  await engine.report([]);
  expect(engine.machines).toHaveLength(1);
});

test('jobs wait for the images of a machine that has not reported yet', async () => {
  const dir = await mkdtemp(join(tmpdir(), 'loam-engine-'));
  await using cleanup = new AsyncDisposableStack();
  cleanup.defer(() => rm(dir, { recursive: true, force: true, maxRetries: 5 }));
  const engine = cleanup.use(open());
  const options = { engine, placement: engine, name: 'joined', dir, agentUrl: '', leaseMs: 60_000 };
  const runner = cleanup.use(await openAgentRunner(options));
  const withImages = (withImage: boolean) => settings({ facts: { ...FORGED_FACTS, withImage } });
  engine.update([withImages(false)]);
  expect(runner.hasUnavailableEngine).toBe(false);
  engine.update([withImages(true)]);
  expect(runner.machines).toEqual([]);
  expect(runner.hasUnavailableEngine).toBe(true);
  // Placed there by the previous process.
  expect(await runner.prepare({ ...attemptSpec('true'), machine: 'box' }, never)).toBeDefined();
  await engine.report([]);
  expect(runner.hasUnavailableEngine).toBe(false);
});
