/** A runner of a cluster whose agents are played by the test, which can send anything with the token of an attempt. */
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { pino } from 'pino';
import { requestUpgrade } from '../../src/platform/upgrades.ts';
import {
  type EngineState,
  oneMachine,
  type SharingEngine,
  type Submission,
} from '../../src/runners/agent/engine.ts';
import { type AgentControl, EXEC_PROTOCOL, LEASE_MS } from '../../src/runners/agent/protocol.ts';
import { type AgentRunner, openAgentRunner } from '../../src/runners/agent/runner.ts';
import type { AttemptSpec, Handle, MayBegin } from '../../src/runners/runner.ts';
import { eventually } from './eventually.ts';
import { type AgentServices, serveAgents } from './loopback-engine.ts';
import { attemptSpec } from './runner.contract.ts';

const never = new AbortController().signal;

/** What the test sends. `nonce` and `token`: of another agent. */
export type Sent = Omit<RequestInit, 'body'> & {
  body?: string | Uint8Array<ArrayBuffer> | ReadableStream;
  json?: unknown;
  token?: string | null;
  nonce?: string;
};

export class ForgedAttempt {
  readonly id: string;
  readonly handle: Handle;
  readonly token: string;
  readonly nonce = randomUUID();
  /** What `start` of the runner returns. */
  readonly started: Promise<boolean>;
  readonly #url: string;

  constructor(url: string, handle: Handle, { agent }: Submission, started: Promise<boolean>) {
    this.id = String(handle.attempt);
    this.handle = handle;
    this.token = agent.token;
    this.started = started;
    this.#url = url;
  }

  async send(
    method: string,
    path: string,
    { json, token = this.token, nonce = this.nonce, headers, body, ...init }: Sent = {},
  ): Promise<{ status: number; text: string }> {
    const response = await fetch(`${this.#url}/agents/${this.id}/${path}`, {
      method,
      headers: {
        ...(token !== null && { authorization: `Bearer ${token}` }),
        'loam-agent': nonce,
        ...(json !== undefined && { 'content-type': 'application/json' }),
        ...headers,
      },
      body: json === undefined ? body : JSON.stringify(json),
      ...(body instanceof ReadableStream && { duplex: 'half' }),
      ...init,
    });
    return { status: response.status, text: await response.text() };
  }

  /** Sends the begin of a body, and cuts the connection when `until` has settled. */
  async cut(path: string, begin: string | Uint8Array, until?: Promise<unknown>): Promise<void> {
    const { host, hostname, port, pathname } = new URL(`${this.#url}/agents/${this.id}/`);
    const socket = connect(Number(port), hostname);
    await once(socket, 'connect');
    const headers = [`host: ${host}`, `authorization: Bearer ${this.token}`];
    headers.push(`loam-agent: ${this.nonce}`, 'content-length: 100000');
    socket.write(`PUT ${pathname}${path} HTTP/1.1\r\n${headers.join('\r\n')}\r\n\r\n`);
    socket.write(begin);
    await until;
    socket.destroy();
    await once(socket, 'close');
  }

  /** Opens a connection for a command beside that of the job. @throws Error with the status of a refusal */
  connectExec(session: string, { token = this.token, nonce = this.nonce }: Sent = {}) {
    return requestUpgrade(`${this.#url}/agents/${this.id}/exec?session=${session}`, {
      protocol: EXEC_PROTOCOL,
      headers: { authorization: `Bearer ${token}`, 'loam-agent': nonce },
      signal: never,
      timeoutMs: 10_000,
    });
  }

  /** The ids of the sessions that the worker waits for. */
  async wantedExecs(count = 1): Promise<string[]> {
    return eventually(async () => {
      const { text } = await this.send('GET', 'control?can=exec');
      const { execs = [] }: AgentControl = JSON.parse(text);
      if (execs.length !== count) throw new Error(`${execs.length} sessions are wanted`);
      return execs.map(({ session }) => session);
    });
  }

  claim(node = 'n1', sent: Sent = {}) {
    const nonce = sent.nonce ?? this.nonce;
    return this.send('POST', 'claim', { json: { nonce, node }, ...sent });
  }

  log(offset: number | string, frames: string | Uint8Array<ArrayBuffer>, sent: Sent = {}) {
    return this.send('PUT', `log?offset=${offset}`, { body: frames, ...sent });
  }

  report(json: unknown, sent: Sent = {}) {
    return this.send('POST', 'report', { json, ...sent });
  }

  exit(changes: Record<string, unknown> = {}) {
    const now = Date.now();
    const exit = { exitCode: 0, timedOut: false, startedAt: now, endedAt: now };
    return this.report({ exit: { ...exit, unstartable: false, logBytes: 0, ...changes } });
  }
}

/** @returns frames of the log with the present time */
export function framesOf(...lines: string[]): string {
  return lines.map((line) => `${Date.now()} o ${line}\n`).join('');
}

/** @param options.dir instead of a folder of its own */
export async function openForger({
  dir: given,
  ...services
}: AgentServices & { dir?: string } = {}) {
  const cleanup = new AsyncDisposableStack();
  const dir = given ?? (await mkdtemp(join(tmpdir(), 'loam-forger-')));
  if (!given) cleanup.defer(() => rm(dir, { recursive: true, force: true }));
  const submissions = new Map<string, Submission>();
  const states = new Map<string, EngineState>();
  const engine: SharingEngine = {
    title: 'Forged',
    capacity: { cpus: 2, memoryBytes: 2 ** 32, gpus: {}, withImage: false },
    submit: async (submission) => void submissions.set(submission.attempt, submission),
    state: (id) => states.get(id) ?? { kind: 'running' },
    nextChange: (_id, signal) =>
      new Promise((resolve) => {
        signal.addEventListener('abort', () => resolve(), { once: true });
      }),
    describe: () => ({ node: 'n1', inspect: 'look' }),
    remove: async () => {},
    list: async () => [],
    [Symbol.asyncDispose]: async () => {},
  };
  /** Messages of the log of the server. */
  const logged: string[] = [];
  const sink = new Writable({
    write(chunk, _encoding, done) {
      logged.push(String(chunk));
      done();
    },
  });
  let current: AgentRunner | undefined;
  const server = cleanup.use(
    await serveAgents(async (id) => current?.findSession(id), import.meta.filename, {
      log: pino(sink),
      ...services,
    }),
  );
  const open = async () => {
    current = cleanup.use(
      await openAgentRunner({
        engine,
        name: 'forged',
        dir: join(dir, 'attempts'),
        placement: oneMachine(engine, { id: 'forged', maxJobs: 100 }),
        agentUrl: server.url,
        leaseMs: LEASE_MS,
      }),
    );
    return current;
  };
  const runner = await open();
  return {
    dir,
    runner,
    states,
    logged,
    url: server.url,
    /** A runner for the same attempts, as after a restart. */
    again: open,
    /** An attempt that waits for its agent. */
    async submit(
      mayBegin: MayBegin = async () => true,
      changes: Partial<AttemptSpec> = {},
    ): Promise<ForgedAttempt> {
      const handle = await runner.prepare(attemptSpec('true', changes), never);
      const abort = new AbortController();
      cleanup.defer(async () => abort.abort());
      const started = runner.start(handle, mayBegin, { signal: abort.signal });
      started.catch(() => {});
      const submission = await eventually(() => {
        const found = submissions.get(String(handle.attempt));
        if (!found) throw new Error('the attempt was not submitted');
        return found;
      });
      return new ForgedAttempt(server.url, handle, submission, started);
    },
    /** An attempt whose command runs. */
    async begin(changes: Partial<AttemptSpec> = {}): Promise<ForgedAttempt> {
      const attempt = await this.submit(undefined, changes);
      await attempt.claim();
      await attempt.send('POST', 'begin');
      await attempt.started;
      return attempt;
    },
    [Symbol.asyncDispose]: () => cleanup.disposeAsync(),
  };
}
