/** Finds processes on this machine. */
import { readdirSync, readFileSync } from 'node:fs';

/** Command lines of processes that contain `text`. */
export function listCommandLines(text: string): string[] {
  return listProcessesNaming(text).map(({ line }) => line);
}

/** The same, with pids. */
export function listProcessesNaming(text: string): { pid: number; line: string }[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map((pid) => ({ pid: Number(pid), line: commandOf(pid) }))
    .filter(({ line }) => line.includes(text));
}

function commandOf(pid: string): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'latin1').replaceAll('\0', ' ');
  } catch {
    return '';
  }
}
