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
    // `tryRedis` checks more: that Redis counts.
    enableReadyCheck: false,
    disableClientInfo: true,
    protocol: 2,
  });
  const stored = (name: string, seconds: number) =>
    new RateLimiterRedis({
      storeClient: client,
      points: NO_LIMIT,
      duration: seconds,
      keyPrefix: `${PREFIX}:${name}`,
      customIncrTtlLuaScript: SCRIPT,
    });
  const trial = stored('trial', 1);

  let isShared = false;
  let reported: boolean | undefined;
  let isClosing = false;
  /** Logs each change once. Logs only the message of an error, because its command may contain the password. */
  function setShared(shared: boolean, reason?: string): void {
    isShared = shared;
    if (reported === shared || isClosing) return;
    reported = shared;
    if (shared) log.info('Redis counts the requests of all servers');
    else log.warn({ reason }, 'Redis does not count: each server counts its own requests');
  }
  function reconnect(error: Error): void {
    setShared(false, error.message);
    // Fails the pending commands. The client connects again after a pause.
    if (client.status === 'ready') client.disconnect(true);
  }
  async function tryRedis(): Promise<void> {
    try {
      // When it may not use this database, ioredis silently uses database 0.
      if (redis.db > 0) await inTime(client.select(redis.db));
      await inTime(trial.consume(''));
      setShared(true);
    } catch (error) {
      reconnect(error as Error);
    }
  }
  client.on('ready', tryRedis);
  client.on('error', reconnect);
  client.on('close', () => setShared(false, 'the connection was closed'));

  async function withFallback<T>(shared: () => Promise<T>, local: () => Promise<T>): Promise<T> {
    if (!isShared) return local();
    try {
      return await inTime(shared());
    } catch (error) {
      // Of several requests that fail together, only the first reconnects.
      if (isShared) reconnect(error as Error);
      return local();
    }
  }

  return {
    counter(name, seconds) {
      const shared = stored(name, seconds);
      const local = localCounter(seconds);
      return {
        consume: (key) =>
          withFallback(
            () => shared.consume(key),
            () => local.consume(key),
          ),
        // Consumes 0 points, because the library's `get` takes four commands.
        get: (key) =>
          withFallback(
            () => shared.consume(key, 0),
            () => local.get(key),
          ),
      };
    },
    async [Symbol.asyncDispose]() {
      isClosing = true;
      isShared = false;
      await close(client);
    },
  };
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
