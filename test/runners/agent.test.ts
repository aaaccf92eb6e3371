/** Runners of clusters, over an engine that starts agents on this machine. */
import { text } from 'node:stream/consumers';
import { describe, expect, test } from 'vitest';
import type { EngineEnd } from '../../src/runners/agent/engine.ts';
import { ArtifactsLost, AttemptLost, type Handle, type Runner } from '../../src/runners/runner.ts';
import { listMarkedPids } from '../../src/runners/supervisor/proc.ts';
import { agentRunner } from '../support/agent-runner.ts';
import { eventually } from '../support/eventually.ts';
import { execContract } from '../support/exec.contract.ts';
import { LoopbackEngine } from '../support/loopback-engine.ts';
import {
  allLines,
  attemptSpec,
  filesContract,
  runnerContract,
  runToEnd,
} from '../support/runner.contract.ts';

const never = new AbortController().signal;

/** The second runner uses the same engine, because this engine has no memory outside its process. */
function loopbackRunner({ node, ...options }: { leaseMs?: number; node?: string[] } = {}) {
  let engine: LoopbackEngine | undefined;
  return agentRunner(async (dir) => {
    engine ??= new LoopbackEngine(dir, node);
    return engine;
  }, options);
}

async function firstLine(runner: Runner, handle: Handle): Promise<void> {
  for await (const _ of runner.logs(handle, null, never)) return;
}

/** Waits until the command can have others beside it. */
async function firstSession(runner: Runner, handle: Handle): Promise<void> {
  const spec = { command: 'true', env: {}, terminal: null };
  await eventually(async () => expect(await (await runner.exec?.(handle, spec))?.exited).toBe(0));
}

describe('agent', () => {
  runnerContract(loopbackRunner);
  filesContract(loopbackRunner);
  execContract(loopbackRunner);

  test('a hundred sessions at once', async () => {
    await using made = await loopbackRunner();
    const handle = await made.runner.prepare(attemptSpec('sleep 600 & wait'), never);
    await made.runner.start(handle);
    await firstSession(made.runner, handle);
    const ask = async (index: number) => {
      const spec = { command: `read -r word; echo "$word ${index}"; exit ${index}`, env: {} };
      const session = await made.runner.exec?.(handle, { ...spec, terminal: null });
      session?.stdin.end('hello\n');
      return [session && (await text(session.stdout)), await session?.exited];
    };
    const answers = await Promise.all(Array.from({ length: 100 }, (_, index) => ask(index)));
    expect(answers).toEqual(answers.map((_, index) => [`hello ${index}\n`, index]));
  });

  test('an attempt that the engine ends is lost, although its command reports an exit code', async () => {
    await using made = await loopbackRunner();
    // The shell may say on its second stream that SIGTERM has ended sleep.
    const command =
      'exec 2>/dev/null; trap "echo ended; exit 0" TERM; echo up; while :; do sleep 0.1; done';
    const handle = await made.runner.prepare(attemptSpec(command), never);
    await made.runner.start(handle);
    const outcome = made.runner.wait(handle, never);
    await firstLine(made.runner, handle);
    made.engine.agents.get(String(handle.attempt))?.child.kill('SIGTERM');
    expect(await outcome).toEqual({ kind: 'lost' });
    // Some shells also report the end of their child.
    const lines = await allLines(made.runner, handle);
    expect(lines.filter((line) => line !== 'Terminated')).toEqual(['up', 'ended']);
  });

  const lossesBeforeBegin: [string, Partial<EngineEnd>][] = [
    ['a loss', { isLoss: true }],
    [
      'the exit code of a job that the engine could not start',
      { exitCode: 1, mayBeStartFailure: true },
    ],
  ];
  test.for(lossesBeforeBegin)(
    'before its command begins, an attempt is lost by %s, although its agent still runs',
    async ([, how]) => {
      await using made = await loopbackRunner();
      const handle = await made.runner.prepare(attemptSpec('true'), never);
      const started = made.runner.start(handle);
      const agent = await eventually(() => {
        const [found] = made.engine.agents.values();
        if (!found) throw new Error('no agent was started');
        return found;
      });
      agent.child.kill('SIGSTOP');
      const unknown = { exitCode: null, outOfMemory: false, isLoss: false, reason: 'none' };
      agent.state = { kind: 'running', commandEnd: { ...unknown, ...how } };
      await expect(started).rejects.toThrow(new AttemptLost('Loopback: none'));
    },
  );

  test('an agent that ends before its claim leaves its last output in the reason', async () => {
    await using made = await loopbackRunner({
      node: [
        '--import',
        'data:text/javascript,Object.defineProperty(process.versions, "node", { value: "18.20.4" })',
      ],
    });
    const handle = await made.runner.prepare(attemptSpec('true'), never);
    await expect(made.runner.start(handle)).rejects.toThrow(
      /^Loopback: the agent ended with 69: Loam needs Node\.js 22 or later, and this is v/,
    );
  });

  test('a GPU that the cluster does not have is refused with a reason', async () => {
    await using made = await loopbackRunner();
    const spec = attemptSpec('true');
    spec.hardware = { ...spec.hardware, gpu: 'T4' };
    await expect(made.runner.prepare(spec, never)).rejects.toThrow(
      'Loopback has no T4 here. The operator names its GPUs in LOAM_SLURM_GPUS.',
    );
  });

  test('artifacts that the agent had not sent when its node died are lost', async () => {
    await using made = await loopbackRunner();
    const { runner, engine } = made;
    const { handle, outcome } = await runToEnd(runner, attemptSpec('mkdir out; echo x >out/x'));
    expect(outcome).toMatchObject({ exitCode: 0 });
    engine.agents.get(String(handle.attempt))?.child.kill('SIGKILL');
    await expect(runner.artifacts(handle, 'out')).rejects.toThrow(ArtifactsLost);
  });

  test('an agent kills its command at the end of its lease, even while a request has no answer', async () => {
    // An agent's reports renew the lease until the test cuts the connection, also if the machine pauses for seconds.
    await using made = await loopbackRunner({ leaseMs: 15_000 });
    const { runner, served } = made;
    const handle = await runner.prepare(attemptSpec('echo up; exec sleep 600'), never);
    await runner.start(handle);
    await firstLine(runner, handle);
    const isRunning = () => listMarkedPids(String(handle.attempt)).length > 0;
    expect(isRunning()).toBe(true);
    served.server.removeAllListeners('request');
    served.server.closeAllConnections();
    await eventually(() => expect(isRunning()).toBe(false));
  });
});

test('an attempt that waits in the cluster keeps its place when the worker is restarted', async () => {
  let engine: LoopbackEngine | undefined;
  await using made = await agentRunner(async (dir) => {
    engine ??= new LoopbackEngine(dir);
    return engine;
  });
  const spec = attemptSpec('echo ran');
  const stopping = new AbortController();
  const handle = await made.runner.prepare(spec, never);
  const waiting = made.runner.start(handle, async () => false, { signal: stopping.signal });
  await eventually(() => expect(engine?.agents.size).toBe(1));
  const [submitted] = engine?.agents.values() ?? [];
  stopping.abort();
  expect(await waiting).toBe(false);
  const restarted = await made.again();
  // No handle was stored, so the worker prepares the attempt again.
  const again = await restarted.prepare(spec, never);
  expect(await restarted.start(again)).toBe(true);
  expect(await allLines(restarted, again)).toEqual(['ran']);
  expect([...(engine?.agents.values() ?? [])]).toEqual([submitted]);
});
