/** A script in a process of its own, such as the server that is measured. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';

/** Waits for its first line; it is ended with `cleanup`. */
export async function start(
  cleanup: AsyncDisposableStack,
  script: string,
  args: string[],
  env: Record<string, string> = {},
): Promise<{ pid: number; greeting: string }> {
  const child = spawn(process.execPath, [script, ...args], {
    env: { PATH: process.env.PATH, ...env },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  cleanup.defer(async () => {
    child.kill('SIGTERM');
    if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
  });
  const [chunk] = await once(child.stdout, 'data');
  return { pid: child.pid as number, greeting: String(chunk).trim() };
}
