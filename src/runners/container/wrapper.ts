/**
 * The shell around the command in a container. It shares a folder with the supervisor of the command, which creates FIFOs there
 * and reads the command's output and the reports of this shell from them. In a pod the supervisor is the agent in the pod's other
 * container; for a container of an engine on this machine it is the shim (`../docker/container-shim.ts`).
 *
 * Reports in the FIFO `end`, one per line; a job can write there too, so other lines must be ignored:
 *   ready                          in a pod: the container runs, and waits for the file `start`
 *   begun                          the command begins
 *   usage <CPU seconds> <bytes>    in a pod, every 5 seconds: CPU time since the start of the container, and its memory
 *   exit <code> [<OOM kills>]      the command has ended; the container's own status has the exit code too
 *
 * In a pod, commands in the FIFO `control`, one per line: `TERM` and `KILL` signal every process of the job, or keep it from
 * beginning; KILL goes on until the container ends, because the command may begin at that moment. `RUN <path>` starts the script at
 * the path below the folder, for commands beside that of the job (`../agent/exec.ts`). The kubelet's SIGTERM has no
 * effect here: the agent receives it too, and passes it on. This shell waits for the command in the foreground, because a command
 * in the background would ignore SIGINT and SIGQUIT.
 */
import { environmentScript } from '../process/launch.ts';
import { quoteForShell } from '../process/namespace.ts';
import { MOUNTS, resultVariables } from '../runner.ts';
import { SHARED, SHARED_DIR } from './shared-folder.ts';

/** Searched before the job's own PATH, in which the programs of the script may be missing. */
export const DEFAULT_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

/** The shell gives up after this time without a FIFO or the file `start`, with 255, as if an engine had ended the container. */
export const MAX_WAIT_S = 3_600;
const USAGE_INTERVAL_S = 5;
/** Where no supervisor sees the command, its watchdog acts this long after the timeout and the grace period of the server. */
const WATCHDOG_DELAY_S = 5;

/** The script that sets the environment of the job. */
export function buildEnvironmentScript(env: Readonly<Record<string, string>>): string {
  return environmentScript(
    { HOME: MOUNTS.home, TMPDIR: MOUNTS.tmp, ...resultVariables(MOUNTS.tmp), ...env },
    MOUNTS.work,
  );
}

/**
 * The script that sets the environment and runs the command. Arguments contain neither: `pkill -f` and `ps` would see them.
 * @param environment script that sets the environment
 */
export function buildStartScript(command: string, environment: string): string {
  return `${environment}exec /bin/sh -c ${quoteForShell(command)}\n`;
}

/** Reads the environment from its file, which commands beside that of the job read too. */
export const READ_ENVIRONMENT = `. ${SHARED_DIR}/${SHARED.environment}\n`;

/**
 * The script only needs `sleep` beside the shell's own commands; in an image without it, it polls without a pause, so the clock
 * limits the wait. The prefix of its variables avoids clashes with those of the image. PATH is kept as the first argument.
 * @param quickPolls the number of polls after which the pauses are longer
 */
const waiting = (pauseS: number, quickPolls: number) => `set -- "$PATH"
PATH=${DEFAULT_PATH}:$PATH
loam_n=0 loam_begin=0 loam_now=0 loam_pause=${pauseS}
read -r loam_begin loam_now </proc/uptime
loam_await() {
  until [ -e "$1" ]; do
    loam_n=$((loam_n + 1))
    [ $loam_n -le ${quickPolls} ] || loam_pause=1
    sleep $loam_pause 2>/dev/null || sleep 1 2>/dev/null || :
    read -r loam_now _ </proc/uptime
    [ $((\${loam_now%.*} - \${loam_begin%.*})) -le ${MAX_WAIT_S} ] || exit 255
  done
}
`;

/** Replaces a shell by the command. Its init forwards SIGTERM to the process group because of the last variable. */
const becomeCommand = (
  dir: string,
) => `unset loam_n loam_begin loam_now loam_pause loam_early TINI_KILL_PROCESS_GROUP
  PATH=$1
  exec /bin/sh ${dir}/${SHARED.start}`;

/**
 * The descriptors that the shell holds open keep the FIFOs from ending before the container does, even if the job closes its
 * output. They are open for reading too, so a command whose supervisor was killed waits instead of getting SIGPIPE.
 */
const openFifos = (dir: string) =>
  `exec 3<>${dir}/out 4<>${dir}/err 5<>${dir}/end </dev/null >/dev/null 2>&1\n`;

/** The parentheses keep the messages of dash about a killed child out of the job's output. */
const runAndReport = (dir: string) => `echo begun >&5
(
  ${becomeCommand(dir)} >&3 2>&4 3>&- 4>&- 5>&-
)
code=$? killed=
for file in /sys/fs/cgroup/memory/memory.oom_control /sys/fs/cgroup/memory.events; do
  [ ! -r $file ] || while read -r key value; do [ "$key" != oom_kill ] || killed=" $value"; done <$file
done
echo "
exit $code$killed" >&5
exit $code`;

/**
 * Runs a command as a child of the init, and does not wait for it. In the background of a shell, it would ignore SIGINT and SIGQUIT,
 * which no shell can change. So the shell that waits for it, whose whole script this is, is killed.
 */
const orphan = (command: string) => `${command} | kill -KILL $$`;

const obeyControl = (dir: string) =>
  orphan(`{
  trap '' TERM HUP USR1 USR2 ALRM
  exec 3>&- 4>&- 5>&- 6<>${dir}/${SHARED.control} >/dev/null
  while read -r word script <&6; do
    case $word in
      TERM) kill -USR1 1; kill -TERM -1 ;;
      KILL) kill -USR2 1; while :; do kill -KILL -1; sleep 0.1 || break; done ;;
      RUN) (
        trap - TERM HUP USR1 USR2 ALRM
        exec 6<&-
        PATH=$1
        exec /bin/sh -c ${quoteForShell(orphan('/bin/sh "$0"'))} ${dir}/"$script"
      ) ;;
    esac
  done
}`);

/** For the container `job` of a pod, whose first process the shell is. */
export function buildWrapper(dir: string = SHARED_DIR): string {
  return `${waiting(0.05, 160)}loam_early=
trap : TERM HUP INT QUIT ALRM
trap 'loam_early=143' USR1
trap 'loam_early=137' USR2
loam_await ${dir}/${SHARED.control}
${openFifos(dir)}/bin/sh -c ${quoteForShell(obeyControl(dir))} sh "$1"
(
  trap '' TERM HUP USR1 USR2 ALRM
  exec 3>&- 4>&-
  while sleep ${USAGE_INTERVAL_S}; do
    cpu= memory= inactive=0
    if [ -r /sys/fs/cgroup/cpu.stat ]; then
      while read -r key value _; do [ "$key" != usage_usec ] || cpu=$((value / 10000)); done </sys/fs/cgroup/cpu.stat
      read -r memory </sys/fs/cgroup/memory.current
      file=/sys/fs/cgroup/memory.stat name=inactive_file
    else
      read -r cpu </sys/fs/cgroup/cpuacct/cpuacct.usage && cpu=$((cpu / 10000000))
      read -r memory </sys/fs/cgroup/memory/memory.usage_in_bytes
      file=/sys/fs/cgroup/memory/memory.stat name=total_inactive_file
    fi
    while read -r key value; do [ "$key" != $name ] || inactive=$value; done <$file
    [ -n "$cpu" ] && [ -n "$memory" ] || exit
    part=$((cpu % 100))
    [ $part -ge 10 ] || part=0$part
    echo "usage $((cpu / 100)).$part $((memory - inactive))" >&5
  done
) &
echo ready >&5
loam_await ${dir}/${SHARED.start}
if [ -n "$loam_early" ]; then
  echo "exit $loam_early" >&5
  exit "$loam_early"
fi
${runAndReport(dir)}`;
}

/**
 * For a container of an engine, whose init is the parent of the shell. Without FIFOs the command has the output of the container,
 * and a watchdog ends it at its timeout if no server does. The watchdog is a child of the init, so that the command has no
 * unknown child. It has no effect when the job kills its `sleep`, or in an image without `sleep`.
 */
export function buildEngineWrapper(limits: { timeoutMs: number; graceMs: number }): string {
  const graceS = Math.ceil(limits.graceMs / 1000);
  const watchdogS = Math.ceil(limits.timeoutMs / 1000) + graceS + WATCHDOG_DELAY_S;
  return `${waiting(0.005, 400)}loam_await ${SHARED_DIR}/${SHARED.start}
if [ ! -p ${SHARED_DIR}/out ]; then
  ( ( trap '' TERM HUP INT
    unset TINI_KILL_PROCESS_GROUP
    sleep ${watchdogS} && { kill -TERM -1; sleep ${graceS}; kill -KILL -1; } ) >/dev/null 2>&1 </dev/null & )
  ${becomeCommand(SHARED_DIR)}
fi
${openFifos(SHARED_DIR)}trap : TERM HUP INT QUIT USR1 USR2 ALRM
${runAndReport(SHARED_DIR)}`;
}
