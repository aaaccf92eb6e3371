/**
 * The shim of a container: a small process that supervises the command and outlives the server and the engine. It stores the
 * output with a time for each line, enforces the timeout and the grace period, and records how the command ended.
 *
 * An engine that is killed loses log lines that it had read and not written yet, all output of a container that ended before
 * the engine was back, and the exit code of a container that ended just before. So where containers share the kernel of this
 * machine, the command prints into FIFOs (`../container/wrapper.ts`), which the shim reads.
 *
 *   node container-shim.ts <folder of attempts> < start command
 *
 * The shim may be started before there is an attempt (`../process/shims.ts`), and exits when its input ends without a command.
 * Like the shim of a process, it ends the command at SIGTERM and kills it at SIGUSR2. If it is killed itself, the container goes
 * on, and another shim continues: unread output stays in the FIFOs.
 *
 * The files in the folder of an attempt, beside those of `../supervisor/supervise.ts` and `attempt-dir.ts`:
 *   claim       the process that supervises the attempt
 *   claim.lost  the claim of a shim that was killed
 *   init        the first process of the container, which ends together with the container; missing: it has ended already
 *   begun       exists when the command has opened the FIFOs
 */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { setTimeout as delay, setImmediate as turn } from 'node:timers/promises';
import { closeInheritedDescriptors } from '../../platform/processes/inherited-descriptors.ts';
import type { ShimCommand } from '../process/shims.ts';
import {
  DISK_FULL_EXIT,
  type ProcessIdentity,
  takeClaim,
  writeJsonAtomically,
} from '../supervisor/claim.ts';
import { isAlive, readClaim } from '../supervisor/folder.ts';
import { lowerPriority } from '../supervisor/priority.ts';
import { signalOne } from '../supervisor/proc.ts';
import { receiveReports } from '../supervisor/reports.ts';
import {
  isDiskFull,
  type Supervision,
  supervise,
  type Work,
  type WorkOutputs,
} from '../supervisor/supervise.ts';
import {
  type AttemptRecord,
  beginCommand,
  hasCommandBegun,
  type Opening,
  readRecord,
  sharedDir,
} from './attempt-dir.ts';
import { listContainerProcesses, sendSigterm } from './container-processes.ts';

/** Longest interval between checks whether the first process of the container has ended. */
const MAX_POLL_MS = 500;

let supervision: Supervision | undefined;
let earlySignal: 'TERM' | 'KILL' | undefined;
/** Whether there is no attempt yet. A signal then ends the shim itself. */
let isIdle = true;

if (import.meta.main) {
  closeInheritedDescriptors();
  lowerPriority();
  process.on('SIGTERM', () => stop('TERM'));
  process.on('SIGUSR2', () => stop('KILL'));
  for (const name of ['SIGHUP', 'SIGINT', 'SIGPIPE'] as const) process.on(name, () => {});
  // For example when the disk is full.
  process.on('uncaughtException', (error) => {
    if (supervision?.fail) return supervision.fail(error);
    console.error(error);
    process.exit(isDiskFull(error) ? DISK_FULL_EXIT : 1);
  });
  // Writing to stdout fails when the server was killed meanwhile.
  process.stdout.on('error', () => {});
  const line = await text(process.stdin);
  const command: ShimCommand | null = line === '' ? null : JSON.parse(line);
  if (command?.type === 'start') {
    isIdle = false;
    try {
      await superviseAttempt(join(process.argv[2] ?? '', command.attempt));
    } catch (error) {
      console.error(error);
      process.exit(isDiskFull(error) ? DISK_FULL_EXIT : 1);
    }
  }
  process.exit(0);
}

function stop(how: 'TERM' | 'KILL'): void {
  if (isIdle) process.exit(0);
  if (supervision) supervision.stop(how);
  else if (earlySignal !== 'KILL') earlySignal = how;
}

async function superviseAttempt(dir: string): Promise<void> {
  const fileOf = (name: string) => join(dir, name);
  if (!takeClaim(fileOf('claim'))) return;
  const record: AttemptRecord = JSON.parse(readFileSync(fileOf('attempt.json'), 'utf8'));
  const opening: Opening = JSON.parse(readFileSync(fileOf('opening.json'), 'utf8'));
  if (!hasCommandBegun(dir)) {
    // The start of this process took a while, and the job's time begins now.
    opening.at = Date.now();
    writeJsonAtomically(fileOf('opening.json'), opening);
  }
  const ending = await readRecord(dir, 'ending');
  const init = await readClaim(fileOf('init'));
  const { timeoutMs, leaseMs, graceMs, log, memoryBytes } = record;
  const memory = { bytes: memoryBytes, watched: false };
  const spec = { timeoutMs, leaseMs, graceMs, log, memory };
  await supervise(dir, spec, opening.at, {
    fifoDir: sharedDir(dir),
    start: async (outputs) => startWork(dir, init, outputs),
    ending,
    onEnding: (next) => writeJsonAtomically(fileOf('ending.json'), next),
    onStarted(started) {
      supervision = started;
      process.stdout.write('started\n');
    },
    getEarlySignal: () => earlySignal,
    removeTree: async () => {},
  });
}

/** Lets the command begin, unless it has begun already. */
function startWork(dir: string, init: ProcessIdentity | undefined, { closed }: WorkOutputs): Work {
  const reports = receiveReports(join(sharedDir(dir), 'end'));
  const begunFile = join(dir, 'begun');
  // A killed shim may have received the report without storing it.
  const mayHaveBegun = existsSync(join(dir, 'claim.lost'));
  const begun = existsSync(begunFile)
    ? Promise.resolve()
    : reports.begun.then(() => writeJsonAtomically(begunFile, {}));
  beginCommand(dir);
  const isRunning = () => init !== undefined && isAlive(init);
  const pids = () => listContainerProcesses(init?.pid ?? 0);
  const ended = waitForEnd(isRunning, begun, closed).then(async () => {
    await reports.end();
    const ran = mayHaveBegun || reports.hasBegun || existsSync(begunFile);
    return { exitCode: reports.exit?.exitCode ?? null, ran };
  });
  return {
    pid: init?.pid,
    up: begun,
    ended,
    tree: {
      pids,
      terminate() {
        const found = pids();
        if (found.length > 0) sendSigterm(found);
        else if (init && isRunning()) signalOne(init.pid, 'SIGTERM');
      },
      kill() {
        if (init && isRunning()) signalOne(init.pid, 'SIGKILL');
      },
      killRemaining: async () => {},
    },
    countOomKills: () => reports.exit?.oomKills,
    release: async () => {},
  };
}

/** Before the command has opened the FIFOs, and after a job has closed them in its own processes, the first process counts. */
async function waitForEnd(
  isRunning: () => boolean,
  begun: Promise<void>,
  closed: Promise<unknown>,
): Promise<void> {
  let hasBegun = false;
  void begun.then(() => {
    hasBegun = true;
  });
  await Promise.race([begun, turn()]);
  while (!hasBegun && isRunning()) await Promise.race([begun, delay(MAX_POLL_MS)]);
  if (hasBegun) await closed;
  for (let ms = 2; isRunning(); ms = Math.min(2 * ms, MAX_POLL_MS)) await delay(ms);
}
