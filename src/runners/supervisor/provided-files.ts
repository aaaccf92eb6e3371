/**
 * The files that a runner provides to a job (`AttemptSpec.files`), in a folder that the job can read and not change. A file is
 * replaced by a rename, so a reader sees the old or the new content. The agent imports this file, so it imports only Node.
 */
import { chmodSync, chownSync, existsSync, mkdirSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/** @param owner the user of the job, if this process can give files away; null: the job runs as the user of this process */
export function writeProvidedFiles(
  dir: string,
  files: Readonly<Record<string, string>>,
  owner: { uid: number; gid: number } | null,
  mode = 0o400,
): void {
  if (!existsSync(dir)) {
    // Not its parents: a removed attempt must not appear again.
    mkdirSync(dir);
    // The mode of `mkdir` is subject to the umask.
    chmodSync(dir, 0o755);
  }
  for (const [name, content] of Object.entries(files)) {
    const path = join(dir, name);
    const next = join(dir, `.${name}.new`);
    writeFileSync(next, content, { mode: 0o600 });
    if (owner) chownSync(next, owner.uid, owner.gid);
    chmodSync(next, mode);
    renameSync(next, path);
  }
}

/** The variables of the files: `NAME` with the content, and `NAME_FILE` with the path. @param dir as the job sees it */
export function providedVariables(
  dir: string,
  files: Readonly<Record<string, string>>,
): Record<string, string> {
  return Object.fromEntries(
    Object.entries(files).flatMap(([name, content]) => [
      [name, content],
      [`${name}_FILE`, join(dir, name)],
    ]),
  );
}
