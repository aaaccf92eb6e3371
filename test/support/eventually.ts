import { setTimeout as delay } from 'node:timers/promises';

/** Retries until `check` passes; throws its last error after `timeoutMs`. Use this in place of fixed sleeps. */
export async function eventually<T>(check: () => T | Promise<T>, timeoutMs = 60_000): Promise<T> {
  const deadline = Date.now() + timeoutMs;
  for (;;) {
    try {
      return await check();
    } catch (error) {
      if (Date.now() > deadline) throw error;
      await delay(20);
    }
  }
}
