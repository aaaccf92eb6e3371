/** Creates commits and annotated tags on the server, as packs that can be pushed. */
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { git } from '../processes/run.ts';

/** `content` is null to delete the file. */
export type FileEdit = { path: string; content: Uint8Array | null };

type Person = { name: string; email: string };

export type NewCommit = {
  /** Null for the first commit. */
  parent: string | null;
  changes: readonly FileEdit[];
  message: string;
  author: Person;
};

export type NewTag = {
  name: string;
  /** Id of the tagged commit. */
  commit: string;
  message: string;
  tagger: Person;
};

export type Packed = { sha: string; pack: Buffer };

/** A file cannot be changed as requested. The message has the reason. */
export class InvalidEdit extends Error {
  override name = 'InvalidEdit';
}

const REGULAR_FILE_MODE = '100644';
const MAX_PACK_BYTES = 32 * 2 ** 20;
/** Limit for the output of `ls-tree`, per call. */
const MAX_ENTRIES_BYTES = 2 ** 20;

/**
 * Creates the commit in `scratch`, an empty folder, based on the repository at `dir`, which is only read. Files keep
 * their mode; new files are not executable.
 * @throws InvalidEdit if a deleted file does not exist, a file would replace a directory, or a parent folder is a file
 */
export async function createCommitPack(
  dir: string,
  scratch: string,
  { parent, changes, message, author }: NewCommit,
): Promise<Packed> {
  const modes = await readModes(dir, parent, changes);
  await borrowObjects(dir, scratch);
  const who = identLine(author);
  // Input of `git fast-import`: modifies (M) and deletes (D) files relative to the parent.
  const input = Buffer.concat([
    Buffer.from(`commit refs/heads/new\nauthor ${who}\ncommitter ${who}\n`),
    dataCommand(Buffer.from(message)),
    Buffer.from(parent ? `from ${parent}\n` : ''),
    ...changes.flatMap(({ path, content }) => {
      if (!content) return [Buffer.from(`D ${quotePath(path)}\n`)];
      const mode = modes.get(path) ?? REGULAR_FILE_MODE;
      return [Buffer.from(`M ${mode} inline ${quotePath(path)}\n`), dataCommand(content)];
    }),
    Buffer.from('done\n'),
  ]);
  await git(['fast-import', '--quiet', '--done'], { dir: scratch, input });
  const sha = (await readFile(join(scratch, 'refs/heads/new'), 'utf8')).trim();
  const wanted = parent ? `${sha}\n^${parent}\n` : `${sha}\n`;
  const options = { dir: scratch, input: wanted, maxBytes: MAX_PACK_BYTES };
  return { sha, pack: await git(['pack-objects', '--revs', '--stdout', '-q'], options) };
}

/** Creates an annotated tag in `scratch`, like `createCommitPack`. `name` must be a valid ref name. */
export async function createTagPack(
  dir: string,
  scratch: string,
  { name, commit, message, tagger }: NewTag,
): Promise<Packed> {
  await borrowObjects(dir, scratch);
  const who = identLine(tagger);
  const text = `object ${commit}\ntype commit\ntag ${name}\ntagger ${who}\n\n${message}\n`;
  const sha = (await git(['mktag'], { dir: scratch, input: text })).toString().trim();
  // The pack contains only the tag, because the repository has the tagged commit.
  const options = { dir: scratch, input: `${sha}\n` };
  return { sha, pack: await git(['pack-objects', '--stdout', '-q'], options) };
}

/** Makes `scratch` a repository that borrows the objects of the repository at `dir`. */
async function borrowObjects(dir: string, scratch: string): Promise<void> {
  await mkdir(join(scratch, 'objects/info'), { recursive: true });
  await mkdir(join(scratch, 'refs/heads'), { recursive: true });
  await writeFile(join(scratch, 'objects/info/alternates'), `${dir}/objects\n`);
  await writeFile(join(scratch, 'HEAD'), 'ref: refs/heads/new\n');
}

/** Git's `ident` line: name, address and time. */
function identLine({ name, email }: Person): string {
  const seconds = Math.floor(Date.now() / 1000);
  return `${stripDelimiters(name)} <${stripDelimiters(email)}> ${seconds} +0000`;
}

/**
 * Checks the changes against the parent commit, and returns the modes of the existing files by path.
 * @throws InvalidEdit
 */
async function readModes(
  dir: string,
  parent: string | null,
  changes: readonly FileEdit[],
): Promise<Map<string, string>> {
  const entries = parent ? await readEntries(dir, parent, changes) : new Map<string, Entry>();
  for (const { path, content } of changes) {
    const entry = entries.get(path);
    if (entry && entry.type !== 'blob')
      throw new InvalidEdit(`${path} is ${entry.type === 'tree' ? 'a directory' : 'a submodule'}`);
    if (!content && !entry) throw new InvalidEdit(`${path} does not exist`);
    const blockingFile = ancestors(path).find(
      (folder) => entries.has(folder) && entries.get(folder)?.type !== 'tree',
    );
    if (blockingFile) throw new InvalidEdit(`${blockingFile} is not a directory`);
  }
  return new Map([...entries].map(([path, { mode }]) => [path, mode]));
}

type Entry = { mode: string; type: string };

/** The entries at the changed paths and at the folders above them. */
async function readEntries(
  dir: string,
  commit: string,
  changes: readonly FileEdit[],
): Promise<Map<string, Entry>> {
  const paths = new Set(changes.flatMap(({ path }) => [...ancestors(path), path]));
  const entries = new Map<string, Entry>();
  // One `ls-tree` per depth: given both a directory and a path below it, git lists the contents and not the directory.
  for (const group of Map.groupBy(paths, (path) => path.split('/').length).values()) {
    const args = ['ls-tree', '-z', '--full-tree', commit, '--', ...group];
    const output = await git(args, { dir, maxBytes: MAX_ENTRIES_BYTES });
    for (const line of output.toString().split('\0')) {
      const [, mode, type, path] = /^(\d{6}) (\w+) [0-9a-f]{40}\t(.*)$/s.exec(line) ?? [];
      if (mode && type && path) entries.set(path, { mode, type });
    }
  }
  return entries;
}

/** `a/b/c` → `a`, `a/b`. */
function ancestors(path: string): string[] {
  const parts = path.split('/');
  return parts.slice(1).map((_, i) => parts.slice(0, i + 1).join('/'));
}

function dataCommand(bytes: Uint8Array): Buffer {
  return Buffer.concat([Buffer.from(`data ${bytes.length}\n`), bytes, Buffer.from('\n')]);
}

/** Quotes a path for `git fast-import`. */
function quotePath(path: string): string {
  return `"${path.replaceAll(/["\\]/g, '\\$&').replaceAll('\n', '\\n')}"`;
}

/** Removes characters that end a name or an e-mail address in a commit. */
function stripDelimiters(text: string): string {
  return text.replaceAll(/[<>\n\0]/g, '').trim();
}
