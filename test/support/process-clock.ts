/**
 * A clock for limits on durations. It stands still while the machine is paused, and is slower when this process waits for a
 * CPU, because it counts the rounds of a timer and not the time between them.
 */
const ROUND_MS = 20;

export function startProcessClock(): Disposable & { readonly ms: number } {
  let rounds = 0;
  const timer = setInterval(() => rounds++, ROUND_MS);
  return {
    get ms() {
      return rounds * ROUND_MS;
    },
    [Symbol.dispose]: () => clearInterval(timer),
  };
}
