/** Kinds of jobs that run while everything around them is killed, as processes and in containers. */

export type Kind = {
  name: string;
  /** Of a shell that has `tell`, which says a line to the witness. */
  script: string;
  /** Lines of each attempt: `NAME ATTEMPT NUMBER`. */
  lines: number;
  attempts: number;
  retries?: number;
  end: { status: string; exit_code: number };
  /** It leaves a file at `out`. */
  output?: true;
  /** It is cancelled when it has told of its beginning; it tells of no end. */
  cancelled?: true;
};

const SUCCEEDED = { status: 'succeeded', exit_code: 0 };
const BEGIN = 'tell "begin $JOB_NAME $JOB_ATTEMPT"';
const END = 'tell "end $JOB_NAME $JOB_ATTEMPT"';
const print = (count: number, pause?: number) =>
  `i=0; while [ $i -lt ${count} ]; do i=$((i+1)); echo "$JOB_NAME $JOB_ATTEMPT $i"; ${pause ? `sleep ${pause}` : ':'}; done`;

export const KINDS: readonly Kind[] = [
  {
    name: 'steady',
    script: `${BEGIN}; ${print(40, 0.1)}; mkdir out; echo $JOB_NAME > out/name; ${END}`,
    ...{ lines: 40, attempts: 1, end: SUCCEEDED, output: true },
  },
  {
    name: 'short',
    script: `${BEGIN}; ${print(1)}; ${END}`,
    ...{ lines: 1, attempts: 1, end: SUCCEEDED },
  },
  {
    name: 'flood',
    script: `${BEGIN}; ${print(20_000)}; ${END}`,
    ...{ lines: 20_000, attempts: 1, end: SUCCEEDED },
  },
  {
    name: 'failing',
    script: `${BEGIN}; ${print(5, 0.1)}; ${END}; exit 3`,
    ...{ lines: 5, attempts: 2, retries: 1, end: { status: 'failed', exit_code: 3 } },
  },
  {
    name: 'forking',
    script: `${BEGIN}; (setsid sleep 3600 >/dev/null 2>&1 &) ; ${print(10, 0.1)}; ${END}`,
    ...{ lines: 10, attempts: 1, end: SUCCEEDED },
  },
  {
    name: 'cancelled',
    script: `${print(3)}; ${BEGIN}; exec sleep 600`,
    ...{ lines: 3, attempts: 1, end: { status: 'cancelled', exit_code: 143 }, cancelled: true },
  },
];

/** As it is submitted. @param image null: it runs as a process, of the repository */
export function jobOf(kind: Kind, name: string, image: string | null, port: number) {
  const say = image
    ? `echo "$1" | nc -w 2 127.0.0.1 ${port}`
    : `bash -c 'echo "$1" > /dev/tcp/127.0.0.1/${port}' tell "$1"`;
  return {
    name,
    ...(image ? { image } : { repo: 'admin/code' }),
    command: `tell() { ${say}; }; ${kind.script}`,
    gpu: 'none',
    cpu: 2,
    memory_gb: 1,
    ...(kind.retries !== undefined && { retries: kind.retries }),
    ...(kind.output && { output_path: 'out' }),
  };
}

/** All lines of a job, in their order. */
export function linesOf({ lines, attempts }: Kind, name: string): string[] {
  return Array.from({ length: attempts }, (_, attempt) =>
    Array.from({ length: lines }, (_, line) => `${name} ${attempt + 1} ${line + 1}`),
  ).flat();
}

/** What it tells the witness. */
export function tellingsOf({ attempts, cancelled }: Kind, name: string): string[] {
  return Array.from({ length: attempts }, (_, at) =>
    (cancelled ? ['begin'] : ['begin', 'end']).map((what) => `${what} ${name} ${at + 1}`),
  ).flat();
}
