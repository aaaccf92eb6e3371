/** The browser of the user. */
import { spawn } from 'node:child_process';

/** Opens a page. The address is on the screen as well, so a machine without a browser is no failure. */
export function openBrowser(page: string): void {
  const program = { darwin: 'open', win32: 'explorer' }[process.platform as string] ?? 'xdg-open';
  const child = spawn(program, [page], { stdio: 'ignore', detached: true });
  child.on('error', () => {});
  child.unref();
}
