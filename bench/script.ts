/** Runs a script in a separate process, such as the measured server. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';

/** Waits for its first line. `cleanup` ends the process. */
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
