/**
 * Kinds of jobs for the chaos tests of clusters. Each run of a command tells the witness its begin, twice a second that it
 * still runs, and its end, with a random name of the run and the time of the kernel, which all nodes share.
 */

export type Kind = {
  name: string;
  /** Shell code between the messages of the begin and the end. */
  body: string;
  /** Number of lines of each attempt, on both streams. */
  lines: number;
  end: { status: string; exit_code: number };
  /** The job leaves a file at `out`. */
  output?: true;
  /** When the job is cancelled. It then tells no end. */
  cancelled?: 'waiting' | 'running';
};

const SUCCEEDED = { status: 'succeeded', exit_code: 0 };
const CANCELLED = { status: 'cancelled', exit_code: 143 };

/** Every third line is on stderr: `NAME ATTEMPT STREAM NUMBER`. */
const print = (count: number, pause?: number) =>
  `i=0; while [ $i -lt ${count} ]; do i=$((i+1));
  if [ $((i % 3)) = 0 ]; then echo "$JOB_NAME $JOB_ATTEMPT e $i" >&2; else echo "$JOB_NAME $JOB_ATTEMPT o $i"; fi
  ${pause ? `sleep ${pause}` : ':'}; done`;

/** So long that some run on each node whenever it is killed. */
const LONG: Kind = { name: 'long', body: print(40, 0.5), lines: 40, end: SUCCEEDED };

export const KINDS: readonly Kind[] = [
  LONG,
  {
    name: 'steady',
    body: `${print(40, 0.1)}; mkdir -p out; echo $JOB_NAME > out/name`,
    lines: 40,
    end: SUCCEEDED,
    output: true,
  },
  { name: 'short', body: print(1), lines: 1, end: SUCCEEDED },
  {
    name: 'cancelled',
    body: `${print(9)}; tell ready; exec sleep 600`,
    lines: 9,
    end: CANCELLED,
    cancelled: 'running',
  },
  { name: 'failing', body: print(15, 0.2), lines: 15, end: { status: 'failed', exit_code: 37 } },
  LONG,
  { name: 'silent', body: `sleep 8; ${print(3)}`, lines: 3, end: SUCCEEDED },
  {
    name: 'daemons',
    body: `(setsid sleep 3600 >/dev/null 2>&1 &); (setsid sh -c 'trap "" TERM; while :; do sleep 1; done' &); ${print(10, 0.1)}`,
    lines: 10,
    end: SUCCEEDED,
  },
  {
    name: 'withdrawn',
    body: `${print(9)}; exec sleep 600`,
    lines: 9,
    end: CANCELLED,
    cancelled: 'waiting',
  },
  { name: 'flood', body: print(5_000), lines: 5_000, end: SUCCEEDED },
  {
    name: 'killed',
    body: `${print(6, 0.3)}; kill -9 $$`,
    lines: 6,
    end: { status: 'failed', exit_code: 137 },
  },
];

/** How a command sends a line to the witness and prints the answer. */
export type Say = 'bash' | 'nc';

const SAY: Record<Say, (host: string, port: number) => string> = {
  bash: (host, port) =>
    `bash -c 'exec 3<>/dev/tcp/${host}/${port}; echo "$1" >&3; read -r answer <&3; echo "$answer"' say "$1" 2>/dev/null`,
  nc: (host, port) => `echo "$1" | nc -w 5 ${host} ${port} 2>/dev/null`,
};

export function commandOf(
  { body, cancelled, end }: Kind,
  say: Say,
  { host, port }: { host: string; port: number },
): string {
  const ends = cancelled === undefined && end.exit_code !== 137;
  return `say() { ${SAY[say](host, port)}; }
read -r run </proc/sys/kernel/random/uuid
tell() {
  read -r now _ </proc/uptime
  until [ "$(say "$1 $JOB_NAME $JOB_ATTEMPT $run $now")" = heard ]; do sleep 0.2; done
}
tell begin
(while sleep 0.5; do tell alive; done >/dev/null 2>&1) &
${body}
${ends ? `tell end; exit ${end.exit_code}` : ''}`;
}

/** What a command told the witness. `at`: seconds of the kernel's clock. */
export type Message = { what: string; job: string; attempt: number; run: string; at: number };

export function parseMessage(line: string): Message {
  const [what = '', job = '', attempt, run = '', at] = line.split(' ');
  return { what, job, run, attempt: Number(attempt), at: Number(at) };
}
