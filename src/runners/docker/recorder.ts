/**
 * The recorder: one small process per container that outlives the server, and the engine. It keeps what the command prints,
 * each line with its time, and how the command ended.
 *
 * An engine keeps a log too, and loses lines when it is killed: those that it had read and not yet written, and all that a
 * container printed that ended before the engine was back. It also loses the exit code of a container that ended in the
 * moment before. So where a container runs on the kernel of this machine, its command prints into FIFOs of the attempt
 * (`gate.ts`), which are read here.
 *
 *   node recorder.ts <folder of attempts> < the order to start
 *
 * It may have been started before there was an attempt (`../process/shims.ts`), and ends when its input does without one.
 * It ends when no process of the container has the FIFOs open any more, or soon after SIGTERM, by which the server tells it
 * that the container has ended. Where it was killed, another goes on: what the command prints waits in the FIFOs.
 *
 * The files, in `record/` of the attempt's folder; one that others wait for appears whole:
 *   claim    who records; removed by the server when that one is dead
 *   log      as the shim of a process keeps it (`../supervisor/lines.ts`)
 *   begun    that the command has the FIFOs
 *   init     by the server: which process is the first of the container, whose end is the container's
 *   exit     how the command ended, as its parent in the container says, and when the container had ended, which the job
 *            has no say in
 *   trouble  why the log cannot be kept any more
 *   reserve  bytes that are given up when the disk is full, so that the files above can be written
 *   done     that nothing more comes, after the last byte of the log is on the disk
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
import type { AttemptRecord } from './place.ts';
import { FIFOS, gateFolder, opening } from './start-barrier.ts';

export type RecordedExit = {
  /** What was said last, by the parent of the command or by anything of the job; undefined: nothing. */
  exitCode?: number;
  /** With it: how many processes the kernel killed for want of memory; undefined: that cannot be known in the container. */
  oomKills?: number | undefined;
  /** Nobody listened all the time, and no end was heard: it was said in between, and may be lost with what was printed. */
  unheard?: true | undefined;
  /** When the first process of the container was seen to be gone; undefined: it was not. */
  goneAt?: number;
};
export type Trouble = { reason: string };

/** Where its files lie in the folder of an attempt. */
export const RECORD = 'record';
/** What holds the FIFOs open after the end of the container is not waited for longer than this. */
const DRAIN_MS = 2_000;
/** What is longer is nothing that the parent of a command says. */
const MAX_SAID = 32;
/** How long it is not listened after each piece, of 64 KiB at most: a job may write there without end. */
const DEAF_MS = 100;
const MAX_CODE = 255;
/** How often the first process of the container is looked for at most, when all else says that it has ended. */
const GONE_MS = 500;

if (import.meta.main) {
  closeInherited();
  const line = await text(process.stdin);
  if (line !== '') {
    const order: ShimOrder = JSON.parse(line);
    if (order.order === 'start') await record(join(process.argv[2] ?? '', order.attempt));
  }
}

async function record(place: string): Promise<void> {
  let over = () => {};
  let isOver = false;
  let isDrained = false;
  process.on('SIGTERM', () => {
    isOver = true;
    over();
  });
  for (const name of ['SIGHUP', 'SIGINT', 'SIGPIPE'] as const) process.on(name, () => {});
  const at = (name: string) => join(place, RECORD, name);
  try {
    if (!claim(at('claim'))) return;
    const { owner, log: limits }: AttemptRecord = JSON.parse(
      readFileSync(join(place, 'attempt.json'), 'utf8'),
    );
    const fifos = FIFOS.map((name) => join(gateFolder(place), name));
    makeFifos(fifos, owner);
    const log = openLog(at('log'), limits, (error) => report(at, error));
    const [out = '', err = '', end = ''] = fifos;
    const outputs = [follow(out, 'o', log), follow(err, 'e', log)];
    /** Ours, so that a FIFO is not at its end before the command has it. */
    let writers = outputs.map(({ writer }) => writer);
    const letGo = () => {
      for (const writer of writers) closeSync(writer);
      writers = [];
    };
    let hasBegun = existsSync(at('begun'));
    let exit = (await readWhole<RecordedExit>(at('exit'))) ?? {};
    const said = listen(end, (line) => {
      const [, code, killed] = (/^exit (\d{1,3})(?: (\d+))?$/.exec(line) ?? []).map(numberOf);
      if (line === 'begun' && !hasBegun) {
        hasBegun = true;
        writeWhole(at('begun'), {});
        letGo();
      } else if (code !== undefined && code <= MAX_CODE) {
        // For a recorder that comes after this one. What a job says is not written each time.
        const isFirst = exit.exitCode === undefined;
        exit = { exitCode: code, oomKills: killed };
        if (isFirst) writeWhole(at('exit'), exit);
      }
    });
    // What is said while nobody has the FIFO open is lost.
    const mayHaveMissed = (await opening(place)) !== null;
    over = () => {
      letGo();
      setTimeout(() => {
        isDrained = true;
        for (const { source } of outputs) source.destroy();
      }, DRAIN_MS);
    };
    if (isOver) over();
    else if (hasBegun) letGo();
    // The server waits for this line; nobody reads it when the server was killed meanwhile.
    process.stdout.on('error', () => {});
    process.stdout.write('started\n');
    await Promise.all(outputs.map(({ closed }) => closed));
    // A job can make its own processes close the FIFOs, and goes on.
    const goneAt = await gone(at('init'), () => isDrained);
    await said.end();
    const unheard = (mayHaveMissed && exit.exitCode === undefined) || undefined;
    await finish(at, place, { ...exit, unheard, ...(goneAt !== undefined && { goneAt }) });
  } catch (error) {
    process.exit((error as NodeJS.ErrnoException).code === 'ENOSPC' ? DISK_FULL_EXIT : 1);
  }
  process.exit(0);
}

function numberOf(text: string | undefined): number | undefined {
  return text === undefined ? undefined : Number(text);
}

/**
 * Those that are there already may hold something. The job's user opens them. The last one is there when all are, and are
 * that user's.
 */
function makeFifos(fifos: readonly string[], { uid, gid }: AttemptRecord['owner']): void {
  const missing = fifos.filter((fifo) => !existsSync(fifo));
  if (missing.length === 0) return;
  const made = missing.map((fifo) => `${fifo}.new`);
  for (const path of made) rmSync(path, { force: true });
  execFileSync('mkfifo', ['-m', '600', ...made]);
  for (const fifo of missing) {
    if (process.getuid?.() === 0) chownSync(`${fifo}.new`, uid, gid);
    renameSync(`${fifo}.new`, fifo);
  }
}

/**
 * Waits for the end of the container. @returns when it was seen, soon after it; undefined: not, because nobody has said
 * which process is its first, or because that lives on while the engine says otherwise
 */
async function gone(file: string, isLate: () => boolean): Promise<number | undefined> {
  const init = await readClaim(file);
  if (!init) return undefined;
  for (let ms = 2; isAlive(init); ms = Math.min(2 * ms, GONE_MS)) {
    if (isLate()) return undefined;
    await delay(ms);
  }
  return Date.now();
}

/**
 * Hears what the parent of the command says, in whole lines, until told to end; all that was said is heard then. The job
 * can write there too, and then waits for us, who listen now and then.
 */
function listen(fifo: string, hear: (line: string) => void): { end(): Promise<void> } {
  const reader = openSync(fifo, constants.O_RDONLY | constants.O_NONBLOCK);
  const writer = openSync(fifo, constants.O_WRONLY);
  const source = new Socket({ fd: reader, readable: true, writable: false });
  let begun = '';
  let deaf: NodeJS.Timeout | undefined;
  let isEnding = false;
  source.setEncoding('latin1').on('data', (said: string) => {
    if (!isEnding) {
      source.pause();
      deaf = setTimeout(() => source.resume(), DEAF_MS);
    }
    const lines = (begun + said).split('\n');
    begun = lines.pop()?.slice(0, MAX_SAID) ?? '';
    for (const line of lines) hear(line);
  });
  const closed = new Promise((resolve) => source.once('close', resolve));
  return {
    async end() {
      isEnding = true;
      clearTimeout(deaf);
      source.resume();
      closeSync(writer);
      await Promise.race([closed, delay(DRAIN_MS)]);
    },
  };
}

/** The server ends the job for it. */
function report(at: (name: string) => string, error: Error): void {
  rmSync(at('reserve'), { force: true });
  const full = ['ENOSPC', 'EDQUOT'].includes((error as NodeJS.ErrnoException).code ?? '');
  const why = full
    ? 'the disk of the server is full'
    : `its log cannot be written (${error.message})`;
  const trouble: Trouble = { reason: `The job was ended: ${why}.` };
  writeWhole(at('trouble'), trouble);
}

/** On a full disk it is tried again every second. Nothing is written when the folder was removed: then nobody asks. */
async function finish(
  at: (name: string) => string,
  place: string,
  exit: RecordedExit,
): Promise<void> {
  for (;;) {
    try {
      syncLog(at('log'));
      writeWhole(at('exit'), exit, join(place, RECORD));
      return writeWhole(at('done'), {}, join(place, RECORD));
    } catch {
      if (!existsSync(place)) return;
      rmSync(at('reserve'), { force: true });
    }
    await delay(1_000);
  }
}
