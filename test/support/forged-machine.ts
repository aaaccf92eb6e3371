/** A joined machine that is played by the test, which can send anything with its secret and the tokens of its attempts. */
import { randomUUID } from 'node:crypto';
import type {
  JoinAnswer,
  MachineOrders,
  machineReport,
} from '../../src/runners/machines/protocol.ts';
import { eventually } from './eventually.ts';

type Report = Parameters<typeof machineReport.parse>[0] & Record<string, unknown>;
type Response = { status: number; text: string };

export const FORGED_FACTS = {
  hostname: 'forged',
  os: 'linux',
  arch: 'x64',
  node: '22.0.0',
  program: '',
  cpus: 8,
  memoryBytes: 32 * 2 ** 30,
  gpus: [],
  withImage: true,
  withoutImage: true,
  slots: 4,
  notes: [],
};

async function send(method: string, url: string, init: RequestInit = {}): Promise<Response> {
  const response = await fetch(url, { method, ...init });
  return { status: response.status, text: await response.text() };
}

/** @param body JSON, or anything that can be JSON */
export function sendJoin(server: string, body: unknown): Promise<Response> {
  return send('POST', `${server}/machines/join`, {
    headers: { 'content-type': 'application/json' },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });
}

export async function forgeMachine(server: string, token: string, name: string) {
  const joined = await eventually(async () => {
    const answer = await sendJoin(server, { token, name, facts: FORGED_FACTS });
    // 503 while jobs of a machine that had the name are being ended.
    if (answer.status === 503) throw new Error(answer.text);
    return answer;
  });
  if (joined.status !== 201) throw new Error(joined.text);
  return new ForgedMachine(server, JSON.parse(joined.text));
}

class ForgedMachine {
  readonly id: string;
  readonly name: string;
  readonly secret: string;
  readonly #server: string;
  /** As the program does it: each report follows from the last orders. */
  seen = '';
  #sequence = 0;

  constructor(server: string, { id, name, secret }: JoinAnswer) {
    this.#server = server;
    this.id = id;
    this.name = name;
    this.secret = secret;
  }

  /** @param report changes of a report without attempts, or a text to send instead */
  send(
    report: Report | string = {},
    {
      instance = 'own',
      signal,
      secret = this.secret,
    }: {
      instance?: string;
      signal?: AbortSignal;
      secret?: string;
    } = {},
  ): Promise<Response> {
    const whole = {
      facts: FORGED_FACTS,
      load: { cpuPercent: 1, memoryBytes: 2 ** 30, gpuPercent: null },
      attempts: [],
      seen: this.seen,
      sequence: ++this.#sequence,
      ...(typeof report === 'string' ? {} : report),
    };
    return send(
      'POST',
      `${this.#server}/machines/${this.id}/poll?attempts=0&instance=${instance}`,
      {
        headers: { authorization: `Bearer ${secret}`, 'content-type': 'application/json' },
        body: typeof report === 'string' ? report : JSON.stringify(whole),
        ...(signal && { signal }),
      },
    );
  }

  /** Reports, and takes the orders, without waiting for others than it has seen. */
  async poll(report: Report = {}): Promise<MachineOrders> {
    const { status, text } = await this.send({ seen: '', ...report });
    if (status !== 200) throw new Error(`${status}: ${text}`);
    const orders: MachineOrders = JSON.parse(text);
    this.seen = orders.version;
    return orders;
  }

  /** Polls until it is given an attempt. */
  async take(): Promise<ForgedAttemptOnMachine> {
    for (;;) {
      const [attempt] = (await this.poll({ seen: this.seen })).attempts;
      if (attempt) return new ForgedAttemptOnMachine(this.#server, attempt);
    }
  }
}

class ForgedAttemptOnMachine {
  readonly id: string;
  readonly token: string;
  readonly nonce = randomUUID();
  readonly #server: string;

  constructor(server: string, { id, token }: { id: string; token: string }) {
    this.#server = server;
    this.id = id;
    this.token = token;
  }

  /** @param path of the protocol of agents, such as `POST claim` */
  send(
    path: string,
    {
      json,
      body,
      token = this.token,
      nonce = this.nonce,
    }: {
      json?: object;
      body?: string;
      token?: string;
      nonce?: string;
    } = {},
  ): Promise<Response> {
    const [method = '', rest] = path.split(' ');
    return send(method, `${this.#server}/agents/${this.id}/${rest}`, {
      headers: {
        authorization: `Bearer ${token}`,
        'loam-agent': nonce,
        ...(json && { 'content-type': 'application/json' }),
      },
      ...(json ? { body: JSON.stringify(json) } : body !== undefined ? { body } : {}),
    });
  }

  claim(options: { token?: string; nonce?: string } = {}) {
    const json = { nonce: options.nonce ?? this.nonce, node: 'forged' };
    return this.send('POST claim', { json, ...options });
  }

  /** Claims the attempt and begins with its command. */
  async begin(): Promise<void> {
    for (const { status, text } of [await this.claim(), await this.send('POST begin')])
      if (status !== 200) throw new Error(`${status}: ${text}`);
  }

  log(message: string, options: { token?: string; nonce?: string } = {}) {
    return this.send('PUT log?offset=0', { body: `${Date.now()} o ${message}\n`, ...options });
  }

  exit(exitCode: number, options: { token?: string; nonce?: string } = {}) {
    const now = Date.now();
    const times = { startedAt: now, endedAt: now };
    const exit = { exitCode, timedOut: false, ...times, unstartable: false, logBytes: 0 };
    return this.send('POST report', { json: { exit }, ...options });
  }
}
