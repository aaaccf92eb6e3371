/**
 * Request counters that all servers share, in Redis or Valkey. Each one has a local counter as a fallback, used from the
 * first error until Redis works again, so that an outage of Redis never causes a refused request.
 */
import type { Redis } from 'ioredis';
import { RateLimiterMemory, RateLimiterRedis } from 'rate-limiter-flexible';
import type { RedisConfig } from '../../base/config/config.ts';
import type { Logger } from '../../base/log.ts';

/** A later reply counts as an error. Redis usually replies in 0.3 ms. */
const REPLY_TIMEOUT_MS = 200;
const CONNECT_MS = 1_000;
/** Between two attempts to connect. */
const RECONNECT_MS = 500;
/** How long closing a connection waits for a Redis that hangs. */
const CLOSE_MS = 100;
/** Prefix of all keys, because other programs may use the same Redis. */
const PREFIX = 'loam:rates';
/** The library rejects above its limit. Callers compare counts themselves, so that a rejection always means an error. */
const NO_LIMIT = Number.MAX_SAFE_INTEGER;

/**
 * Replaces the library's script. If another program stored a value that is not a number under one of our keys, this
 * script overwrites it; otherwise every request with that key would fail until the value expires, which may be never.
 */
const SCRIPT = `
local count = redis.pcall('incrby', KEYS[1], ARGV[1])
if type(count) == 'table' then
  redis.call('set', KEYS[1], ARGV[1])
  count = tonumber(ARGV[1])
end
local left = redis.call('pttl', KEYS[1])
if left < 0 then
  redis.call('expire', KEYS[1], ARGV[2])
  left = 1000 * ARGV[2]
end
return {count, left}`;

/** Counts by key. The count of a key expires a fixed time after its first request. */
export type Counter = Pick<RateLimiterMemory, 'consume' | 'get'>;

type SharedCounts = AsyncDisposable & {
  counter(name: string, seconds: number): Counter;
};

/** A counter in the memory of this process. Its timers do not keep the process alive. */
export function localCounter(seconds: number): Counter {
  return new RateLimiterMemory({ points: NO_LIMIT, duration: seconds });
}

/** Does not wait for a connection, because Redis may be unreachable. */
export async function openSharedCounts(redis: RedisConfig, log: Logger): Promise<SharedCounts> {
  // Loaded on demand, because it takes 0.1 s to load.
  const { Redis } = await import('ioredis');
  const client = new Redis({
    ...redis,
    // A command is sent at once or fails.
    enableOfflineQueue: false,
    autoResendUnfulfilledCommands: false,
    maxRetriesPerRequest: 0,
    retryStrategy: () => RECONNECT_MS,
    connectTimeout: CONNECT_MS,
    // From a command to its reply. Without it, AUTH would wait for a Redis that hangs.
    socketTimeout: CONNECT_MS,
    disconnectTimeout: CLOSE_MS,
    // `#tryRedis` checks more: that Redis counts.
    enableReadyCheck: false,
    disableClientInfo: true,
    protocol: 2,
  });
  return new RedisCounts(client, redis.db, log);
}

class RedisCounts implements SharedCounts {
  readonly #client: Redis;
  readonly #db: number;
  readonly #log: Logger;
  readonly #trial: RateLimiterRedis;
  /** Whether Redis works. */
  #isShared = false;
  /** The last logged value of `#isShared`. */
  #reported: boolean | undefined;
  #isClosing = false;

  constructor(client: Redis, db: number, log: Logger) {
    this.#client = client;
    this.#db = db;
    this.#log = log;
    this.#trial = this.#limiter('trial', 1);
    client.on('ready', () => this.#tryRedis());
    client.on('error', (error) => this.#reconnect(error));
    client.on('close', () => this.#setShared(false, 'the connection was closed'));
  }

  counter(name: string, seconds: number): Counter {
    const shared = this.#limiter(name, seconds);
    const local = localCounter(seconds);
    return {
      consume: (key) =>
        this.#withFallback(
          () => shared.consume(key),
          () => local.consume(key),
        ),
      // Consumes 0 points, because the library's `get` takes four commands.
      get: (key) =>
        this.#withFallback(
          () => shared.consume(key, 0),
          () => local.get(key),
        ),
    };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isClosing = true;
    this.#isShared = false;
    await close(this.#client);
  }

  #limiter(name: string, seconds: number): RateLimiterRedis {
    return new RateLimiterRedis({
      storeClient: this.#client,
      points: NO_LIMIT,
      duration: seconds,
      keyPrefix: `${PREFIX}:${name}`,
      customIncrTtlLuaScript: SCRIPT,
    });
  }

  async #withFallback<T>(shared: () => Promise<T>, local: () => Promise<T>): Promise<T> {
    if (!this.#isShared) return local();
    try {
      return await inTime(shared());
    } catch (error) {
      // Of several requests that fail together, only the first reconnects.
      if (this.#isShared) this.#reconnect(error as Error);
      return local();
    }
  }

  async #tryRedis(): Promise<void> {
    try {
      // When it may not use this database, ioredis silently uses database 0.
      if (this.#db > 0) await inTime(this.#client.select(this.#db));
      await inTime(this.#trial.consume(''));
      this.#setShared(true);
    } catch (error) {
      this.#reconnect(error as Error);
    }
  }

  #reconnect(error: Error): void {
    this.#setShared(false, error.message);
    // Fails the pending commands. The client connects again after a pause.
    if (this.#client.status === 'ready') this.#client.disconnect(true);
  }

  /** Logs each change once. Logs only the message of an error, because its command may contain the password. */
  #setShared(shared: boolean, reason?: string): void {
    this.#isShared = shared;
    if (this.#reported === shared || this.#isClosing) return;
    this.#reported = shared;
    if (shared) this.#log.info('Redis counts the requests of all servers');
    else this.#log.warn({ reason }, 'Redis does not count: each server counts its own requests');
  }
}

/** @throws Error when there is no reply in time */
function inTime<T>(reply: Promise<T>): Promise<T> {
  const late = Promise.withResolvers<never>();
  const fail = () => late.reject(new Error(`no answer within ${REPLY_TIMEOUT_MS} ms`));
  // If this process was blocked, a reply that arrived meanwhile is read before `setImmediate` runs.
  const timer = setTimeout(() => setImmediate(fail), REPLY_TIMEOUT_MS);
  return Promise.race([reply, late.promise]).finally(() => clearTimeout(timer));
}

async function close(client: Redis): Promise<void> {
  const { promise: ended, resolve } = Promise.withResolvers<void>();
  client.once('end', resolve);
  const isOpen = ['connecting', 'connect', 'ready'].includes(client.status);
  client.disconnect();
  // Between two attempts there is no connection, and `end` is not emitted.
  if (isOpen) await ended;
}
