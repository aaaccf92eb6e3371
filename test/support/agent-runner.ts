/** A runner of a cluster for the contract of runners, with a server for its agents. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { oneMachine, type SharingEngine } from '../../src/runners/agent/engine.ts';
import { PROGRAM_PATH } from '../../src/runners/agent/program.ts';
import { LEASE_MS } from '../../src/runners/agent/protocol.ts';
import { type AgentRunner, openAgentRunner } from '../../src/runners/agent/runner.ts';
import { GRACE_MS } from '../../src/runners/runner.ts';
import { serveAgents } from './loopback-engine.ts';

/**
 * @param openEngine called again for a second runner, as when the worker is restarted; it gets a folder for the nodes
 * @param options.graceMs short only for commands that ignore SIGTERM: on a busy machine, others would get SIGKILL first
 * @param options.host address of this machine at which the nodes reach the worker
 */
export async function agentRunner<E extends SharingEngine>(
  openEngine: (nodesDir: string) => Promise<E>,
  {
    leaseMs = LEASE_MS,
    graceMs = GRACE_MS,
    host,
  }: { leaseMs?: number; graceMs?: number; host?: string | undefined } = {},
) {
  const cleanup = new AsyncDisposableStack();
  const dir = await mkdtemp(join(tmpdir(), 'loam-agent-'));
  cleanup.defer(() => rm(dir, { recursive: true, force: true, maxRetries: 5 }));
  let current: AgentRunner | undefined;
  const served = cleanup.use(
    await serveAgents(async (attempt) => current?.findSession(attempt), PROGRAM_PATH, { host }),
  );
  const open = async () => {
    const engine = await openEngine(join(dir, 'nodes'));
    current = cleanup.use(
      await openAgentRunner({
        engine,
        name: 'cluster',
        dir: join(dir, 'attempts'),
        placement: oneMachine(engine, { id: 'cluster', maxJobs: 4 }),
        agentUrl: served.url,
        graceMs,
        leaseMs,
      }),
    );
    // As when the process of the worker ends. Agents connect again to the new runner.
    served.server.closeAllConnections();
    return { runner: current, engine };
  };
  const { runner, engine } = await open();
  // Before the runners are disposed, which were opened later.
  const sweep = async () => current?.sweep(new Set());
  return {
    runner,
    engine,
    served,
    again: async () => (await open()).runner,
    async [Symbol.asyncDispose]() {
      await sweep();
      await cleanup.disposeAsync();
    },
  };
}
