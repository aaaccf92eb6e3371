/** A joined machine: the real worker program as a process of this machine, and a server for its requests. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import express from 'express';
import { CONTRACT } from '../../src/base/hardware.ts';
import { closeSignal } from '../../src/platform/web/connections.ts';
import { PROGRAM_PATH } from '../../src/runners/agent/program.ts';
import { LEASE_MS } from '../../src/runners/agent/protocol.ts';
import {
  type AgentRunner,
  openAgentRunner,
  readSubmissions,
} from '../../src/runners/agent/runner.ts';
import { type MachineSettings, MachinesEngine } from '../../src/runners/machines/engine.ts';
import {
  type JoinAnswer,
  joinRequest,
  type MachineOrders,
  type MachineReport,
  machineReport,
} from '../../src/runners/machines/protocol.ts';
import { LOCAL_MACHINE } from '../../src/runners/runner.ts';
import { eventually } from './eventually.ts';
import type { Loam } from './harness.ts';
import { serveAgents } from './loopback-engine.ts';

const WORKER = join(import.meta.dirname, '../../src/runners/worker/worker.ts');

export type MachineProcess = AsyncDisposable & {
  readonly pid: number | undefined;
  /** What the program has printed. */
  readonly said: string;
  start(): void;
  /** Resolves with the exit code when the program has ended; null: by a signal. */
  end(signal: NodeJS.Signals): Promise<number | null>;
  readonly exited: Promise<number | null>;
};

/** Starts the worker program. Disposing of it leaves its jobs running. */
export function startMachine(options: {
  server: string;
  /** The folder of the program. */
  dir: string;
  token?: string;
  name?: string;
  env?: Record<string, string>;
  /** The start of its command line. */
  wrapper?: readonly string[];
}): MachineProcess {
  const { server, dir, token, name, env, wrapper = [] } = options;
  const args = ['--server', server, '--data', dir];
  if (token !== undefined) args.push('--token', token);
  if (name !== undefined) args.push('--name', name);
  let child: ChildProcess;
  let exited: Promise<number | null>;
  let said = '';
  const start = () => {
    const [program = '', ...words] = [...wrapper, process.execPath, WORKER, ...args];
    child = spawn(program, words, {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, LOAM_LOG_LEVEL: 'warn', ...env },
    });
    for (const stream of [child.stdout, child.stderr])
      stream?.setEncoding('utf8').on('data', (text) => {
        said += text;
      });
    exited = once(child, 'exit').then(([code]) => code);
  };
  start();
  const end = async (signal: NodeJS.Signals) => {
    child.kill(signal);
    return exited;
  };
  return {
    get pid() {
      return child.pid;
    },
    get said() {
      return said;
    },
    get exited() {
      return exited;
    },
    start,
    end,
    [Symbol.asyncDispose]: async () => void (await end('SIGTERM')),
  };
}

/** A machine that has joined with a new token of the operator, and reports. */
export async function joinMachine(
  { admin, base }: Pick<Loam, 'admin' | 'base'>,
  options: { dir: string; name: string; env?: Record<string, string> },
): Promise<MachineProcess> {
  const { createWorkerToken } = await admin.gql(
    'mutation ($input: CreateWorkerTokenInput!) { createWorkerToken(input: $input) { token } }',
    { input: { name: options.name } },
  );
  const machine = startMachine({ server: base, token: createWorkerToken.token, ...options });
  const query = 'query ($name: String!) { machine(name: $name) { status } }';
  await eventually(async () => {
    const { data } = await admin.graphql(query, { name: options.name });
    if (data?.machine?.status !== 'ONLINE') throw new Error(`not joined: ${machine.said}`);
  });
  return machine;
}

/** @param options.env for the program */
export async function joinedMachine({
  leaseMs = LEASE_MS,
  env = {},
}: {
  leaseMs?: number;
  env?: Record<string, string>;
} = {}) {
  const cleanup = new AsyncDisposableStack();
  const dir = await mkdtemp(join(tmpdir(), 'loam-joined-'));
  cleanup.defer(() => rm(dir, { recursive: true, force: true, maxRetries: 5 }));
  const attemptsDir = join(dir, 'server');
  let engine: MachinesEngine | undefined;
  let runner: AgentRunner | undefined;
  /** What the database would say, beside the facts. */
  const settings: Omit<MachineSettings, 'facts'> = {
    id: 'mch_1',
    name: LOCAL_MACHINE,
    instance: '',
    namespaceId: null,
    regions: [],
    drainSince: null,
    drainDeadline: null,
  };
  /** The last report, and the number of attempts that may still run. */
  let polled: { count: number; attempts: MachineReport['attempts'] } | undefined;
  const routes = express.Router();
  routes.use(express.json());
  routes.post('/machines/join', (req, res) => {
    joinRequest.parse(req.body);
    res.json({ id: 'mch_1', name: LOCAL_MACHINE, secret: 'secret' } satisfies JoinAnswer);
  });
  routes.post('/machines/mch_1/poll', async (req, res) => {
    const report = machineReport.parse(req.body);
    polled = { count: Number(req.query.attempts), attempts: report.attempts };
    const orders = await engine?.poll(
      { ...settings, facts: report.facts },
      report,
      closeSignal(res),
    );
    if (orders) res.json(orders satisfies MachineOrders);
    else res.status(503).end();
  });
  const served = cleanup.use(
    await serveAgents(async (id) => runner?.findSession(id), PROGRAM_PATH, { routes }),
  );
  const machine = cleanup.use(
    startMachine({ server: served.url, dir: join(dir, 'machine'), token: 'token', env }),
  );
  const open = async () => {
    await engine?.[Symbol.asyncDispose]();
    engine = new MachinesEngine(await readSubmissions(attemptsDir), {
      program: '',
      hardware: { current: CONTRACT },
    });
    runner = await openAgentRunner({
      engine,
      name: 'joined',
      dir: attemptsDir,
      placement: engine,
      agentUrl: '',
      leaseMs,
    });
    cleanup.use(runner);
    served.server.closeAllConnections();
    await eventually(async () => {
      if (engine?.machines.length !== 1) throw new Error('the machine has not reported');
    });
    return runner;
  };
  await open();
  return {
    settings,
    get engine() {
      return engine as MachinesEngine;
    },
    get runner() {
      return runner as AgentRunner;
    },
    served,
    /** As when the worker of the server is restarted. */
    reopen: open,
    machine,
    /** The folder of the program. */
    dir: join(dir, 'machine'),
    get polled() {
      return polled;
    },
    async [Symbol.asyncDispose]() {
      await runner?.sweep(new Set());
      await cleanup.disposeAsync();
    },
  };
}

/** For the contract of runners: one machine for all its tests. */
export function sharedMachine(options: Parameters<typeof joinedMachine>[0] = {}) {
  let machine: ReturnType<typeof joinedMachine> | undefined;
  return {
    async open() {
      machine ??= joinedMachine(options);
      const made = await machine;
      return {
        runner: made.runner,
        again: () => made.reopen(),
        [Symbol.asyncDispose]: () => made.runner.sweep(new Set()),
      };
    },
    async [Symbol.asyncDispose]() {
      await (await machine)?.[Symbol.asyncDispose]();
    },
  };
}
