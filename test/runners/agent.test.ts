/** Runners of clusters, over an engine that starts agents on this machine. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeAll, describe } from 'vitest';
import { buildAgent, PROGRAM } from '../../src/runners/agent/build.ts';
import { type AgentRunner, openAgentRunner } from '../../src/runners/agent/runner.ts';
import { LoopbackEngine, serveAgents } from '../support/loopback-engine.ts';
import { graceMs } from '../support/process-runner.ts';
import { runnerContract } from '../support/runner.contract.ts';

beforeAll(buildAgent);

async function agentRunner() {
  await using cleanup = new AsyncDisposableStack();
  const dir = await mkdtemp(join(tmpdir(), 'loam-agent-'));
  cleanup.defer(() => rm(dir, { recursive: true, force: true }));
  const engine = cleanup.use(new LoopbackEngine(join(dir, 'nodes')));
  let current: AgentRunner | undefined;
  const served = cleanup.use(
    await serveAgents(async (attempt) => current?.findSession(attempt), PROGRAM),
  );
  const open = async () => {
    // As when the process of the worker ends.
    served.server.closeAllConnections();
    current = await openAgentRunner({
      engine,
      name: 'loopback',
      dir: join(dir, 'attempts'),
      machine: 'loopback',
      maxJobs: 4,
      agentUrl: served.url,
      graceMs,
    });
    return current;
  };
  const runner = await open();
  cleanup.defer(async () => current?.sweep(new Set()));
  const owned = cleanup.move();
  return {
    runner,
    engine,
    served,
    again: open,
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}

describe('agent', () => {
  runnerContract(agentRunner);
});
