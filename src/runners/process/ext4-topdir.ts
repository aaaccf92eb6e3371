/**
 * Spreads the folders of attempts over the disk, where that is an ext4 without a journal, as on many virtual machines.
 *
 * Such an ext4 does not reuse an inode for minutes after it was deleted, and looks at each of them whenever a file is made
 * near them (`recently_deleted` in fs/ext4/ialloc.c). A job makes and deletes some 25 files: at 30 jobs a second the search
 * took a quarter of all CPU time, and more with every job. The attribute T (`topdir`) of a folder has the folders in it placed
 * in block groups of their own, so that each attempt has inodes of its own. With a journal there is no search, and the
 * attribute would cost 4 %.
 */
import { readFileSync, readlinkSync, statSync } from 'node:fs';
import { basename } from 'node:path';
import { run } from '../../platform/processes/starter.ts';

/** Sets the attribute where that pays. */
export async function markTopdir(dir: string): Promise<void> {
  // Where the file system or our user may not, jobs are only slower.
  if (hasNoJournal(dir)) await run('chattr', ['+T', dir]).catch(() => {});
}

function hasNoJournal(dir: string): boolean {
  try {
    const { dev } = statSync(dir);
    // As `makedev` of the kernel has it, for numbers that fit into 12 and 20 bits.
    const [major, minor] = [(dev >> 8) & 0xfff, (dev & 0xff) | ((dev >> 12) & 0xfff00)];
    const disk = basename(readlinkSync(`/sys/dev/block/${major}:${minor}`));
    return readFileSync(`/sys/fs/ext4/${disk}/journal_task`, 'utf8').trim() === '<none>';
  } catch {
    // Not ext4, or not Linux.
    return false;
  }
}
