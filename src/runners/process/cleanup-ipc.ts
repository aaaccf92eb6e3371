/**
 * Removes files and IPC objects that a job without a sandbox leaves outside its folders: files in world-writable folders,
 * and System V shared memory, queues and semaphores, which outlive all processes. They would use memory and disk space
 * outside all limits, and the next job with the same user id could read them.
 */
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { promisify } from 'node:util';

const run = promisify(execFile);

const FOLDERS = ['/tmp', '/var/tmp', '/dev/shm', '/dev/mqueue'];
/** File in /proc/sysvipc → the option of `ipcrm` that removes by id. */
const IPC = { shm: '-m', msg: '-q', sem: '-s' } as const;
const TIMEOUT_MS = 60_000;

/**
 * Removes these files and objects of a user without processes. Errors are ignored, because a missing program must not prevent
 * the end of an attempt.
 */
export async function cleanupIpc(uid: number): Promise<void> {
  const options = { timeout: TIMEOUT_MS };
  const owned = ['-mindepth', '1', '-maxdepth', '1', '-uid', String(uid)];
  const remove = ['-exec', 'rm', '-rf', '--one-file-system', '--', '{}', '+'];
  // `find` exits with 1 where one of the folders is missing.
  await run('find', [...FOLDERS, ...owned, ...remove], options).catch(() => {});
  const objects = await listIpcObjects(uid);
  if (objects.length > 0) await run('ipcrm', objects, options).catch(() => {});
}

/** Arguments for `ipcrm`: objects that the user created or owns. */
async function listIpcObjects(uid: number): Promise<string[]> {
  const found: string[] = [];
  for (const [name, option] of Object.entries(IPC)) {
    const text = await readFile(`/proc/sysvipc/${name}`, 'utf8').catch(() => '');
    const [head = '', ...rows] = text.trim().split('\n');
    const columns = head.trim().split(/\s+/);
    for (const row of rows) {
      const values = row.trim().split(/\s+/);
      const of = (column: string) => values[columns.indexOf(column)];
      // The second column is the id: `shmid`, `msqid`, `semid`.
      if ([of('uid'), of('cuid')].includes(String(uid))) found.push(option, values[1] ?? '');
    }
  }
  return found;
}
