/**
 * Signals the processes of a session whose leader has printed its process id and start time. Arguments: both, the signal, and who
 * gets it beside the leader: `leader` (nobody), `all`, or `attached`, those with a pipe among their standard streams. What an
 * editor leaves in the background, with files instead, thus outlives a lost connection, as with OpenSSH's server. The start time
 * shows whether the process id was used again. The fields follow the name, which may contain spaces. This file imports nothing,
 * because the agent on the nodes of a cluster needs the script too.
 */
export const SIGNAL_SCRIPT = `session=$1 start=$2 signal=$3 which=$4
for stat in /proc/$session/stat /proc/[0-9]*/stat; do
  { read -r line <"$stat"; } 2>/dev/null || continue
  pid=\${line%% *}
  set -- \${line##*) }
  [ "$pid" != "$session" ] || [ "\${20}" = "$start" ] || exit
  [ "$4" = "$session" ] || continue
  [ "$pid" = "$session" ] || case $which in
    leader) continue ;;
    attached) [ -p /proc/$pid/fd/0 ] || [ -p /proc/$pid/fd/1 ] || [ -p /proc/$pid/fd/2 ] || continue ;;
  esac
  kill -"$signal" "$pid"
  kill -CONT "$pid"
done 2>/dev/null`;
