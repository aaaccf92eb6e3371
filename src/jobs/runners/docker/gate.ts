/**
 * The gate: what a container does first. It waits until the server has set up all that is set up from outside, such as
 * the rules of its network, and only then becomes the job's command. That moment is when the job starts.
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
/** A gate that was not opened for so long never will be: the server that made the container is gone. */
const WAIT_S = 3_600;

/**
 * For `/bin/sh -c`. Polled, because that works on every kind of engine and mount: a hundred times a second at first,
 * because a job waits for it. The command and how long to wait come in variables, which the job does not get:
 * in the arguments every `pkill -f` of a job would find its init.
 *
 * The watchdog ends a container whose server is not there at its timeout. It belongs to the init, so that no command has
 * a child that it does not know, and it does nothing when the job kills its `sleep`.
 */
const WAIT = `n=0
until [ -e ${SEEN_AT}/${FILE} ]; do
  n=$((n + 1))
  [ $n -gt 200 ] && s=1 || s=0.01
  [ $n -gt ${200 + WAIT_S} ] && exit 125
  sleep $s 2>/dev/null || sleep 1 2>/dev/null || :
done
`;
const BEGIN = `c=$LOAM_GATE_COMMAND
( ( trap '' TERM HUP INT; t=$LOAM_GATE_SECONDS; g=$LOAM_GATE_GRACE
  unset LOAM_GATE_COMMAND LOAM_GATE_SECONDS LOAM_GATE_GRACE TINI_KILL_PROCESS_GROUP
  sleep "$t" && { [ -e ${SEEN_AT}/${TOLD} ] || kill -TERM -1; sleep "$g"; kill -KILL -1; } ) >/dev/null 2>&1 </dev/null & )
unset LOAM_GATE_COMMAND LOAM_GATE_SECONDS LOAM_GATE_GRACE TINI_KILL_PROCESS_GROUP n s
exec /bin/sh -c "$c"`;

export type GateOptions = {
  command: string;
  timeoutMs: number;
  /** Between SIGTERM and SIGKILL. */
  graceMs: number;
  /** Nothing is set up after its start, which is the start of the job then: so on another machine. */
  isOpen: boolean;
};

/** Parts of what a container is created with. */
export function gateOf({ command, timeoutMs, graceMs, isOpen }: GateOptions) {
  const [timeout, grace] = [timeoutMs, graceMs].map((ms) => Math.ceil(ms / 1000)) as [
    number,
    number,
  ];
  return {
    entrypoint: ['/bin/sh', '-c', isOpen ? BEGIN : WAIT + BEGIN],
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

/** When it was opened; null: it is closed. */
export async function openedAt(place: string): Promise<number | null> {
  try {
    return Number(await readFile(join(gateFolder(place), FILE), 'utf8'));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw error;
  }
}

/** Lets the job start, or notes that it does. */
export async function openGate(place: string): Promise<void> {
  const file = join(gateFolder(place), FILE);
  const handle = await open(`${file}.new`, 'w', 0o444);
  try {
    await handle.writeFile(String(Date.now()));
    await handle.sync();
  } finally {
    await handle.close();
  }
  await rename(`${file}.new`, file);
}

/** To be called before the job is told to end. */
export async function noteTold(place: string): Promise<void> {
  await writeFile(join(gateFolder(place), TOLD), '');
}
