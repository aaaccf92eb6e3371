/**
 * Timers by the clock that goes on while the machine is suspended. That of Node's timers stops then.
 *
 * Imports nothing but Node: the shim does.
 */
import { uptime } from 'node:os';

export type UptimeTimer = { clear(): void };

/** How often a timer looks at the clock. */
const TICK_MS = 1_000;

/** What is later than this was due while the machine was suspended. */
export const LATE_MS = 5_000;

/** As `setTimeout`; `then` hears how late it is. */
export function after(ms: number, then: (lateMs: number) => void): UptimeTimer {
  const due = uptime() * 1_000 + ms;
  let timer: NodeJS.Timeout | undefined;
  const look = () => {
    const left = due - uptime() * 1_000;
    if (left <= 0) then(-left);
    else timer = setTimeout(look, Math.min(left, TICK_MS));
  };
  look();
  return { clear: () => clearTimeout(timer) };
}
