/** The folder in which a job leaves its result files (`RESULTS_DIR`), on the machine of the job. The agent imports this file. */
import { chmodSync, mkdirSync, opendirSync } from 'node:fs';
import { join } from 'node:path';
import { type Outcome, RESULTS_FOLDER } from '../runner.ts';

/**
 * Creates the empty folder of result files in the job's folder for temporary files.
 * @param mode 0o777 where the job may run as another user than the owner of the folder
 */
export function createResultsFolder(tmp: string, mode = 0o700): void {
  const folder = join(tmp, RESULTS_FOLDER);
  mkdirSync(folder, { recursive: true });
  // The mode of `mkdir` is subject to the umask.
  chmodSync(folder, mode);
}

/**
 * Whether the job has left a result file. Synchronous, because every job is asked, and the thread pool costs more. It reads one
 * name, because the job may have made the folder a link to one of a million.
 * @param dir contains the folders of `MOUNTS`
 */
export function hasResultFiles(dir: string): boolean {
  try {
    const folder = opendirSync(join(dir, 'tmp', RESULTS_FOLDER), { bufferSize: 1 });
    try {
      return folder.readSync() !== null;
    } finally {
      folder.closeSync();
    }
  } catch {
    // The job has removed the folder, or made it unreadable.
    return false;
  }
}

/** Adds to the end of a command whether it has left result files. @param dir contains the folders of `MOUNTS` */
export function noteResultFiles(outcome: Outcome, dir: string): Outcome {
  return outcome.kind === 'exited' ? { ...outcome, hasResults: hasResultFiles(dir) } : outcome;
}
