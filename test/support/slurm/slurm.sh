#!/bin/bash
# A real Slurm cluster on one machine.
#
#   slurm.sh up DIR           start munge, slurmctld and its slurmds; prints the path of slurm.conf
#   slurm.sh down DIR         end all of it, remove its mounts, cgroups and namespaces; DIR/log stays
#   slurm.sh kill DIR NAME    kill NAME at once: node1 (the machine with all its jobs), node1/slurmd (its jobs go on),
#                             slurmctld
#   slurm.sh start DIR NAME   start it again (slurmctld reads its saved state)
#   slurm.sh pid DIR NAME     its pid on this machine; after SIGSTOP, node1/slurmd is a node that falls silent while its jobs go on
#
# Settings (environment): PORTS (of slurmctld and of each node, separated by spaces), NODE=node (the nodes are node1, node2, …; clusters that run
# at the same time need different names, because control groups are named by them), MIN_JOB_AGE=300 (seconds for which ended jobs stay known),
# SLURMD_TIMEOUT=60 (seconds of silence until a node is down), KILL_WAIT=30 (seconds between TERM and KILL),
# CPUS=2 and MEMORY=2000 (MB) of each node, which need not be those of this machine.
# Run as root. It needs Debian's packages slurm-wlm and munge. It runs twice, after an unclean end, and without a terminal.
# Everything listens on 127.0.0.1 or on sockets in DIR.
#
# Each daemon runs under an `unshare --pid` of its own, so that killing the namespace's first process ends whatever the
# daemon has started: a slurmstepd and its job leave every session and process group. Debian's slurmd is not built for
# several on one host, so each node has a host name of its own (UTS namespace), its own port, spool folder and log.
set -euo pipefail
usage() { sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 2; }
[ $# -ge 2 ] || usage
COMMAND=$1; mkdir -p "$2"; DIR=$(cd "$2" && pwd); ARG=${3:-}
PORTS=(${PORTS:-16817 16818 16819}) NODE=${NODE:-node} MIN_JOB_AGE=${MIN_JOB_AGE:-300} SLURMD_TIMEOUT=${SLURMD_TIMEOUT:-60} KILL_WAIT=${KILL_WAIT:-30} CPUS=${CPUS:-2} MEMORY=${MEMORY:-2000}
RUN=$DIR/run LOG=$DIR/log
export SLURM_CONF=$DIR/etc/slurm.conf

say() { echo "slurm.sh: $*" >&2; }
wait_for() { # SECONDS WHAT COMMAND… : tries it ten times a second
  local end=$((SECONDS + $1)) what=$2; shift 2
  while ! timeout 10 "$@" >/dev/null 2>&1; do [ $SECONDS -lt $end ] || { say "no $what; see $LOG"; tail -n 5 "$LOG/$what" >&2 2>/dev/null || true; return 1; }; sleep 0.1; done
}
# A process is ours when its pid still has the start time that we wrote down. It is alive as long as one of its threads is: after SIGKILL,
# a thread that waits for the disk ends late, and the ports of the process are in use until then.
started() { awk '{sub(/.*\) /, ""); if ($1 != "Z" || $18 > 1) print $20}' "/proc/$1/stat" 2>/dev/null || true; }
ended() { # SECONDS PID TIME : waits for the end of a process
  for _ in $(seq $(($1 * 10))); do [ -n "$3" ] && [ "$(started "$2")" = "$3" ] || return 0; sleep 0.1; done; return 1
}
start() { # NAME COMMAND… : in a pid namespace of its own, logging to $LOG/NAME
  local name=$1 own="unshare --pid --fork --kill-child --mount --mount-proc --propagation slave"; shift
  LOAM_SLURM_TEST=$DIR setsid $own "$@" >>"$LOG/$name" 2>&1 </dev/null &
  echo "$! $(started $!)" >"$RUN/$name.pid"
}
stop() { # NAME [SIGNAL] : ends the daemon (TERM first unless told otherwise) and with it its whole namespace
  local file=$RUN/$1.pid pid time child child_time; [ -f "$file" ] || return 0
  read -r pid time <"$file"
  if [ -n "$time" ] && [ "$(started "$pid")" = "$time" ]; then
    child=$(cat "/proc/$pid/task/$pid/children" 2>/dev/null || true); child=${child%% *}; child_time=$(started "${child:-$pid}")
    if [ "${2:-TERM}" = TERM ]; then kill -TERM "${child:-$pid}" 2>/dev/null || true; ended 5 "$pid" "$time" || true; fi
    kill -KILL $child "$pid" 2>/dev/null || true
    ended 60 "$pid" "$time" && ended 60 "${child:-$pid}" "$child_time" || { say "$1 does not end"; return 1; }
  fi
  rm -f "$file"
}

down() {
  local name
  for name in $(cat "$DIR/nodes" 2>/dev/null || true); do stop "$name" KILL || true; done  # at once: no job is waited for
  for name in slurmctld munged; do stop "$name" || true; done
  # without pid files: whoever has the mark that we give to all that we start
  local file pid; for file in $(grep -lzxsF "LOAM_SLURM_TEST=$DIR" /proc/[0-9]*/environ 2>/dev/null || true); do
    pid=${file#/proc/}; kill -KILL "${pid%/environ}" 2>/dev/null || true
  done
  local node controller
  for node in $(cat "$DIR/nodes" 2>/dev/null || true); do  # cgroups of the nodes, deepest first
    for controller in /sys/fs/cgroup/*/; do
      [ -d "$controller/slurm_$node" ] && find "$controller/slurm_$node" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
  done
  if [ -f "$DIR/cgroup-slurm" ]; then for controller in /sys/fs/cgroup/*/; do
    [ -d "$controller/slurm" ] && find "$controller/slurm" -depth -type d -exec rmdir {} + 2>/dev/null || true
  done; rm -f "$DIR/cgroup-slurm"; fi
  rm -rf "$RUN" "$DIR/state" "$DIR/spool" "$DIR/nodes"
}

configure() {
  local nodes=$((${#PORTS[@]} - 1)) host i; host=$(hostname -s)
  mkdir -p "$DIR/etc" "$DIR/state" "$DIR/spool" "$RUN/munge"; chmod 755 "$DIR" "$RUN" "$DIR/etc"
  chown slurm "$DIR/state" "$DIR/spool"
  [ -f "$DIR/etc/munge.key" ] || dd if=/dev/urandom of="$DIR/etc/munge.key" bs=1024 count=1 status=none
  chown munge "$DIR/etc/munge.key" "$RUN/munge"; chmod 600 "$DIR/etc/munge.key"
  # Two devices that stand for GPUs of the last node.
  for i in 0 1; do [ -e "$DIR/state/gpu$i" ] || mknod "$DIR/state/gpu$i" c 1 3; done
  local cgroups=no
  if [ -d /sys/fs/cgroup/freezer ] && [ -d /sys/fs/cgroup/memory ]; then cgroups=yes; fi
  cat >"$SLURM_CONF" <<X
ClusterName=loam
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${PORTS[0]}
SlurmUser=slurm
AuthType=auth/munge
AuthInfo=socket=$RUN/munge/socket
CredType=cred/munge
# listen on 127.0.0.1 only
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation=$DIR/state
SlurmctldPidFile=$RUN/slurmctld.id
SlurmdPidFile=$RUN/slurmd-%n.id
SlurmdSpoolDir=$DIR/spool/%n
SlurmctldLogFile=$LOG/slurmctld
SlurmdLogFile=$LOG/slurmd-%n
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/$([ $cgroups = yes ] && echo cgroup || echo linuxproc)
TaskPlugin=task/$([ $cgroups = yes ] && echo cgroup || echo none)
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=5
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
GresTypes=gpu
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=5,batch_sched_delay=0,sched_interval=5
KillWait=$KILL_WAIT
MinJobAge=$MIN_JOB_AGE
SlurmctldTimeout=60
SlurmdTimeout=$SLURMD_TIMEOUT
# a busy node answers late, and slurmctld repeats a message that failed only after a minute
MessageTimeout=$((SLURMD_TIMEOUT > 10 ? SLURMD_TIMEOUT : 10))
ReturnToService=2
JobRequeue=0
EnforcePartLimits=ANY
# the nodes say what we say, not what the machine has
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
X
  : >"$DIR/nodes"; : >"$DIR/etc/gres.conf"
  for i in $(seq "$nodes"); do
    echo "$NODE$i" >>"$DIR/nodes"
    if [ "$i" = "$nodes" ]; then
      echo "NodeName=$NODE$i Name=gpu Type=fake File=$DIR/state/gpu[0-1]" >>"$DIR/etc/gres.conf"
      echo "NodeName=$NODE$i NodeHostname=$NODE$i NodeAddr=127.0.0.1 Port=${PORTS[$i]} CPUs=$CPUS RealMemory=$MEMORY Gres=gpu:fake:2 Features=big State=UNKNOWN" >>"$SLURM_CONF"
    else
      echo "NodeName=$NODE$i NodeHostname=$NODE$i NodeAddr=127.0.0.1 Port=${PORTS[$i]} CPUs=$CPUS RealMemory=$MEMORY State=UNKNOWN" >>"$SLURM_CONF"
    fi
  done
  echo "PartitionName=main Nodes=ALL Default=YES MaxTime=1-00:00:00 DefaultTime=01:00:00 State=UP OverSubscribe=NO" >>"$SLURM_CONF"
  printf 'CgroupMountpoint=/sys/fs/cgroup\nCgroupAutomount=no\nConstrainRAMSpace=yes\nConstrainSwapSpace=no\nConstrainCores=no\nAllowedRAMSpace=100\nMinRAMSpace=8\n' >"$DIR/etc/cgroup.conf"
  [ $cgroups = yes ] && { ls -d /sys/fs/cgroup/*/slurm >/dev/null 2>&1 || touch "$DIR/cgroup-slurm"; }
  chmod 644 "$SLURM_CONF" "$DIR/etc/gres.conf" "$DIR/etc/cgroup.conf"
}

start_slurmctld() {
  start slurmctld setpriv --reuid slurm --regid slurm --clear-groups slurmctld -D -i
  wait_for 60 slurmctld sh -c 'scontrol ping | grep -q "is UP"'
}
start_node() { # NODE : in a UTS namespace too, for a host name of its own; its init is a shell, so that slurmd can die alone
  mkdir -p "$DIR/spool/$1"; rm -f "$DIR/spool/$1.ready"
  { cat /etc/hosts; echo "127.0.0.1 $(tr '\n' ' ' <"$DIR/nodes")"; } >"$DIR/etc/hosts"  # slurmd looks its own name up
  start "$1" unshare --uts bash -c 'mount --bind "$1" /etc/hosts; hostname "$0"; touch "$2"; while :; do sleep 100000 & wait $!; done' "$1" "$DIR/etc/hosts" "$DIR/spool/$1.ready"
  wait_for 60 "$1" test -e "$DIR/spool/$1.ready"; start_slurmd "$1"
}
init_of() { local pid _; read -r pid _ <"$RUN/$1.pid"; pid=$(cat "/proc/$pid/task/$pid/children"); echo "${pid%% *}"; }
start_slurmd() {
  local init; init=$(init_of "$1")
  # its parent is a shell, because nsenter stops with its child and is not continued with it; then nobody would notice the child's end
  LOAM_SLURM_TEST=$DIR setsid nsenter --target "$init" --pid --mount --uts --no-fork bash -c 'slurmd -D -N "$0" & wait $!' "$1" >>"$LOG/$1" 2>&1 </dev/null &
  local parent=$! child=; for _ in $(seq 100); do child=$(cat "/proc/$parent/task/$parent/children" 2>/dev/null || true); [ -n "$child" ] && break; sleep 0.02; done
  mkdir -p "$RUN/$1"; echo "${child%% *} $(started "${child%% *}")" >"$RUN/$1/slurmd.pid"
}

up() {
  down; mkdir -p "$RUN" "$LOG"; touch "$LOG/slurmctld"; chown slurm "$LOG" "$LOG/slurmctld"
  chown slurm "$RUN"; configure
  chown munge "$RUN/munge"; chmod 755 "$RUN/munge"; mkdir -p "$RUN/munge-state"; chown munge "$RUN/munge-state"; chmod 711 "$RUN/munge-state"
  touch "$LOG/munged.log"; chown munge "$LOG/munged.log"
  start munged setpriv --reuid munge --regid munge --clear-groups munged --foreground --force --key-file="$DIR/etc/munge.key" \
    --socket="$RUN/munge/socket" --seed-file="$RUN/munge-state/seed" --pid-file="$RUN/munge-state/pid" --log-file="$LOG/munged.log"
  wait_for 60 munge test -S "$RUN/munge/socket"
  start_slurmctld
  for node in $(cat "$DIR/nodes"); do start_node "$node"; done
  wait_for 60 "idle nodes" sh -c "[ \$(sinfo -h -N -o %T | grep -c '^idle\$') = $((${#PORTS[@]} - 1)) ]"
  echo "$SLURM_CONF"
}

case $COMMAND in
  up) up ;;
  down) down ;;
  kill) stop "$ARG" KILL ;;
  start) stop "$ARG" KILL; case $ARG in slurmctld) start_slurmctld ;; */slurmd) start_slurmd "${ARG%/*}" ;; *) start_node "$ARG" ;; esac ;;
  pid) case $ARG in */slurmd) read -r pid _ <"$RUN/$ARG.pid"; echo "$pid" ;; *) init_of "$ARG" ;; esac ;;
  *) usage ;;
esac
