import { setTimeout as delay } from 'node:timers/promises';

/**
 * Retries until `check` passes; throws its last error after `timeoutMs`. Use this in place of fixed sleeps.
 * A check that takes long to pass is repeated less often, because each may be a request: after 20 ms, up to every 250 ms.
 */
export async function eventually<T>(check: () => T | Promise<T>, timeoutMs = 60_000): Promise<T> {
  const start = Date.now();
  for (;;) {
    try {
      return await check();
    } catch (error) {
      const elapsedMs = Date.now() - start;
      if (elapsedMs > timeoutMs) throw error;
      await delay(Math.min(20 + elapsedMs / 8, 250));
    }
  }
}
