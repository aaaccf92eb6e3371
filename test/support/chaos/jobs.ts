/** Kinds of jobs for the chaos test, which run as processes and in containers. */
import { BUSYBOX } from '../docker.ts';
import type { OwnEngine } from '../own-engine.ts';

export type Kind = {
  name: string;
  /** Run by a shell with a function `tell`, which sends a line to the witness. */
  script: string;
  /** Number of lines of each attempt: `NAME ATTEMPT NUMBER`. */
  lines: number;
  attempts: number;
  retries?: number;
  end: { status: string; exit_code: number };
  /** The job leaves a file at `out`. */
  output?: true;
  /** The job is cancelled after it has reported its start; it reports no end. */
  cancelled?: true;
};

/** The address of the witness. */
type Address = { host: string; port: number };

/** An image whose containers each get an anonymous volume. */
const WITH_VOLUME = 'loam-test/with-volume';

export async function makeImageWithVolume({ docker }: OwnEngine): Promise<void> {
  const made = await docker('create', BUSYBOX, 'mkdir', '-m', '1777', '/data');
  await docker('start', '--attach', made);
  await docker('commit', '--change', 'VOLUME /data', made, WITH_VOLUME);
  await docker('rm', made);
}

const SUCCEEDED = { status: 'succeeded', exit_code: 0 };
const BEGIN = 'tell "begin $JOB_NAME $JOB_ATTEMPT"';
const END = 'tell "end $JOB_NAME $JOB_ATTEMPT"';
const print = (count: number, pause?: number) =>
  `i=0; while [ $i -lt ${count} ]; do i=$((i+1)); echo "$JOB_NAME $JOB_ATTEMPT $i"; ${pause ? `sleep ${pause}` : ':'}; done`;

export const KINDS: readonly Kind[] = [
  {
    name: 'steady',
    script: `${BEGIN}; ${print(40, 0.1)}; mkdir out; echo $JOB_NAME > out/name; ${END}`,
    lines: 40,
    attempts: 1,
    end: SUCCEEDED,
    output: true,
  },
  {
    name: 'short',
    script: `${BEGIN}; ${print(1)}; ${END}`,
    lines: 1,
    attempts: 1,
    end: SUCCEEDED,
  },
  {
    name: 'flood',
    script: `${BEGIN}; ${print(20_000)}; ${END}`,
    lines: 20_000,
    attempts: 1,
    end: SUCCEEDED,
  },
  {
    name: 'failing',
    script: `${BEGIN}; ${print(5, 0.1)}; ${END}; exit 3`,
    lines: 5,
    attempts: 2,
    retries: 1,
    end: { status: 'failed', exit_code: 3 },
  },
  {
    name: 'forking',
    script: `${BEGIN}; (setsid sleep 3600 >/dev/null 2>&1 &) ; ${print(10, 0.1)}; ${END}`,
    lines: 10,
    attempts: 1,
    end: SUCCEEDED,
  },
  {
    name: 'cancelled',
    script: `${print(3)}; ${BEGIN}; exec sleep 600`,
    lines: 3,
    attempts: 1,
    end: { status: 'cancelled', exit_code: 143 },
    cancelled: true,
  },
];

/** Where jobs run. A process always has a repository. */
export type Place = { name: string; image?: string; repo?: true; volume?: true };

export const PROCESS: Place = { name: 'process', repo: true };
export const CONTAINERS: readonly Place[] = [
  { name: 'image', image: BUSYBOX },
  { name: 'checkout', image: BUSYBOX, repo: true },
  { name: 'volume', image: WITH_VOLUME, volume: true },
];

/** The content of the repository. */
export const REPOSITORY = 'admin/code';
export const FILE = { 'src/kept.txt': 'kept\n' };

/** Ends the job with an exit code that no kind has, if its checkout or volume is wrong. */
const CHECKS = {
  repo: '[ "$(cat src/kept.txt)" = kept ] || exit 81',
  volume: 'echo $JOB_NAME > /data/name; [ "$(cat /data/name)" = $JOB_NAME ] || exit 82',
};

/** The input of the request that creates the job. */
export function jobInput(kind: Kind, name: string, place: Place, { host, port }: Address) {
  const { image, repo, volume } = place;
  // The network of a job ends with its process, and data still in it is lost, so each message waits for its answer.
  const say = image
    ? `echo "$1" | nc -w 10 ${host} ${port} >/dev/null`
    : `bash -c 'exec 3<>/dev/tcp/${host}/${port}; echo "$1" >&3; read -r <&3' tell "$1"`;
  const checks = [...(repo ? [CHECKS.repo] : []), ...(volume ? [CHECKS.volume] : [])];
  return {
    name,
    ...(image && { image }),
    ...(repo && { repo: REPOSITORY }),
    command: [`tell() { ${say}; }`, ...checks, kind.script].join('; '),
    gpu: 'none',
    cpu: 2,
    memory_gb: 1,
    ...(kind.retries !== undefined && { retries: kind.retries }),
    ...(kind.output && { output_path: 'out' }),
  };
}

/** Lines of one attempt, in order. */
export function linesOf({ lines }: Kind, name: string, attempt: number): string[] {
  return Array.from({ length: lines }, (_, line) => `${name} ${attempt} ${line + 1}`);
}

/** Messages of one attempt to the witness. */
export function messagesOf({ cancelled }: Kind, name: string, attempt: number): string[] {
  return (cancelled ? ['begin'] : ['begin', 'end']).map((what) => `${what} ${name} ${attempt}`);
}
