/** Finds leftovers of killed servers: processes, files, rows, uploads. */
import { execFile } from 'node:child_process';
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { ListMultipartUploadsCommand, ListObjectsV2Command, S3Client } from '@aws-sdk/client-s3';
import {
  ATTEMPT_ID_VARIABLE,
  listDescendants,
  readProcessStat,
} from '../../../src/runners/supervisor/proc.ts';
import type { Servers } from '../many-servers.ts';

const run = promisify(execFile);

/** Git's messages on each repository in which it finds an error. */
export async function findGitErrors(loam: Servers): Promise<string[]> {
  const faults: string[] = [];
  for (const gitdir of await listRepositories(loam)) {
    const env = { PATH: process.env.PATH, GIT_DIR: gitdir };
    const said = await run('git', ['fsck', '--strict', '--no-dangling'], { cwd: gitdir, env }).then(
      ({ stdout, stderr }) => `${stdout}${stderr}`.replace(/^notice:.*\n/gm, ''),
      (error) => `${error.message}${error.stderr}`,
    );
    if (said) faults.push(`${gitdir}: ${said}`);
  }
  return faults;
}

/** Files of unfinished operations, by their path in the folder of repositories or of a server. */
export async function findLeftoverFiles(loam: Servers): Promise<string[]> {
  const left: string[] = [];
  for (const gitdir of await listRepositories(loam)) {
    const files = await readdir(gitdir, { recursive: true });
    left.push(
      ...files
        // Unfinished quarantines, packs and objects, and locks.
        .filter((path) => /(^|\/)(tmp_|\.tmp-|incoming-)|\.lock$/.test(path))
        .map((path) => join(gitdir, path)),
    );
  }
  for (const folder of ['new', 'trash', 'begun'])
    left.push(...(await filesBelow(join(loam.repositoriesDir, folder))));
  for (const { dataDir, tmpDir } of loam.servers)
    left.push(
      ...(await filesBelow(tmpDir)),
      ...(await readdir(join(dataDir, 'attempts')).catch(() => []))
        .filter((name) => name.startsWith('att_'))
        .map((name) => join(dataDir, 'attempts', name)),
    );
  return left;
}

/** Command lines of processes that have the folder of these servers as an argument or work in it, except the live servers. */
export function findLeftoverProcesses(loam: Servers): string[] {
  const serving = new Set(loam.servers.map(({ pid }) => String(pid)));
  return readdirSync('/proc').flatMap((pid) => {
    if (!/^\d+$/.test(pid) || serving.has(pid)) return [];
    const read = (file: string) => {
      try {
        return readFileSync(`/proc/${pid}/${file}`, 'latin1').replaceAll('\0', ' ');
      } catch {
        return '';
      }
    };
    const command = read('cmdline');
    if (!`${command}${read('environ')}${folderOf(pid)}`.includes(loam.root)) return [];
    // The database, its proxy and its storage; and pooled git processes, which exit when they are idle.
    if (/postgres|haproxy|ceph|radosgw|cat-file/.test(command)) return [];
    // The shim and the recorder that a worker keeps for its next job: started by its starter, and without an attempt.
    const isKept = () =>
      serving.has(parentOf(parentOf(pid))) &&
      !openFiles(pid).some((file) => file.includes('/att_')) &&
      !listDescendants(Number(pid)).some(hasAttemptMark);
    if (/\/(container-)?shim\.ts/.test(command) && isKept()) return [];
    return command ? [`${pid} ${command}`] : [];
  });
}

/** Whether the process has the mark of an attempt. */
function hasAttemptMark(pid: number): boolean {
  try {
    return readFileSync(`/proc/${pid}/environ`, 'latin1').includes(`${ATTEMPT_ID_VARIABLE}=att_`);
  } catch {
    return false;
  }
}

function parentOf(pid: string): string {
  return String(readProcessStat(pid)?.parent ?? '');
}

function openFiles(pid: string): string[] {
  try {
    return readdirSync(`/proc/${pid}/fd`).map((fd) => readlinkSync(`/proc/${pid}/fd/${fd}`));
  } catch {
    // The process has ended meanwhile.
    return [];
  }
}

function folderOf(pid: string): string {
  try {
    return readlinkSync(`/proc/${pid}/cwd`);
  } catch {
    return '';
  }
}

/** Keys of objects, and of unfinished uploads. */
export async function listStoredKeys({
  s3,
}: Servers): Promise<{ keys: string[]; uploads: string[] }> {
  const { endpoint, region, credentials, bucket: Bucket } = s3;
  const client = new S3Client({ endpoint, region, credentials, forcePathStyle: true });
  try {
    const { Contents = [] } = await client.send(new ListObjectsV2Command({ Bucket }));
    const { Uploads = [] } = await client.send(new ListMultipartUploadsCommand({ Bucket }));
    return {
      keys: Contents.map(({ Key = '' }) => Key),
      uploads: Uploads.map(({ Key = '' }) => Key),
    };
  } finally {
    client.destroy();
  }
}

export async function listRepositories({ repositoriesDir }: Servers): Promise<string[]> {
  const found: string[] = [];
  for (const shard of await readdir(repositoriesDir)) {
    if (shard.length !== 2) continue;
    for (const inner of await readdir(join(repositoriesDir, shard)))
      for (const name of await readdir(join(repositoriesDir, shard, inner)))
        if (name.endsWith('.git')) found.push(join(repositoriesDir, shard, inner, name));
  }
  return found;
}

async function filesBelow(folder: string): Promise<string[]> {
  const found = await readdir(folder, { recursive: true, withFileTypes: true }).catch(() => []);
  return found
    .filter((entry) => !entry.isDirectory())
    .map(({ parentPath, name }) => join(parentPath, name));
}
