/** Receives what the shell around a command in a container (`../container/wrapper.ts`) reports to its supervisor. */
import { closeSync, constants, openSync } from 'node:fs';
import { Socket } from 'node:net';
import { setTimeout as delay, setImmediate as nextIteration } from 'node:timers/promises';

/** Maximum length of a line that the shell writes. */
const MAX_REPORT_LENGTH = 64;
/** Pause after each chunk (64 KiB at most) of reports, because a job may write there without end. */
const REPORT_PAUSE_MS = 100;
/** Longest wait for reports after the end of the command. */
const DRAIN_TIMEOUT_MS = 2_000;
const MAX_EXIT_CODE = 255;

/** `oomKills`: processes killed by the kernel for lack of memory; undefined: unknown in this container. */
type ExitReport = { exitCode: number; oomKills: number | undefined };

export type ContainerReports = {
  /** Settles when the container runs. */
  ready: Promise<void>;
  /** Settles when the command begins. */
  begun: Promise<void>;
  readonly hasBegun: boolean;
  /** Settles with the first report of an end. */
  exited: Promise<ExitReport>;
  /** The last report of an end. */
  readonly exit: ExitReport | undefined;
  readonly usage: { cpuSeconds: number; memoryBytes: number } | null;
  /** Reads all reports that were written, and closes the FIFO. */
  end(): Promise<void>;
};

/** The job can write into the FIFO too, so its lines may be false. It then blocks, because there is a pause after each chunk. */
export function receiveReports(fifo: string): ContainerReports {
  const ready = Promise.withResolvers<void>();
  const begun = Promise.withResolvers<void>();
  const exited = Promise.withResolvers<ExitReport>();
  let hasBegun = false;
  let exit: ExitReport | undefined;
  let usage: ContainerReports['usage'] = null;
  const receive = (line: string) => {
    const [word, first, second] = line.split(' ');
    if (word === 'ready') ready.resolve();
    else if (word === 'begun') {
      hasBegun = true;
      begun.resolve();
    } else if (word === 'usage' && second !== undefined)
      usage = { cpuSeconds: Number(first), memoryBytes: Number(second) };
    else if (word === 'exit' && isCount(first) && Number(first) <= MAX_EXIT_CODE) {
      exit = { exitCode: Number(first), oomKills: isCount(second) ? Number(second) : undefined };
      exited.resolve(exit);
    }
  };
  const { end } = readLines(fifo, receive);
  return {
    ready: ready.promise,
    begun: begun.promise,
    exited: exited.promise,
    get hasBegun() {
      return hasBegun;
    },
    get exit() {
      return exit;
    },
    get usage() {
      return usage;
    },
    end,
  };
}

function isCount(text: string | undefined): boolean {
  return text !== undefined && /^\d{1,9}$/.test(text);
}

function readLines(fifo: string, onLine: (line: string) => void): { end(): Promise<void> } {
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
    for (const line of lines) onLine(line);
  });
  const closed = new Promise((resolve) => source.once('close', resolve));
  return {
    async end() {
      isEnding = true;
      clearTimeout(pause);
      source.resume();
      closeSync(writer);
      // Node runs timers before it reads. After a pause of this process, reports may still be unread: one more iteration of the
      // event loop reads them.
      await Promise.race([closed, delay(DRAIN_TIMEOUT_MS).then(() => nextIteration())]);
    },
  };
}
