/** The version of this program, and its replacement by that of the server. */
import { execFile } from 'node:child_process';
import { mkdir, readdir, rename, rm, symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { Logger } from '../../base/log.ts';
import { readProgramVersion } from '../machines/program.ts';
import { downloadProgram } from './server.ts';

/** The version of this program; empty when it runs from its sources. Then it is never replaced. */
export function ownVersion(): string {
  return readProgramVersion(import.meta.dirname);
}

/**
 * Installs the version for the next start.
 * @returns whether the program must be started again; false: the server that answered has another version, so try again later
 */
export async function install(
  version: string,
  { server, data, log }: { server: string; data: string; log: Logger },
): Promise<boolean> {
  if (version === '' || ownVersion() === '') return false;
  const programs = join(data, 'programs');
  const target = join(programs, version);
  if (readProgramVersion(target) !== version) {
    const received = join(programs, '.received');
    await rm(received, { recursive: true, force: true });
    await mkdir(received, { recursive: true });
    const archive = join(received, 'program.tgz');
    await downloadProgram(server, archive);
    await promisify(execFile)('tar', ['-xzf', archive, '-C', received]);
    await rm(archive);
    // While servers are updated one after another, each has its own version.
    if (readProgramVersion(received) !== version) return false;
    await rm(target, { recursive: true, force: true });
    await rename(received, target);
  }
  const link = join(data, 'program');
  await rm(`${link}.new`, { force: true });
  await symlink(join('programs', version), `${link}.new`);
  await rename(`${link}.new`, link);
  // Shims of the running version have loaded their code already.
  const removed = join(programs, '.removed');
  for (const name of await readdir(programs)) {
    if (name === version) continue;
    // A part of a version must never be taken for all of it.
    await rm(removed, { recursive: true, force: true });
    if (name !== '.removed') await rename(join(programs, name), removed);
  }
  await rm(removed, { recursive: true, force: true });
  log.info(`This program is replaced by version ${version.slice(0, 12)} of the server`);
  return true;
}
