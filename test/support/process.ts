/** The server as users run it: `node src/main.ts` as a separate process that can be killed and restarted. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

const ROOT = join(import.meta.dirname, '../..');
const INHERITED = {
  PATH: process.env.PATH,
  HOME: process.env.HOME,
  MALLOC_MMAP_THRESHOLD_: '1048576',
};
/** As `npm start` does: without the cache, stripping types and compiling took a third of a start. */
const COMPILE_CACHE = 'node_modules/.cache/loam';

const NODE = [process.execPath, 'src/main.ts'];

export type ServerProcess = AsyncDisposable & {
  child: ChildProcess;
  base: string;
  /** All output so far. */
  output(): string;
  /** Sends the signal if the process still runs, and waits for its end. */
  stop(signal?: NodeJS.Signals): Promise<{ code: number | null; signal: NodeJS.Signals | null }>;
};

export type StartServerOptions = {
  /** The user to run as; only root can set it. */
  user?: string;
  /** The start of the command line, which still runs as the original user. */
  wrapper?: string[];
  /** The maximum number of open files, sockets and pipes. */
  descriptors?: number;
  /** The program that starts it; unset: Node, without npm. */
  command?: string[];
  /** Gives it a process group of its own, led by `child`, as a terminal does. */
  detached?: boolean;
  /** The folder of its sources; unset: this checkout. */
  root?: string;
  /** Called with the process before it is ready. */
  spawned?: (child: ChildProcess) => void;
};

/**
 * Starts the server and waits until it reports that it is ready.
 * @throws Error with its output if it ends before that
 */
export async function startServer(
  env: Record<string, string>,
  {
    user,
    wrapper = [],
    descriptors,
    command = NODE,
    detached = false,
    root = ROOT,
    spawned,
  }: StartServerOptions = {},
): Promise<ServerProcess> {
  const as = user ? ['setpriv', `--reuid=${user}`, '--regid=65534', '--clear-groups'] : [];
  const limit = descriptors ? `ulimit -n ${descriptors} && ` : '';
  const words = [...wrapper, ...as, ...command];
  const child = spawn('/bin/sh', ['-c', `${limit}exec "$@"`, 'sh', ...words], {
    cwd: root,
    env: {
      ...INHERITED,
      NODE_COMPILE_CACHE: join(root, COMPILE_CACHE),
      PORT: '0',
      LOAM_SSH_PORT: 'off',
      LOAM_LOG_LEVEL: 'warn',
      ...env,
    },
    stdio: ['ignore', 'pipe', 'pipe'],
    detached,
  });
  spawned?.(child);
  const ended = once(child, 'close') as Promise<[number | null, NodeJS.Signals | null]>;
  let output = '';
  const ready = Promise.withResolvers<string>();
  for (const stream of [child.stdout, child.stderr]) {
    createInterface(stream).on('line', (line) => {
      output += `${line}\n`;
      // A worker reports the address of its readiness check.
      const said = /^Loam is ready (?:at (\S+)|to run jobs; (\S+)\/readyz)/.exec(line);
      const base = said?.[1] ?? said?.[2];
      if (base) ready.resolve(base);
    });
  }
  const stop: ServerProcess['stop'] = async (signal = 'SIGTERM') => {
    child.kill(signal);
    const [code, by] = await ended;
    return { code, signal: by };
  };
  const failed = ended.then(([code]) => {
    throw new Error(`the server ended with ${code} before it was ready:\n${output}`);
  });
  failed.catch(() => {});
  const base = await Promise.race([ready.promise, failed]);
  return {
    child,
    base,
    output: () => output,
    stop,
    [Symbol.asyncDispose]: async () => void (await stop()),
  };
}
