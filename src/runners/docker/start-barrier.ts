/**
 * The gate: what a container does first. It waits until the server has set up all that is set up from outside, such as
 * the rules of its network, and only then runs the job's command. That moment is when the job starts.
 *
 * The gate is a file, which appears in a folder that the container sees read-only. It holds the time at which it was
 * opened and stays, so that whoever comes back to the container knows both. Nothing of it is a secret, and nothing
 * in it can be changed by the job. An image may hold another `/bin/sh` than it should: what keeps such a one from the
 * network is that the container has none before its rules stand (`network.ts`), not the gate.
 */
import { mkdir, open, readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

/** Where the container sees the folder. */
const SEEN_AT = '/.loam';
const FILE = 'open';
/** The server has told the job to end: the watchdog need not. */
const TOLD = 'told';
/** How long after the timeout the watchdog waits for the server's own signal, … */
const SPARE_S = 3;
/** … and where it cannot see that there was one, for the end of the grace after it: a second signal makes programs end at once. */
const SPARE_UNSEEN_S = 5;
/** Where the command prints, and where its parent says that it begins and how it ended: see `recorder.ts`. */
export const FIFOS = ['out', 'err', 'end'] as const;
/** There when all of them are (`recorder.ts`). */
export const LAST_FIFO = FIFOS[2];
/** In the gate's file: the FIFOs are read. */
const RECORDED = 'recorded';
/** A gate that was not opened for so long never will be: the server that made the container is gone. */
const WAIT_S = 3_600;
/** Where programs are, before those folders that the job names: it may name none that has them. */
export const USUAL_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';
/** Of the container's own control group, by the version of control groups: lines of a name and a number. */
const OOM_KILLS = ['/sys/fs/cgroup/memory/memory.oom_control', '/sys/fs/cgroup/memory.events'];

/**
 * For `/bin/sh -c`. Polled, because that works on every kind of engine and mount: each 5 ms at first, because a job waits
 * for it. The command and how long to wait come in variables, which the job does not get:
 * in the arguments every `pkill -f` of a job would find its init. Other names than these may be the job's own variables,
 * which it would get changed. The job's `PATH` is kept as the first argument of the shell, and given back for the command.
 *
 * An image without `sleep` polls without a pause, so how long it waits is told by the clock. Who gives up ends as if the engine
 * had ended it: what comes later makes the container anew. Such an image has no watchdog either.
 *
 * The watchdog ends a container whose server is not there at its timeout. It belongs to the init, so that no command has
 * a child that it does not know, and it does nothing when the job kills its `sleep`.
 *
 * Where the container is recorded, this shell stays as the parent of the command and tells how that ended, and how many
 * processes of the container the kernel has killed for want of memory: the engine takes one that was killed in another
 * container of the same server for one of each. It opens the FIFOs for reading too, so that a command waits for a recorder
 * that was killed, instead of getting SIGPIPE. Signals are for the command, which gets them itself. What a shell prints
 * about a child that was killed is no line of the job: the parentheses keep it out of the command's output, which dash
 * would give it.
 */
const FIND = `set -- "$PATH"
PATH=${USUAL_PATH}:$PATH
`;
const WAIT = `LOAM_GATE_N=0 LOAM_GATE_T=0 LOAM_GATE_U=0
read -r LOAM_GATE_T LOAM_GATE_S </proc/uptime
until [ -e ${SEEN_AT}/${FILE} ]; do
  LOAM_GATE_N=$((LOAM_GATE_N + 1))
  [ $LOAM_GATE_N -gt 400 ] && LOAM_GATE_S=1 || LOAM_GATE_S=0.005
  sleep $LOAM_GATE_S 2>/dev/null || sleep 1 2>/dev/null || :
  read -r LOAM_GATE_U LOAM_GATE_S </proc/uptime
  [ $((\${LOAM_GATE_U%.*} - \${LOAM_GATE_T%.*})) -gt ${WAIT_S} ] && exit 255
done
`;
const BEGIN = `LOAM_GATE_C=$LOAM_GATE_COMMAND
LOAM_GATE_HOW=
( ( trap '' TERM HUP INT; t=$LOAM_GATE_SECONDS; g=$LOAM_GATE_GRACE
  unset LOAM_GATE_COMMAND LOAM_GATE_SECONDS LOAM_GATE_GRACE TINI_KILL_PROCESS_GROUP
  sleep "$t" && { [ -e ${SEEN_AT}/${TOLD} ] || kill -TERM -1; sleep "$g"; kill -KILL -1; } ) >/dev/null 2>&1 </dev/null & )
unset LOAM_GATE_COMMAND LOAM_GATE_SECONDS LOAM_GATE_GRACE TINI_KILL_PROCESS_GROUP
[ ! -e ${SEEN_AT}/${FILE} ] || read -r LOAM_GATE_AT LOAM_GATE_HOW <${SEEN_AT}/${FILE}
PATH=$1
[ "$LOAM_GATE_HOW" = ${RECORDED} ] || exec /bin/sh -c "$LOAM_GATE_C"
exec 3<>${SEEN_AT}/out 4<>${SEEN_AT}/err >/dev/null 2>&1
trap : TERM HUP INT QUIT USR1 USR2 ALRM
echo begun 1<>${SEEN_AT}/end
(exec /bin/sh -c "$LOAM_GATE_C" >&3 2>&4 3>&- 4>&-)
code=$? killed=
for file in ${OOM_KILLS.join(' ')}; do
  [ ! -r $file ] || while read -r key n; do [ "$key" != oom_kill ] || killed=" $n"; done <$file
done
echo "exit $code$killed" 1<>${SEEN_AT}/end
exit $code`;

export type GateOptions = {
  command: string;
  timeoutMs: number;
  /** Between SIGTERM and SIGKILL. */
  graceMs: number;
  /** Nothing is set up after its start, which is the start of the job then: so on another machine. */
  isOpen: boolean;
};

/** Parts of what a container is created with. */
export function startBarrierOf({ command, timeoutMs, graceMs, isOpen }: GateOptions) {
  const [timeout, grace] = [timeoutMs, graceMs].map((ms) => Math.ceil(ms / 1000)) as [
    number,
    number,
  ];
  return {
    entrypoint: ['/bin/sh', '-c', FIND + (isOpen ? BEGIN : WAIT + BEGIN)],
    env: {
      LOAM_GATE_COMMAND: command,
      LOAM_GATE_SECONDS: String(timeout + (isOpen ? grace + SPARE_UNSEEN_S : SPARE_S)),
      LOAM_GATE_GRACE: String(grace),
      // A SIGTERM goes on to the whole process group of the job, and not to its shell alone.
      TINI_KILL_PROCESS_GROUP: '1',
    },
    seenAt: SEEN_AT,
  };
}

/** Of the attempt in this folder. */
export function gateFolder(place: string): string {
  return join(place, 'gate');
}

export async function makeGate(place: string): Promise<void> {
  await mkdir(gateFolder(place), { mode: 0o755 });
}

export type Opened = {
  at: number;
  /** What the command prints goes into the FIFOs. */
  recorded: boolean;
};

/** Null: it is closed. */
export async function opening(place: string): Promise<Opened | null> {
  try {
    const [at, how] = (await readFile(join(gateFolder(place), FILE), 'utf8')).trim().split(' ');
    return { at: Number(at), recorded: how === RECORDED };
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw error;
  }
}

/**
 * Lets the job start, or notes that it does.
 * @param mayOpen asked while the gate's file is brought to the disk, which takes as long @returns what it says
 */
export async function openGate(
  place: string,
  { recorded }: Pick<Opened, 'recorded'>,
  mayOpen: () => Promise<boolean>,
): Promise<boolean> {
  const file = join(gateFolder(place), FILE);
  const text = () => `${Date.now()}${recorded ? ` ${RECORDED}` : ''}\n`;
  // The container sees it read-only.
  await using handle = await open(`${file}.new`, 'w', 0o644);
  const write = async () => {
    await handle.write(text(), 0);
    await handle.sync();
  };
  // Both are over before anybody tries again.
  const [may, written] = await Promise.allSettled([mayOpen(), write()]);
  if (may.status === 'rejected') throw may.reason;
  if (written.status === 'rejected') throw written.reason;
  if (!may.value) return false;
  // The job's time begins now. Of the same length, so that a machine that crashes leaves one of the two.
  await handle.write(text(), 0);
  await rename(`${file}.new`, file);
  return true;
}

/** To be called before the job is told to end. */
export async function noteTold(place: string): Promise<void> {
  await writeFile(join(gateFolder(place), TOLD), '');
}
