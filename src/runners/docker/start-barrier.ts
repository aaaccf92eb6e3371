/**
 * The start barrier: a container first waits until the server has completed the setup from outside, such as firewall rules.
 * Then it runs the job's command, which is when the job starts. The barrier opens when a file appears in a folder that is
 * mounted read-only. The file contains the time, and remains for a restarted server. A manipulated `/bin/sh` gains nothing
 * by ignoring the barrier: before its firewall rules are set, the container has no network (`network.ts`).
 */
import { mkdir, open, readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { DEFAULT_PATH } from '../container/wrapper.ts';

/** The barrier's folder in the container. */
const CONTAINER_PATH = '/.loam';
const OPEN_FILE = 'open';
/** Exists when the server has requested a stop of the job, so that the watchdog sends no second SIGTERM. */
const STOP_FILE = 'told';
/** The watchdog acts this long after the timeout, so that the server's own signal comes first. */
const WATCHDOG_DELAY_S = 3;
/**
 * On a remote engine the watchdog cannot see STOP_FILE. There it acts this long after the timeout and the grace period,
 * because many programs exit at once at a second SIGTERM.
 */
const WATCHDOG_REMOTE_DELAY_S = 5;
/** FIFOs for the command's output, and for reports of its parent shell about its begin and end (`recorder.ts`). */
export const FIFOS = ['out', 'err', 'end'] as const;
/** Created last, so its existence means that all FIFOs exist (`recorder.ts`). */
export const LAST_FIFO = FIFOS[2];
/** In OPEN_FILE: a recorder reads the FIFOs. */
const RECORDED = 'recorded';
/** A barrier that is still closed after this time never opens: the server that created the container is gone. */
const MAX_WAIT_S = 3_600;
/** Counters of the container's own control group, in versions 1 and 2: lines of a name and a number. */
const OOM_KILL_FILES = ['/sys/fs/cgroup/memory/memory.oom_control', '/sys/fs/cgroup/memory.events'];

/**
 * First of three parts of the script for `/bin/sh -c`. Its inputs are environment variables, which are removed before the
 * command runs: if they were arguments, a `pkill -f` of the job would match the container's init. Their prefix avoids clashes
 * with the job's variables. The job's PATH is kept as the shell's first argument, and restored for the command.
 */
const SET_PATH = `set -- "$PATH"
PATH=${DEFAULT_PATH}:$PATH
`;

/**
 * The script polls, because polling works with every kind of engine and mount. The interval is 5 ms at first, because the
 * job waits for it, and 1 s after 400 rounds. An image without `sleep` polls without a pause, so the clock limits the wait
 * instead of the number of rounds. The shell gives up with 255, as if the engine had ended the container; a later start then
 * recreates the container.
 */
const WAIT_FOR_BARRIER = `LOAM_GATE_N=0 LOAM_GATE_T=0 LOAM_GATE_U=0
read -r LOAM_GATE_T LOAM_GATE_S </proc/uptime
until [ -e ${CONTAINER_PATH}/${OPEN_FILE} ]; do
  LOAM_GATE_N=$((LOAM_GATE_N + 1))
  [ $LOAM_GATE_N -gt 400 ] && LOAM_GATE_S=1 || LOAM_GATE_S=0.005
  sleep $LOAM_GATE_S 2>/dev/null || sleep 1 2>/dev/null || :
  read -r LOAM_GATE_U LOAM_GATE_S </proc/uptime
  [ $((\${LOAM_GATE_U%.*} - \${LOAM_GATE_T%.*})) -gt ${MAX_WAIT_S} ] && exit 255
done
`;

/**
 * The watchdog ends a container at its timeout if no server does. The watchdog is a child of the init, so that the command
 * has no unknown child. It has no effect when the job kills its `sleep`, or in an image without `sleep`.
 *
 * With a recorder, this shell remains as the parent of the command. It reports the exit code and how many processes of the
 * container were killed for lack of memory, because the engine counts a kill for all containers in the shared control group.
 * It opens the FIFOs for reading too, so that a command whose recorder was killed waits instead of getting SIGPIPE. It
 * ignores signals, which the command receives itself. The parentheses keep the messages of dash about a killed child out of
 * the job's output.
 */
const RUN_COMMAND = `LOAM_GATE_C=$LOAM_GATE_COMMAND
LOAM_GATE_HOW=
( ( trap '' TERM HUP INT; t=$LOAM_GATE_SECONDS; g=$LOAM_GATE_GRACE
  unset LOAM_GATE_COMMAND LOAM_GATE_SECONDS LOAM_GATE_GRACE TINI_KILL_PROCESS_GROUP
  sleep "$t" && { [ -e ${CONTAINER_PATH}/${STOP_FILE} ] || kill -TERM -1; sleep "$g"; kill -KILL -1; } ) >/dev/null 2>&1 </dev/null & )
unset LOAM_GATE_COMMAND LOAM_GATE_SECONDS LOAM_GATE_GRACE TINI_KILL_PROCESS_GROUP
[ ! -e ${CONTAINER_PATH}/${OPEN_FILE} ] || read -r LOAM_GATE_AT LOAM_GATE_HOW <${CONTAINER_PATH}/${OPEN_FILE}
PATH=$1
[ "$LOAM_GATE_HOW" = ${RECORDED} ] || exec /bin/sh -c "$LOAM_GATE_C"
exec 3<>${CONTAINER_PATH}/out 4<>${CONTAINER_PATH}/err >/dev/null 2>&1
trap : TERM HUP INT QUIT USR1 USR2 ALRM
echo begun 1<>${CONTAINER_PATH}/end
(exec /bin/sh -c "$LOAM_GATE_C" >&3 2>&4 3>&- 4>&-)
code=$? killed=
for file in ${OOM_KILL_FILES.join(' ')}; do
  [ ! -r $file ] || while read -r key n; do [ "$key" != oom_kill ] || killed=" $n"; done <$file
done
echo "exit $code$killed" 1<>${CONTAINER_PATH}/end
exit $code`;

type StartBarrierOptions = {
  command: string;
  timeoutMs: number;
  /** Time between SIGTERM and SIGKILL. */
  graceMs: number;
  /** For a remote engine: no setup follows the start of the container, so the command runs at once. */
  isOpen: boolean;
};

/** @returns options for creating the container */
export function buildStartBarrier({ command, timeoutMs, graceMs, isOpen }: StartBarrierOptions) {
  const timeoutS = Math.ceil(timeoutMs / 1000);
  const graceS = Math.ceil(graceMs / 1000);
  const watchdogDelayS = isOpen ? graceS + WATCHDOG_REMOTE_DELAY_S : WATCHDOG_DELAY_S;
  return {
    entrypoint: [
      '/bin/sh',
      '-c',
      SET_PATH + (isOpen ? RUN_COMMAND : WAIT_FOR_BARRIER + RUN_COMMAND),
    ],
    env: {
      LOAM_GATE_COMMAND: command,
      LOAM_GATE_SECONDS: String(timeoutS + watchdogDelayS),
      LOAM_GATE_GRACE: String(graceS),
      // The init forwards SIGTERM to the whole process group of the job, not to its shell alone.
      TINI_KILL_PROCESS_GROUP: '1',
    },
    containerPath: CONTAINER_PATH,
  };
}

/** The barrier's folder in the folder of the attempt. */
export function barrierDir(attemptDir: string): string {
  return join(attemptDir, 'gate');
}

export async function createBarrierDir(attemptDir: string): Promise<void> {
  await mkdir(barrierDir(attemptDir), { mode: 0o755 });
}

export type BarrierOpening = {
  at: number;
  /** The command prints into the FIFOs. */
  recorded: boolean;
};

/** @returns null while the barrier is closed */
export async function readBarrierOpening(attemptDir: string): Promise<BarrierOpening | null> {
  try {
    const content = await readFile(join(barrierDir(attemptDir), OPEN_FILE), 'utf8');
    const [at, flag] = content.trim().split(' ');
    return { at: Number(at), recorded: flag === RECORDED };
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw error;
  }
}

/**
 * Lets the job start; for a remote container, which has no barrier, it only records the time.
 * @param mayOpen called while the barrier's file is synced to the disk, because both take equally long
 * @returns the result of `mayOpen`
 */
export async function openBarrier(
  attemptDir: string,
  { recorded }: Pick<BarrierOpening, 'recorded'>,
  mayOpen: () => Promise<boolean>,
): Promise<boolean> {
  const file = join(barrierDir(attemptDir), OPEN_FILE);
  const content = () => `${Date.now()}${recorded ? ` ${RECORDED}` : ''}\n`;
  // The container's user must be able to read the file.
  await using handle = await open(`${file}.new`, 'w', 0o644);
  const write = async () => {
    await handle.write(content(), 0);
    await handle.sync();
  };
  // `allSettled`, so that both have settled before the caller retries.
  const [may, written] = await Promise.allSettled([mayOpen(), write()]);
  if (may.status === 'rejected') throw may.reason;
  if (written.status === 'rejected') throw written.reason;
  if (!may.value) return false;
  // The job's time begins now. The new time has the same length, so after a crash of the machine the file has one of the two
  // times.
  await handle.write(content(), 0);
  await rename(`${file}.new`, file);
  return true;
}

/** Called before the stop signal is sent. */
export async function markStopRequested(attemptDir: string): Promise<void> {
  await writeFile(join(barrierDir(attemptDir), STOP_FILE), '');
}
