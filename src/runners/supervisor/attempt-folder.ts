/** Reads the folder of an attempt while its supervisor (`supervise.ts`) writes it. */
import { closeSync, openSync, readSync } from 'node:fs';
import type { LogBatch, LogCursor, Outcome } from '../runner.ts';
import { parseLog } from './lines.ts';
import type { AttemptExit } from './supervise.ts';

/** The most that is read from a log at once: parsed lines take about ten times as much memory. */
const READ_BYTES = 256 * 1024;
const NEWLINE = 0x0a;

export type EndWatcher = {
  /** Undefined while the attempt may write further lines. */
  findEnd(): Promise<unknown>;
  /** Settles after a change in the folder, or after a while. */
  next(): Promise<void>;
};

/** Streams the lines after `cursor`; ends after the last line of ended work, or when `abort` aborts. */
export async function* followLog(
  logFile: string,
  cursor: LogCursor | null,
  abort: AbortSignal,
  watcher: EndWatcher,
): AsyncGenerator<LogBatch> {
  // Reads are synchronous, because the lines were just written. Node's thread pool cost 0.3 ms per short job.
  const file = openSync(logFile, 'r');
  using _ = { [Symbol.dispose]: () => closeSync(file) };
  const buffer = Buffer.allocUnsafe(READ_BYTES);
  let offset = Number(cursor?.offset ?? 0);
  while (!abort.aborted) {
    // Checked before the read, so that the read sees all lines that were written before the end.
    const end = await watcher.findEnd();
    const bytesRead = readSync(file, buffer, 0, READ_BYTES, offset);
    const length = buffer.subarray(0, bytesRead).lastIndexOf(NEWLINE) + 1;
    offset += length;
    if (length > 0) yield parseLog(buffer.subarray(0, length), { offset });
    else if (end) return;
    else await watcher.next();
  }
}

export function buildOutcome(end: AttemptExit & { exitCode: number }): Outcome {
  if (end.unstartable) {
    const reason = end.reason ?? 'The sandbox could not be set up; see the lines above';
    return { kind: 'unstartable', reason };
  }
  if (end.isLoss) return { kind: 'lost', ...(end.reason && { reason: end.reason }) };
  return {
    kind: 'exited',
    exitCode: end.exitCode,
    timedOut: end.timedOut,
    ...(end.reason !== undefined && { note: end.reason }),
    ...(end.outOfMemory && { outOfMemory: true }),
    ...(end.hasResults !== undefined && { hasResults: end.hasResults }),
    startedAt: new Date(end.startedAt),
    endedAt: new Date(end.endedAt),
  };
}
