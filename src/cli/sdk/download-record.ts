/**
 * Remembers which files of a folder were written by downloads, so that a later download replaces no other file. The record is
 * outside of the folder, because the folder may be a clone of somebody else's repository. The Python library reads it, too:
 * `loam/downloads/<SHA-256 of the folder's path>` in `$XDG_STATE_HOME` or `~/.local/state`, with one JSON object per line.
 */
import type * as FileSystem from 'node:fs/promises';

type Written = { size: number; mtime: string };
type Stats = { size: bigint; mtimeNs: bigint };

/** Lines that have been replaced by later ones, before the file is written anew. */
const MAX_REPLACED_LINES = 1_000;

export class DownloadRecord {
  readonly #fs: typeof FileSystem;
  readonly #path: string;
  readonly #files: Map<string, Written>;

  private constructor(fs: typeof FileSystem, path: string, files: Map<string, Written>) {
    this.#fs = fs;
    this.#path = path;
    this.#files = files;
  }

  /** @param root the real path of the folder */
  static async open(fs: typeof FileSystem, root: string): Promise<DownloadRecord> {
    const { createHash } = await import('node:crypto');
    const name = createHash('sha256').update(root).digest('hex');
    const path = `${await stateFolder()}/loam/downloads/${name}`;
    // Without a record, no file was written by a download.
    const lines = (await fs.readFile(path, 'utf8').catch(() => '')).split('\n').filter(Boolean);
    const files = new Map(lines.flatMap(parse));
    const record = new DownloadRecord(fs, path, files);
    if (lines.length > files.size + MAX_REPLACED_LINES) await record.#compact();
    return record;
  }

  /** Whether the file is as a download wrote it. */
  has(path: string, { size, mtimeNs }: Stats): boolean {
    const written = this.#files.get(path);
    return written?.size === Number(size) && written.mtime === `${mtimeNs}`;
  }

  /** Records a file before it gets its name: after a crash between both, a file of that name differs from the record. */
  async add(path: string, { size, mtimeNs }: Stats): Promise<void> {
    const written = { size: Number(size), mtime: `${mtimeNs}` };
    this.#files.set(path, written);
    // A line break in front, because a crash may have left a part of a line.
    await this.#save(() => this.#fs.appendFile(this.#path, `\n${line(path, written)}`, MODE));
  }

  async #compact(): Promise<void> {
    const temporary = `${this.#path}.${process.pid}`;
    const text = [...this.#files].map(([path, written]) => line(path, written)).join('\n');
    await this.#save(async () => {
      await this.#fs.writeFile(temporary, text, MODE);
      await this.#fs.rename(temporary, this.#path);
    });
  }

  /** A record that cannot be written is no reason to refuse a download: later ones leave its files as they are. */
  async #save(write: () => Promise<void>): Promise<void> {
    const folder = this.#path.slice(0, this.#path.lastIndexOf('/'));
    await this.#fs
      .mkdir(folder, { recursive: true, mode: 0o700 })
      .then(write)
      .catch(() => {});
  }
}

const MODE = { mode: 0o600 };

/** For a user without a home, a folder that does not exist, so that nothing is recorded. */
async function stateFolder(): Promise<string> {
  if (process.env.XDG_STATE_HOME) return process.env.XDG_STATE_HOME;
  const { homedir } = await import('node:os');
  try {
    return `${homedir()}/.local/state`;
  } catch {
    return '/dev/null';
  }
}

function line(path: string, written: Written): string {
  return JSON.stringify({ path, ...written });
}

function parse(text: string): [string, Written][] {
  try {
    const { path, size, mtime } = JSON.parse(text);
    return [[path, { size, mtime }]];
  } catch {
    return [];
  }
}
