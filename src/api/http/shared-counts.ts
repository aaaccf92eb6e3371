/**
 * Counts of requests that all servers share, kept in Redis or Valkey. Beside each count is one of this process. It is
 * used from the first fault until Redis has counted again, so that no request is refused because Redis is away.
 */
import type { Redis } from 'ioredis';
import { RateLimiterMemory, RateLimiterRedis } from 'rate-limiter-flexible';
import type { RedisConfig } from '../../base/config/config.ts';
import type { Logger } from '../../base/log.ts';

/** A request waits so long for an answer, which usually takes 0.3 ms. One that is late is a fault. */
const ANSWER_MS = 200;
const CONNECT_MS = 1_000;
/** Between two attempts to reach Redis. */
const PAUSE_MS = 500;
/** For a Redis that hangs to take part in the closing of a connection. */
const CLOSE_MS = 100;
/** Before all keys, because other programs may use the same Redis. */
const PREFIX = 'loam:rates';
/** The library rejects past a limit; whoever asks compares for himself, so that a rejection is always a fault. */
const NO_LIMIT = Number.MAX_SAFE_INTEGER;

/**
 * In place of the library's: a value under one of our keys that is no number, which somebody else must have put
 * there, is replaced. It would be a fault of each request with that key until its end, which may never come.
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

/** Counts by key; a key's count ends so many seconds after its first request. */
export type Counter = Pick<RateLimiterMemory, 'consume' | 'get'>;

export type SharedCounts = AsyncDisposable & {
  counter(name: string, seconds: number): Counter;
};

/** In the memory of this process. Its timers are a key's last second or minute, and do not keep the process. */
export function ownCounter(seconds: number): Counter {
  return new RateLimiterMemory({ points: NO_LIMIT, duration: seconds });
}

/** Does not wait for Redis, which may be out of reach. */
export async function openSharedCounts(redis: RedisConfig, log: Logger): Promise<SharedCounts> {
  // Here, because it takes a tenth of a second to load.
  const { Redis } = await import('ioredis');
  const client = new Redis({
    ...redis,
    // Nothing is sent later than it was asked.
    enableOfflineQueue: false,
    autoResendUnfulfilledCommands: false,
    maxRetriesPerRequest: 0,
    retryStrategy: () => PAUSE_MS,
    connectTimeout: CONNECT_MS,
    // From a command to an answer: without it a Redis that hangs would be waited for when a password is sent.
    socketTimeout: CONNECT_MS,
    disconnectTimeout: CLOSE_MS,
    // `attempt` says more: that Redis counts.
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

  let counts = false;
  let reported: boolean | undefined;
  let closing = false;
  /** Told once for each change. Of an error only the message is, because the command in it may be the password. */
  function become(counting: boolean, reason?: string): void {
    counts = counting;
    if (reported === counting || closing) return;
    reported = counting;
    if (counting) log.info('Redis counts the requests of all servers');
    else log.warn({ reason }, 'Redis does not count: each server counts its own requests');
  }
  function lose(error: Error): void {
    become(false, error.message);
    // It is made again after a pause, and what was asked on it is no longer waited for.
    if (client.status === 'ready') client.disconnect(true);
  }
  async function attempt(): Promise<void> {
    try {
      // The client goes on in the first database when it may not use this one.
      if (redis.db > 0) await inTime(client.select(redis.db));
      await inTime(trial.consume(''));
      become(true);
    } catch (error) {
      lose(error as Error);
    }
  }
  client.on('ready', attempt);
  client.on('error', lose);
  client.on('close', () => become(false, 'the connection was closed'));

  async function either<T>(shared: () => Promise<T>, own: () => Promise<T>): Promise<T> {
    if (!counts) return own();
    try {
      return await inTime(shared());
    } catch (error) {
      // The first of several that were waiting has said so.
      if (counts) lose(error as Error);
      return own();
    }
  }

  return {
    counter(name, seconds) {
      const shared = stored(name, seconds);
      const own = ownCounter(seconds);
      return {
        consume: (key) =>
          either(
            () => shared.consume(key),
            () => own.consume(key),
          ),
        // Of nothing, because the library's `get` takes four commands.
        get: (key) =>
          either(
            () => shared.consume(key, 0),
            () => own.get(key),
          ),
      };
    },
    async [Symbol.asyncDispose]() {
      closing = true;
      counts = false;
      await close(client);
    },
  };
}

/** @throws Error when there is no answer in time */
function inTime<T>(answer: Promise<T>): Promise<T> {
  const late = Promise.withResolvers<never>();
  const fail = () => late.reject(new Error(`no answer within ${ANSWER_MS} ms`));
  // An answer that has come while this process stood still is read before `setImmediate` calls.
  const timer = setTimeout(() => setImmediate(fail), ANSWER_MS);
  return Promise.race([answer, late.promise]).finally(() => clearTimeout(timer));
}

async function close(client: Redis): Promise<void> {
  const { promise: ended, resolve } = Promise.withResolvers<void>();
  client.once('end', resolve);
  const isOpen = ['connecting', 'connect', 'ready'].includes(client.status);
  client.disconnect();
  // Between two attempts there is nothing to end, and no `end`.
  if (isOpen) await ended;
}
