/** Runners of clusters, over an engine that starts agents on this machine. */
import { describe, expect, test } from 'vitest';
import { agentRunner } from '../support/agent-runner.ts';
import { eventually } from '../support/eventually.ts';
import { LoopbackEngine } from '../support/loopback-engine.ts';
import { allLines, attemptSpec, runnerContract } from '../support/runner.contract.ts';

const never = new AbortController().signal;

/** The second runner uses the same engine, because this engine has no memory outside its process. */
function loopbackRunner() {
  let engine: LoopbackEngine | undefined;
  return agentRunner(async (dir) => {
    engine ??= new LoopbackEngine(dir);
    return engine;
  });
}

describe('agent', () => {
  runnerContract(loopbackRunner);
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
