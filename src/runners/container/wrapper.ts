/**
 * The shell around the command in the container `job` of a pod. It shares a folder with the agent, which is in the pod's other
 * container: the agent creates FIFOs there, and reads the command's output and the reports of this shell from them.
 *
 * Reports in the FIFO `end`, one per line; a job can write there too, so other lines must be ignored:
 *   ready                          the container runs, and waits for the file `start`
 *   begun                          the command begins
 *   usage <CPU seconds> <bytes>    every 5 seconds: CPU time since the start of the container, and its memory
 *   exit <code> [<OOM kills>]      the command has ended; the container's own status has the exit code too
 *
 * Commands in the FIFO `control`, one per line: `TERM` and `KILL` signal every process of the job, or keep it from beginning;
 * KILL goes on until the container ends, because the command may begin at that moment. The kubelet's SIGTERM has no effect here:
 * the agent receives it too, and passes it on. This shell waits for the command in the foreground, because a command in the
 * background would ignore SIGINT and SIGQUIT.
 */

/** Searched before the job's own PATH, in which the programs of the script may be missing. */
export const DEFAULT_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

/** Names in the shared folder. */
export const SHARED = {
  /** Created by the agent in this order. The job's user must be able to open them for reading and writing. */
  fifos: ['out', 'err', 'end', 'control'],
  end: 'end',
  control: 'control',
  /** A shell script that sets the environment and runs the command. It appears complete, by rename, and begins the command. */
  start: 'start',
  /** The folder of the provided files. */
  files: 'files',
} as const;

/** The shared folder, in both containers. The job cannot change it, but can open the FIFOs. */
export const SHARED_DIR = '/.loam';

/** The shell gives up after this time without a FIFO or the file `start`. */
const MAX_WAIT_S = 3_600;
/** The number of polls after which the pauses are longer. */
const QUICK_POLLS = 160;
const USAGE_INTERVAL_S = 5;

/**
 * The script only needs `sleep` beside the shell's own commands; in an image without it, it polls without a pause, and reports no
 * usage.
 * The descriptors that it holds open keep the FIFOs from ending before the container does, even if the job closes its output.
 */
export function buildWrapper(dir: string = SHARED_DIR): string {
  return `set -- "$PATH"
PATH=${DEFAULT_PATH}:$PATH
n=0 begin=0 now=0 pause=0.05
read -r begin now </proc/uptime
await() {
  until [ -e "$1" ]; do
    n=$((n + 1))
    [ $n -le ${QUICK_POLLS} ] || pause=1
    sleep $pause 2>/dev/null || sleep 1 2>/dev/null || :
    read -r now _ </proc/uptime
    [ $((\${now%.*} - \${begin%.*})) -le ${MAX_WAIT_S} ] || exit 255
  done
}
early=
trap : TERM HUP INT QUIT ALRM
trap 'early=143' USR1
trap 'early=137' USR2
await ${dir}/${SHARED.control}
exec 3<>${dir}/out 4<>${dir}/err 5<>${dir}/end </dev/null >/dev/null 2>&1
(
  trap '' TERM HUP USR1 USR2 ALRM
  exec 3>&- 4>&- 5>&- 6<>${dir}/${SHARED.control}
  while read -r word <&6; do
    case $word in
      TERM) kill -USR1 1; kill -TERM -1 ;;
      KILL) kill -USR2 1; while :; do kill -KILL -1; sleep 0.1 || break; done ;;
    esac
  done
) &
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
await ${dir}/${SHARED.start}
if [ -n "$early" ]; then
  echo "exit $early" >&5
  exit "$early"
fi
echo begun >&5
(
  PATH=$1
  exec /bin/sh ${dir}/${SHARED.start} >&3 2>&4 3>&- 4>&- 5>&-
)
code=$? killed=
for file in /sys/fs/cgroup/memory/memory.oom_control /sys/fs/cgroup/memory.events; do
  [ ! -r $file ] || while read -r key value; do [ "$key" != oom_kill ] || killed=" $value"; done <$file
done
echo "
exit $code$killed" >&5
exit $code`;
}
