/**
 * Jobs that wait for shells (`loam shell --new`). The command of such a job reads events from a FIFO:
 *   open        a shell has begun
 *   exit CODE   the command of a shell has ended; the job ends with the code
 *   end         `loam` has received all output of a shell. The job ends only then: an earlier end would cut the output off
 *   idle        a terminal was idle: as `exit` and `end`
 *   closed      no shell is left: those without `exit` have lost their connection. Shells keep a second FIFO open, whose end is this
 *   timeout N   the idle time after the Nth `closed` is over
 */
import { Readable, Writable } from 'node:stream';
import type { LocalConnection } from '../connection.ts';
import { runInJob } from '../job-session.ts';
import { quote } from '../options.ts';
import { graphql } from '../sdk/graphql.ts';
import { demand } from '../sdk/pages.ts';
import { duration } from '../terminal.ts';
import { enter } from './new-job.ts';

const READ_COMMAND = graphql(`
  query ReadCommandOfJob($namespace: String!, $name: String!) {
    job(namespace: $namespace, name: $name) { command }
  }
`);

/** The line that the job prints once shells can begin. */
export const READY = 'Waiting for a shell';
const MARK = '# loam shell --idle ';
/** Shells share TMPDIR with their job, and with no other job. */
const FOLDER = '"$TMPDIR/loam-shell"';
const JOIN = '"$TMPDIR/loam-shell/join"';
const EVENTS = '"$TMPDIR/loam-shell/events"';
const SHELLS = '"$TMPDIR/loam-shell/shells"';
/** Of a server that does not answer any more. */
const END_MS = 30_000;

type JobKey = { namespace: string; name: string };

/**
 * The command of the job, for any POSIX shell. A second process waits for `shells` and for the time, because in some shells the end
 * of a child process interrupts what they wait for.
 * @param folder of the checkout, in which the shells begin
 * @param idleSeconds 0: the job waits without a limit
 */
export function waitingCommand(folder: string, idleSeconds: number): string {
  const time = duration(idleSeconds);
  return `${MARK}${idleSeconds}
mkdir -m 700 ${FOLDER} && mkfifo -m 600 ${EVENTS} ${SHELLS} || exit
exec 3<>${EVENTS}
cat >${JOIN} <<'END'
trap : INT QUIT
exec 9>${SHELLS}
echo open >${EVENTS}
${enter(folder)}if [ $# -gt 0 ]; then /bin/sh -c "$1" 9>&-
elif command -v bash >/dev/null; then bash -i 9>&-
else sh -i 9>&-; fi
code=$?
if [ $# -gt 0 ]; then echo "exit $code"; else echo 'exit 0'; fi >${EVENTS}
exit $code
END
(n=0
while :; do
  ${idleSeconds === 0 ? '' : `(sleep ${idleSeconds}; echo "timeout $n" >&3) &`}
  cat ${SHELLS} || exit
  echo closed >&3
  n=$((n + 1))
done) </dev/null >/dev/null 2>&1 &
echo ${quote(READY)}
open=0 code=0 n=0
while read -r event value <&3; do
  case $event in
  open) open=$((open + 1)) ;;
  exit) code=$value; open=$((open - 1)) ;;
  closed) n=$((n + 1)); [ "$open" -le 0 ] || echo 'The connection to the shell was lost'; open=0 ;;
  timeout) [ "$value" != "$n" ] || [ "$open" -gt 0 ] || { echo 'No shell was open for ${time}'; exit "$code"; } ;;
  idle) echo 'The terminal was idle for ${time}'; open=$((open - 1)) ;;
  esac
  case $event in end | idle) [ "$open" -gt 0 ] || exit "$code" ;; esac
done`;
}

/** The command of a shell that the job waits for. @param command text for `/bin/sh`; null: a shell for people */
export function joinCommand(command: string | null): string {
  return `/bin/sh ${JOIN}${command === null ? '' : ` ${quote(command)}`}`;
}

/** @returns the idle time in seconds if the job waits for shells, otherwise null @throws LoamError */
export async function readIdleSeconds(
  { client }: LocalConnection,
  { namespace, name }: JobKey,
): Promise<number | null> {
  const { job } = await client.graphql(READ_COMMAND, { namespace, name });
  const { command } = demand(job, 'Job');
  const [, seconds] = command.startsWith(MARK) ? (/(\d+)\n/.exec(command) ?? []) : [];
  return seconds === undefined ? null : Number(seconds);
}

/** Ends the job, unless another shell is open in it. @throws LoamError, SessionLost */
export async function endShell(
  connection: LocalConnection,
  job: JobKey,
  event: 'end' | 'idle',
): Promise<void> {
  const nothing = () => new Writable({ write: (_chunk, _encoding, done) => done() });
  await runInJob(
    connection,
    job,
    { command: `echo ${event} >${EVENTS}` },
    {
      stdin: Readable.from([]),
      stdout: nothing(),
      stderr: nothing(),
      signal: AbortSignal.timeout(END_MS),
    },
  );
}
