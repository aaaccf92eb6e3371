/**
 * The recorder: a small process per container that outlives the server and the engine. It stores the command's output with
 * a time for each line, and how the command ended.
 *
 * An engine that is killed loses log lines: those that it had read and not written yet, and all output of a container that
 * ended before the engine was back. It also loses the exit code of a container that ended just before. So where containers
 * share the kernel of this machine, the command prints into FIFOs (`start-barrier.ts`), which the recorder reads.
 *
 *   node recorder.ts <folder of attempts> < start order
 *
 * It may be started before there is an attempt (`../process/shims.ts`), and exits when its input ends without an order. It
 * ends when no process of the container has the FIFOs open any more, or soon after SIGTERM, which the server sends when the
 * container has ended. When it is killed, another recorder continues: unread output stays in the FIFOs.
 *
 * It works with these files in `record/` of the attempt's folder. Files that other processes wait for appear complete:
 *   claim    which process records; removed by the server when that process is dead
 *   log      in the format of a process attempt's log (`../supervisor/lines.ts`)
 *   begun    exists when the command has opened the FIFOs
 *   init     written by the server: the first process of the container, which ends together with it
 *   exit     how the command ended, as reported by its parent in the container, and when the container ended, which the job
 *            cannot falsify
 *   trouble  why the log cannot be written any more
 *   reserve  bytes that are freed when the disk is full, so that the files above can be written
 *   done     nothing follows; written after the log has been synced to the disk
 */
import { execFileSync } from 'node:child_process';
import {
  chownSync,
  closeSync,
  constants,
  existsSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
} from 'node:fs';
import { Socket } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import type { ShimOrder } from '../process/shims.ts';
import { claim, DISK_FULL_EXIT, syncLog, writeWhole } from '../supervisor/claim.ts';
import { isAlive, readClaim, readWhole } from '../supervisor/folder.ts';
import { follow, openLog } from '../supervisor/lines.ts';
import { closeInherited } from '../supervisor/proc.ts';
import type { AttemptRecord } from './attempt-dir.ts';
import { barrierDir, FIFOS, readOpening } from './start-barrier.ts';

/** The file `exit`. */
export type RecordedExit = {
  /** The last report of the command's parent, or of any process of the job; undefined: there was none. */
  exitCode?: number;
  /** Reported with it: processes killed by the kernel for lack of memory; undefined: unknown in this container. */
  oomKills?: number | undefined;
  /** No report was received, and there was a time without a recorder, in which reports and output may have been lost. */
  unheard?: true | undefined;
  /** When the first process of the container was found to have ended; undefined: it was not. */
  goneAt?: number;
};
/** The file `trouble`. */
export type RecorderFailure = { reason: string };

/** Name of the recorder's folder in the folder of an attempt. */
export const RECORD_DIR = 'record';
/** Longest wait for processes that keep the FIFOs open after the end of the container. */
const DRAIN_TIMEOUT_MS = 2_000;
/** The command's parent writes no longer lines than this. */
const MAX_REPORT_LENGTH = 32;
/** Pause after each chunk (64 KiB at most) of reports, because a job may write there without end. */
const REPORT_PAUSE_MS = 100;
const MAX_EXIT_CODE = 255;
/** Longest interval between checks whether the first process of the container has ended. */
const MAX_INIT_POLL_MS = 500;

if (import.meta.main) {
  closeInherited();
  const line = await text(process.stdin);
  if (line !== '') {
    const order: ShimOrder = JSON.parse(line);
    if (order.order === 'start') await record(join(process.argv[2] ?? '', order.attempt));
  }
}

async function record(attemptDir: string): Promise<void> {
  let stopRecording = () => {};
  let isStopRequested = false;
  let hasDrainTimedOut = false;
  process.on('SIGTERM', () => {
    isStopRequested = true;
    stopRecording();
  });
  for (const name of ['SIGHUP', 'SIGINT', 'SIGPIPE'] as const) process.on(name, () => {});
  const fileOf = (name: string) => join(attemptDir, RECORD_DIR, name);
  try {
    if (!claim(fileOf('claim'))) return;
    const { owner, log: limits }: AttemptRecord = JSON.parse(
      readFileSync(join(attemptDir, 'attempt.json'), 'utf8'),
    );
    const fifos = FIFOS.map((name) => join(barrierDir(attemptDir), name));
    createFifos(fifos, owner);
    const log = openLog(fileOf('log'), limits, (error) => reportFailure(fileOf, error));
    const [out = '', err = '', end = ''] = fifos;
    const outputs = [follow(out, 'o', log), follow(err, 'e', log)];
    /** Held open by the recorder, so that a FIFO does not end before the command has opened it. */
    let writers = outputs.map(({ writer }) => writer);
    const closeWriters = () => {
      for (const writer of writers) closeSync(writer);
      writers = [];
    };
    let hasBegun = existsSync(fileOf('begun'));
    let exit = (await readWhole<RecordedExit>(fileOf('exit'))) ?? {};
    const reports = receiveReports(end, (line) => {
      const [, exitCode, oomKills] = (/^exit (\d{1,3})(?: (\d+))?$/.exec(line) ?? []).map(toNumber);
      if (line === 'begun' && !hasBegun) {
        hasBegun = true;
        writeWhole(fileOf('begun'), {});
        closeWriters();
      } else if (exitCode !== undefined && exitCode <= MAX_EXIT_CODE) {
        // Stored for a recorder that may replace this one. Only the first report, because a job may send many.
        const isFirst = exit.exitCode === undefined;
        exit = { exitCode, oomKills };
        if (isFirst) writeWhole(fileOf('exit'), exit);
      }
    });
    // The barrier opened before this recorder started: reports written while nobody had the FIFO open are lost.
    const mayHaveMissedReports = (await readOpening(attemptDir)) !== null;
    stopRecording = () => {
      closeWriters();
      setTimeout(() => {
        hasDrainTimedOut = true;
        for (const { source } of outputs) source.destroy();
      }, DRAIN_TIMEOUT_MS);
    };
    if (isStopRequested) stopRecording();
    else if (hasBegun) closeWriters();
    // The server waits for this line. If the server was killed meanwhile, writing it fails.
    process.stdout.on('error', () => {});
    process.stdout.write('started\n');
    await Promise.all(outputs.map(({ closed }) => closed));
    // A job may close the FIFOs in its own processes and continue, so the end of the container is awaited too.
    const goneAt = await waitForInitEnd(fileOf('init'), () => hasDrainTimedOut);
    await reports.end();
    const unheard = (mayHaveMissedReports && exit.exitCode === undefined) || undefined;
    await storeExit(fileOf, attemptDir, {
      ...exit,
      unheard,
      ...(goneAt !== undefined && { goneAt }),
    });
  } catch (error) {
    process.exit((error as NodeJS.ErrnoException).code === 'ENOSPC' ? DISK_FULL_EXIT : 1);
  }
  process.exit(0);
}

function toNumber(text: string | undefined): number | undefined {
  return text === undefined ? undefined : Number(text);
}

/**
 * Existing FIFOs are kept, because they may hold output. The job's user opens them. Each is created under another name and
 * renamed in order, so when the last one exists, all exist and belong to that user.
 */
function createFifos(fifos: readonly string[], { uid, gid }: AttemptRecord['owner']): void {
  const missing = fifos.filter((fifo) => !existsSync(fifo));
  if (missing.length === 0) return;
  const created = missing.map((fifo) => `${fifo}.new`);
  for (const path of created) rmSync(path, { force: true });
  execFileSync('mkfifo', ['-m', '600', ...created]);
  for (const fifo of missing) {
    if (process.getuid?.() === 0) chownSync(`${fifo}.new`, uid, gid);
    renameSync(`${fifo}.new`, fifo);
  }
}

/**
 * Waits for the end of the container's first process.
 * @returns when the end was found, soon after it; undefined when the server has not stored the process, or it still lives
 *   although the engine reports the end
 */
async function waitForInitEnd(
  file: string,
  hasTimedOut: () => boolean,
): Promise<number | undefined> {
  const init = await readClaim(file);
  if (!init) return undefined;
  for (let ms = 2; isAlive(init); ms = Math.min(2 * ms, MAX_INIT_POLL_MS)) {
    if (hasTimedOut()) return undefined;
    await delay(ms);
  }
  return Date.now();
}

/**
 * Receives the reports of the command's parent, one per line, until `end`, which first reads all that were written. The job
 * can write into the FIFO too; it then blocks, because the recorder reads only now and then.
 */
function receiveReports(fifo: string, onReport: (line: string) => void): { end(): Promise<void> } {
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
      await Promise.race([closed, delay(DRAIN_TIMEOUT_MS)]);
    },
  };
}

/** The server ends the job because of the file. */
function reportFailure(fileOf: (name: string) => string, error: Error): void {
  rmSync(fileOf('reserve'), { force: true });
  const isDiskFull = ['ENOSPC', 'EDQUOT'].includes((error as NodeJS.ErrnoException).code ?? '');
  const why = isDiskFull
    ? 'the disk of the server is full'
    : `its log cannot be written (${error.message})`;
  const failure: RecorderFailure = { reason: `The job was ended: ${why}.` };
  writeWhole(fileOf('trouble'), failure);
}

/** Retries every second while the disk is full. Stops when the attempt's folder was removed: nobody needs the result then. */
async function storeExit(
  fileOf: (name: string) => string,
  attemptDir: string,
  exit: RecordedExit,
): Promise<void> {
  for (;;) {
    try {
      syncLog(fileOf('log'));
      writeWhole(fileOf('exit'), exit, join(attemptDir, RECORD_DIR));
      return writeWhole(fileOf('done'), {}, join(attemptDir, RECORD_DIR));
    } catch {
      if (!existsSync(attemptDir)) return;
      rmSync(fileOf('reserve'), { force: true });
    }
    await delay(1_000);
  }
}
