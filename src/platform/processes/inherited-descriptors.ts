/** This file imports only Node modules, to keep the starter small. */
import { closeSync, existsSync, readdirSync, readFileSync } from 'node:fs';

/** O_CLOEXEC in the octal flags of /proc. Node opens its own descriptors with it. */
const CLOSED_ON_EXEC = 0o2000000;

/**
 * Closes inherited descriptors except the three standard streams. The program that started the server may have left some
 * open (a lock, a socket, a pipe to a supervisor), and every child of this process would inherit them.
 */
export function closeInheritedDescriptors(): void {
  if (!existsSync('/proc/self/fdinfo')) return;
  for (const fd of readdirSync('/proc/self/fdinfo').map(Number)) {
    if (fd <= 2) continue;
    try {
      const info = readFileSync(`/proc/self/fdinfo/${fd}`, 'utf8');
      const flags = Number.parseInt(/^flags:\s+(\d+)/m.exec(info)?.[1] ?? '', 8);
      if (!(flags & CLOSED_ON_EXEC)) closeSync(fd);
    } catch {
      // The descriptor of the folder listing, which is closed by now.
    }
  }
}
