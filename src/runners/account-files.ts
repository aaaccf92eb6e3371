/**
 * The files of /etc by which programs know the user of a job. Many refuse to work as a user without a name: `sftp-server`, the
 * server of VS Code, Python's `getpass`.
 */
import { MOUNTS } from './runner.ts';

/** Names in /etc. */
export const ACCOUNT_FILES = ['passwd', 'group'] as const;

type AccountFiles = Record<(typeof ACCOUNT_FILES)[number], string>;

/** Of the job's user, `job`. They replace those of an image, so they have the users that each system has. */
export function accountFiles(uid: number, gid = uid): AccountFiles {
  return {
    passwd: `root:x:0:0:root:/root:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/bin/false
job:x:${uid}:${gid}:job:${MOUNTS.home}:/bin/sh
`,
    group: `root:x:0:\nnogroup:x:65534:\njob:x:${gid}:\n`,
  };
}
