/** Runners of clusters, over an engine that starts agents on this machine. */
import { describe } from 'vitest';
import { agentRunner } from '../support/agent-runner.ts';
import { LoopbackEngine } from '../support/loopback-engine.ts';
import { runnerContract } from '../support/runner.contract.ts';

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
