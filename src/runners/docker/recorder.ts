/**
 * The recorder: a small process per container that outlives the server and the engine. It stores the command's output with
 * a time for each line, and how the command ended.
 *
 * An engine that is killed loses log lines that it had read and not written yet, all output of a container that ended before
 * the engine was back, and the exit code of a container that ended just before. So where containers share the kernel of this
 * machine, the command prints into FIFOs (`start-barrier.ts`), which the recorder reads.
 *
 *   node recorder.ts <folder of attempts> < start command
 *
 * The recorder may be started before there is an attempt (`../process/shims.ts`), and exits when its input ends without a
 * command. It ends when no process of the container has the FIFOs open any more, or soon after SIGTERM, which the server
 * sends when the container has ended. If it is killed, another recorder continues: unread output stays in the FIFOs.
 *
 * It uses these files in `record/` of the attempt's folder. Files that other processes wait for appear complete:
 *   claim    the process that records; removed by the server when that process is dead
 *   log      in the format of a process attempt's log (`../supervisor/lines.ts`)
 *   begun    exists when the command has opened the FIFOs
 *   init     written by the server: the first process of the container, which ends together with the container
 *   exit     how the command ended, as reported by its parent in the container, and when the container ended, which the job
 *            cannot falsify
 *   failure  why the log cannot be written any more
 *   reserve  bytes that are freed when the disk is full, so that the files above can be written
 *   done     the files above are final; written after the log has been synced to the disk
 */
import { execFileSync } from 'node:child_process';
import { chownSync, closeSync, existsSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import type { ShimCommand } from '../process/shims.ts';
import { DISK_FULL_EXIT, syncLog, takeClaim, writeJsonAtomically } from '../supervisor/claim.ts';
import { isAlive, readClaim, readJsonFile } from '../supervisor/folder.ts';
import { copyLines, openLog } from '../supervisor/lines.ts';
import { closeInheritedDescriptors } from '../supervisor/proc.ts';
import { receiveReports } from '../supervisor/reports.ts';
import type { AttemptRecord } from './attempt-dir.ts';
import { barrierDir, FIFOS, readBarrierOpening } from './start-barrier.ts';

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
/** The file `failure`. */
export type RecorderFailure = { reason: string };

/** The files in the recorder's folder, described above. */
export type RecordFile =
  | 'claim'
  | 'log'
  | 'begun'
  | 'init'
  | 'exit'
  | 'failure'
  | 'reserve'
  | 'done';

type FileOf = (name: RecordFile) => string;

/** Name of the recorder's folder in the folder of an attempt. */
export const RECORD_DIR = 'record';
/** Longest wait for processes that keep the FIFOs open after the end of the container. */
const DRAIN_TIMEOUT_MS = 2_000;
const MAX_EXIT_CODE = 255;
/** Longest interval between checks whether the first process of the container has ended. */
const MAX_INIT_POLL_MS = 500;

if (import.meta.main) {
  closeInheritedDescriptors();
  const line = await text(process.stdin);
  if (line !== '') {
    const command: ShimCommand = JSON.parse(line);
    if (command.type === 'start') await record(join(process.argv[2] ?? '', command.attempt));
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
  const fileOf: FileOf = (name) => join(attemptDir, RECORD_DIR, name);
  try {
    if (!takeClaim(fileOf('claim'))) return;
    const { owner, log: limits }: AttemptRecord = JSON.parse(
      readFileSync(join(attemptDir, 'attempt.json'), 'utf8'),
    );
    const fifos = FIFOS.map((name) => join(barrierDir(attemptDir), name));
    createFifos(fifos, owner);
    const log = openLog(fileOf('log'), limits, (error) => reportFailure(fileOf, error));
    const [out = '', err = '', end = ''] = fifos;
    const outputs = [copyLines(out, 'o', log), copyLines(err, 'e', log)];
    /** Kept open until the command has opened the FIFOs, so that they do not end before. */
    let writers = outputs.map(({ writer }) => writer);
    const closeWriters = () => {
      for (const writer of writers) closeSync(writer);
      writers = [];
    };
    let hasBegun = existsSync(fileOf('begun'));
    let exit = (await readJsonFile<RecordedExit>(fileOf('exit'))) ?? {};
    const reports = receiveReports(end, (line) => {
      const [, exitCode, oomKills] = (/^exit (\d{1,3})(?: (\d+))?$/.exec(line) ?? []).map(toNumber);
      if (line === 'begun' && !hasBegun) {
        hasBegun = true;
        writeJsonAtomically(fileOf('begun'), {});
        closeWriters();
      } else if (exitCode !== undefined && exitCode <= MAX_EXIT_CODE) {
        // Stored for a recorder that may replace this process. Only the first report, because a job may send many.
        const isFirst = exit.exitCode === undefined;
        exit = { exitCode, oomKills };
        if (isFirst) writeJsonAtomically(fileOf('exit'), exit);
      }
    });
    // If the barrier opened before this recorder started, reports are lost that were written while no process had the FIFO
    // open.
    const mayHaveMissedReports = (await readBarrierOpening(attemptDir)) !== null;
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
 * Existing FIFOs are kept, because they may hold output. The job's user opens them. Each FIFO is created under another name
 * and renamed in order, so when the last one exists, all exist and belong to that user.
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
 * @returns when the end was noticed, soon after it; undefined when the server has not stored the process, or the process
 *   still exists although the engine reports the end
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

/** When the file exists, the server ends the job. */
function reportFailure(fileOf: FileOf, error: Error): void {
  rmSync(fileOf('reserve'), { force: true });
  const isDiskFull = ['ENOSPC', 'EDQUOT'].includes((error as NodeJS.ErrnoException).code ?? '');
  const cause = isDiskFull
    ? 'the disk of the server is full'
    : `its log cannot be written (${error.message})`;
  const failure: RecorderFailure = { reason: `The job was ended: ${cause}.` };
  writeJsonAtomically(fileOf('failure'), failure);
}

/** Retries every second while the disk is full. Stops when the attempt's folder was removed, because its result is unused. */
async function storeExit(fileOf: FileOf, attemptDir: string, exit: RecordedExit): Promise<void> {
  for (;;) {
    try {
      syncLog(fileOf('log'));
      writeJsonAtomically(fileOf('exit'), exit, join(attemptDir, RECORD_DIR));
      return writeJsonAtomically(fileOf('done'), {}, join(attemptDir, RECORD_DIR));
    } catch {
      if (!existsSync(attemptDir)) return;
      rmSync(fileOf('reserve'), { force: true });
    }
    await delay(1_000);
  }
}
