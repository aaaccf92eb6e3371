/** Receives what the shell around a command in a container reports to its supervisor: that it has begun, and how it ended. */
import { closeSync, constants, openSync } from 'node:fs';
import { Socket } from 'node:net';
import { setTimeout as delay, setImmediate as turn } from 'node:timers/promises';

/** Maximum length of a line that the command's parent writes. */
const MAX_REPORT_LENGTH = 32;
/** Pause after each chunk (64 KiB at most) of reports, because a job may write there without end. */
const REPORT_PAUSE_MS = 100;
/** Longest wait for reports after the end of the command. */
const DRAIN_TIMEOUT_MS = 2_000;

/**
 * Receives the reports of the command's parent, one per line. `end` first reads all reports that were written. The job can
 * write into the FIFO too; it then blocks, because the recorder pauses after each chunk.
 */
export function receiveReports(
  fifo: string,
  onReport: (line: string) => void,
): { end(): Promise<void> } {
  const reader = openSync(fifo, constants.O_RDONLY | constants.O_NONBLOCK);
  const writer = openSync(fifo, constants.O_WRONLY);
  const source = new Socket({ fd: reader, readable: true, writable: false });
  let partialLine = '';
  let pause: NodeJS.Timeout | undefined;
  let isEnding = false;
  source.setEncoding('latin1').on('data', (chunk: string) => {
    if (!isEnding) {
      source.pause();
      pause = setTimeout(() => source.resume(), REPORT_PAUSE_MS);
    }
    const lines = (partialLine + chunk).split('\n');
    partialLine = lines.pop()?.slice(0, MAX_REPORT_LENGTH) ?? '';
    for (const line of lines) onReport(line);
  });
  const closed = new Promise((resolve) => source.once('close', resolve));
  return {
    async end() {
      isEnding = true;
      clearTimeout(pause);
      source.resume();
      closeSync(writer);
      // Node runs timers before it reads. After a pause of this process, reports may still be unread: one more turn reads them.
      await Promise.race([closed, delay(DRAIN_TIMEOUT_MS).then(() => turn())]);
    },
  };
}
