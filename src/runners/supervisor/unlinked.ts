/** Files that processes have open and that have no name any more: no walk over folders finds them. */
import { readdirSync, type Stats, statSync } from 'node:fs';
import { setImmediate } from 'node:timers/promises';

/** Descriptors, and what is mapped into memory; the second is shown to root alone. */
const OPEN = ['fd', 'map_files'];

/**
 * Bytes and number of such files on the disk `device`. A descriptor that is on its way through a socket, and that no
 * process has open meanwhile, is not seen.
 */
export async function unlinkedUse(
  pids: readonly number[],
  device: number,
): Promise<{ bytes: number; files: number }> {
  const found = new Map<number, number>();
  for (const pid of pids) {
    for (const folder of OPEN.map((name) => `/proc/${pid}/${name}`)) {
      for (const name of namesIn(folder)) {
        const stat = statOf(`${folder}/${name}`);
        if (stat?.isFile() && stat.nlink === 0 && stat.dev === device)
          found.set(stat.ino, stat.blocks * 512);
      }
    }
    // A job has thousands of processes at most, and whoever asks has lines to copy meanwhile.
    await setImmediate();
  }
  return { bytes: [...found.values()].reduce((a, b) => a + b, 0), files: found.size };
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    // The process has ended, or we may not read its files.
    return [];
  }
}

function statOf(file: string): Stats | undefined {
  try {
    return statSync(file);
  } catch {
    return undefined;
  }
}
