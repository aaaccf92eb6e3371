/**
 * The lease of an attempt on a machine that a server may not reach: the program that speaks to the server renews it, and the
 * supervisor, which outlives that program, kills the work when it has run out. The server then starts the job elsewhere, so the
 * supervisor must not wait for anybody.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { uptime } from 'node:os';
import { join } from 'node:path';
import { sleep } from '../../base/backoff.ts';
import type { StopReason } from './disk.ts';
import { readBootId } from './proc.ts';

/** The file `lease`: seconds of the clock that runs while the machine is suspended, and the boot that they count from. */
type Lease = { bootId: string; renewedAt: number };

const CHECK_MS = 1_000;

/** @param renewedAt seconds as of `os.uptime()` at which a request was sent that the server has answered */
export function renewLease(dir: string, renewedAt: number): void {
  const lease: Lease = { bootId: readBootId(), renewedAt };
  writeFileSync(join(dir, 'lease'), JSON.stringify(lease));
}

/** When the lease was renewed, as of `os.uptime()`; undefined: not since the machine was started. */
export function readLease(dir: string): number | undefined {
  try {
    const { bootId, renewedAt } = JSON.parse(readFileSync(join(dir, 'lease'), 'utf8')) as Lease;
    return bootId === readBootId() ? renewedAt : undefined;
  } catch {
    // It was not written yet, or is being written.
    return undefined;
  }
}

/** Settles when the lease has run out; with null when `signal` aborts. */
export async function watchLease(
  dir: string,
  leaseMs: number,
  signal: AbortSignal,
): Promise<StopReason | null> {
  let renewedAt = uptime();
  for (;;) {
    await sleep(CHECK_MS, signal);
    if (signal.aborted) return null;
    renewedAt = readLease(dir) ?? renewedAt;
    if ((uptime() - renewedAt) * 1_000 <= leaseMs) continue;
    const minutes = Math.round(leaseMs / 6_000) / 10;
    const reason = `The job was ended: no server has answered for ${minutes} min.`;
    return { full: false, isLoss: true, reason };
  }
}
