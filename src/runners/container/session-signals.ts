/**
 * Signals the processes of a session whose leader has printed its process id and start time. Arguments: both, the signal, and
 * `leader` or `all`. The start time shows whether the process id was used again. The fields follow the name, which may contain
 * spaces. This file imports nothing, because the agent on the nodes of a cluster needs the script too.
 */
export const SIGNAL_SCRIPT = `session=$1 start=$2 signal=$3 which=$4
for stat in /proc/$session/stat /proc/[0-9]*/stat; do
  { read -r line <"$stat"; } 2>/dev/null || continue
  pid=\${line%% *}
  set -- \${line##*) }
  [ "$pid" != "$session" ] || [ "\${20}" = "$start" ] || exit
  [ "$4" = "$session" ] || continue
  [ "$which" = all ] || [ "$pid" = "$session" ] || continue
  kill -"$signal" "$pid"
  kill -CONT "$pid"
done 2>/dev/null`;
