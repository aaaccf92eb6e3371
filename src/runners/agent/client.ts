/** The agent's requests to the worker, each repeated until it is answered, and the lease that follows from the answers. */
import { execFile } from 'node:child_process';
import { uptime } from 'node:os';
import { type Duplex, Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { Backoff } from '../../base/backoff.ts';
import { requestUpgrade } from '../../platform/upgrades.ts';
import { EXEC_KEEPALIVE_MS, EXEC_PROTOCOL, NONCE_HEADER } from './protocol.ts';

const PAUSES = { firstMs: 100, longestMs: 5_000 };
/** Longer than a `control` request, and than a slow transfer of a part of the log. */
const REQUEST_TIMEOUT_MS = 60_000;
const UPGRADE_TIMEOUT_MS = 10_000;

/** The worker refuses the agent for good: the attempt is over, or another agent has it. */
export class Refused extends Error {
  override name = 'Refused';
}

export function leaseIsOver(): Refused {
  return new Refused('no server has answered for the time of the lease');
}

export type AgentClientOptions = {
  /** URL of the attempt's requests, without a trailing slash. */
  url: string;
  token: string;
  nonce: string;
  leaseMs: number;
  /**
   * When a request was sent that the server has answered, in seconds as of `os.uptime()`, by an earlier process; default: now.
   */
  answeredAt?: number | undefined;
  /** Called at each later one. */
  onAnswered?(answeredAt: number): void;
};

type RequestOptions = {
  method?: 'GET' | 'POST' | 'PUT';
  json?: object;
  body?: Uint8Array | ReadableStream;
  signal?: AbortSignal;
  /** Null: the transfer may take any time. */
  timeoutMs?: number | null;
};

export class AgentClient {
  /** After this time without an answer the agent gives up. */
  leaseMs: number;
  readonly #options: AgentClientOptions;
  /** Seconds of the clock that runs while the machine is suspended. */
  #lastSuccessAt: number;

  constructor(options: AgentClientOptions) {
    this.leaseMs = options.leaseMs;
    this.#lastSuccessAt = options.answeredAt ?? uptime();
    this.#options = options;
  }

  /** Whether the worker may have given the attempt up, because it has not answered for the time of the lease. */
  get isLeaseOver(): boolean {
    return (uptime() - this.#lastSuccessAt) * 1_000 > this.leaseMs;
  }

  /**
   * Unpacks the contents of the working directory and the home folder of the job into existing empty folders.
   * @param spec.hasHome as of `AgentSpec`
   */
  async checkOut(
    { work, home }: { work: string; home: string },
    { hasHome }: { hasHome?: true },
    signal: AbortSignal,
  ): Promise<void> {
    await this.#receiveFolder('checkout', work, signal);
    if (hasHome) await this.#receiveFolder('checkout?folder=home', home, signal);
  }

  async #receiveFolder(path: string, dir: string, signal: AbortSignal): Promise<void> {
    const response = await this.request(path, { signal, timeoutMs: null });
    if (response.status === 204 || !response.body) return;
    const tar = execFile('tar', ['-xf', '-', '--no-same-owner', '-C', dir]);
    const ended = new Promise<void>((resolve, reject) => {
      tar.once('error', reject);
      tar.once('exit', (code) => (code === 0 ? resolve() : reject(new Error(`tar: ${code}`))));
    });
    ended.catch(() => {});
    if (tar.stdin) await pipeline(Readable.fromWeb(response.body as never), tar.stdin, { signal });
    await ended;
  }

  /**
   * Repeats the request until it succeeds.
   * @throws Refused when the worker refuses it for good or the lease is over; the reason of `signal` when it aborts
   */
  async request(path: string, options: RequestOptions = {}): Promise<Response> {
    const backoff = new Backoff(PAUSES);
    for (;;) {
      const response = await this.requestOnce(path, options).catch((error) => {
        if (error instanceof Refused) throw error;
      });
      if (response) return response;
      options.signal?.throwIfAborted();
      if (this.isLeaseOver) throw leaseIsOver();
      await backoff.pause(options.signal);
      options.signal?.throwIfAborted();
    }
  }

  /** @throws Refused when the worker refuses the request for good; another error when it may be repeated */
  async requestOnce(
    path: string,
    { method = 'GET', json, body, signal, timeoutMs = REQUEST_TIMEOUT_MS }: RequestOptions = {},
  ): Promise<Response> {
    const { url } = this.#options;
    const signals = [signal, timeoutMs === null ? undefined : AbortSignal.timeout(timeoutMs)];
    // The worker counts the lease from its answer, so the agent, which must be earlier, counts from the request.
    const sentAt = uptime();
    const response = await fetch(`${url}/${path}`, {
      method,
      headers: {
        ...this.#credentials,
        'content-type': json ? 'application/json' : 'application/octet-stream',
      },
      body: json ? JSON.stringify(json) : (body as BodyInit | undefined),
      // Needed for a stream, and not in the type of the option.
      ...(body instanceof ReadableStream && { duplex: 'half' }),
      signal: AbortSignal.any(signals.filter((one) => one !== undefined)),
    });
    if (response.ok) {
      this.#lastSuccessAt = Math.max(this.#lastSuccessAt, sentAt);
      this.#options.onAnswered?.(this.#lastSuccessAt);
      return response;
    }
    const message = await response.text();
    // Any other status, such as 404 or 502, may come from a proxy while the worker restarts.
    if ([401, 409, 410, 413, 422].includes(response.status))
      throw new Refused(`${response.status}: ${message}`);
    throw new Error(`${response.status}: ${message}`);
  }

  /** @throws Error when the server did not accept the connection */
  async upgrade(path: string, signal: AbortSignal): Promise<Duplex> {
    const socket = await requestUpgrade(`${this.#options.url}/${path}`, {
      protocol: EXEC_PROTOCOL,
      headers: this.#credentials,
      signal,
      timeoutMs: UPGRADE_TIMEOUT_MS,
    });
    socket.setKeepAlive(true, EXEC_KEEPALIVE_MS);
    return socket;
  }

  get #credentials(): Record<string, string> {
    const { token, nonce } = this.#options;
    return { authorization: `Bearer ${token}`, [NONCE_HEADER]: nonce };
  }
}
