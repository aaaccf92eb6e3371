/**
 * A cluster engine whose only node is this machine: it starts agents as processes. It forgets nothing, and shares no code with
 * real engines.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import type { Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import express from 'express';
import { errorEdge } from '../../src/api/http/server.ts';
import { createLog, type Logger } from '../../src/base/log.ts';
import { ServerUnavailable } from '../../src/cluster/cluster.ts';
import { createHttpServer } from '../../src/platform/web/connections.ts';
import { buildBootstrap } from '../../src/runners/agent/bootstrap.ts';
import type { EngineState, SharingEngine, Submission } from '../../src/runners/agent/engine.ts';
import { isExecUpgrade, serveExecUpgrade } from '../../src/runners/agent/exec-upgrades.ts';
import { createAgentsRouter } from '../../src/runners/agent/http.ts';
import type { AgentRunner } from '../../src/runners/agent/runner.ts';
import { removeTree } from '../../src/runners/supervisor/removal.ts';

/** Time between SIGTERM and SIGKILL. */
const KILL_WAIT_MS = 2_000;

const never = new AbortController().signal;

type Agent = { child: ChildProcess; state: EngineState; dir: string; stderr: string };

export class LoopbackEngine implements SharingEngine {
  readonly title = 'Loopback';
  readonly gpuSetting = 'LOAM_SLURM_GPUS';
  readonly capacity = { cpus: 2, memoryBytes: 4 * 2 ** 30, gpus: {}, withImage: false };
  readonly unavailableReason = undefined;
  readonly agents = new Map<string, Agent>();
  readonly #dir: string;
  readonly #nodeOptions: readonly string[];
  readonly #removals = new Set<Promise<void>>();
  #changed = Promise.withResolvers<void>();

  /**
   * @param dir the folders of nodes
   * @param nodeOptions for the agents' Node
   */
  constructor(dir: string, nodeOptions: readonly string[] = []) {
    this.#dir = dir;
    this.#nodeOptions = nodeOptions;
  }

  async submit({ attempt, agent }: Submission): Promise<void> {
    if (this.agents.has(attempt)) return;
    const dir = join(this.#dir, attempt);
    await mkdir(dir, { recursive: true });
    const script = buildBootstrap({
      url: agent.url,
      attempt,
      expressions: {
        token: JSON.stringify(agent.token),
        dir: JSON.stringify(join(dir, 'agent')),
        jobDir: JSON.stringify(dir),
      },
    });
    const child = spawn(process.execPath, [...this.#nodeOptions, '--input-type=module', '-'], {
      stdio: ['pipe', 'ignore', 'pipe'],
      detached: true,
    });
    const agentProcess: Agent = { child, state: { kind: 'running' }, dir, stderr: '' };
    child.stderr?.setEncoding('utf8').on('data', (text) => {
      agentProcess.stderr += text;
    });
    child.stdin?.end(script);
    this.agents.set(attempt, agentProcess);
    child.once('exit', (code) => {
      const reason = `the agent ended with ${code}: ${agentProcess.stderr}`;
      agentProcess.state = {
        kind: 'ended',
        end: { exitCode: null, outOfMemory: false, isLoss: true, reason },
      };
      this.#notify();
    });
    this.#notify();
  }

  state(attempt: string): EngineState {
    return this.agents.get(attempt)?.state ?? { kind: 'unknown' };
  }

  async nextChange(_attempt: string, signal: AbortSignal): Promise<void> {
    const aborted = new Promise<void>((resolve) =>
      signal.addEventListener('abort', () => resolve(), { once: true }),
    );
    await Promise.race([this.#changed.promise, aborted]);
  }

  describe() {
    return { node: 'here', inspect: 'ps' };
  }

  async remove(attempt: string): Promise<void> {
    const agent = this.agents.get(attempt);
    if (!agent) return;
    this.agents.delete(attempt);
    const removed = this.#end(agent);
    this.#removals.add(removed);
    void removed.then(() => this.#removals.delete(removed));
  }

  /** SIGKILL follows SIGTERM, as in Slurm. */
  async #end({ child, state, dir }: Agent): Promise<void> {
    if (state.kind !== 'ended') {
      const exited = once(child, 'exit');
      child.kill('SIGTERM');
      const timer = setTimeout(() => child.kill('SIGKILL'), KILL_WAIT_MS);
      await exited;
      clearTimeout(timer);
    }
    await removeTree(dir);
  }

  async list(): Promise<string[]> {
    return [...this.agents.keys()];
  }

  #notify(): void {
    this.#changed.resolve();
    this.#changed = Promise.withResolvers();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const attempt of this.agents.keys()) await this.remove(attempt);
    await Promise.all(this.#removals);
  }
}

const AGENT_SERVICES = {
  findWorker: async (_attempt: string): Promise<string | null> => null,
  forwardTo: async (_worker: string): Promise<void> => {},
  isDiskLow: () => false,
  closing: never,
};

export type AgentServices = Partial<typeof AGENT_SERVICES> & {
  host?: string | undefined;
  /** Further routes. */
  routes?: express.Router;
  log?: Logger;
};

/** Serves the routes for agents on a free port. */
export async function serveAgents(
  findSession: AgentRunner['findSession'],
  program: string,
  { host = '127.0.0.1', log = createLog('silent'), routes, ...services }: AgentServices = {},
): Promise<AsyncDisposable & { url: string; server: Server }> {
  if (!existsSync(program)) throw new Error(`${program} is not built`);
  const app = express();
  app.use((req, _res, next) => {
    req.id = 'test';
    next();
  });
  if (routes) app.use(routes);
  app.use(createAgentsRouter({ ...AGENT_SERVICES, findSession, program, ...services }));
  app.use(errorEdge(log));
  const server = createHttpServer(async () => ({}), {}, isExecUpgrade).on('request', app);
  const openTunnel = async () => Promise.reject(new ServerUnavailable('there is no other server'));
  const connections = { ...AGENT_SERVICES, findSession, openTunnel, log, ...services };
  server.on('upgrade', (req, socket) => void serveExecUpgrade(connections, req, socket));
  await new Promise<void>((resolve) => server.listen(0, host, resolve));
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://${host}:${port}`,
    server,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
