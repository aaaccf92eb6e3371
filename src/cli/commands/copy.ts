/** `loam cp`: files and folders of a running job, as a tar that the job's own `tar` writes or reads. */
import { createReadStream, type Stats } from 'node:fs';
import { lstat, opendir, readlink, stat } from 'node:fs/promises';
import { basename, dirname, join, posix, resolve } from 'node:path';
import { PassThrough, Readable, Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import type { Extract, Pack } from 'tar-stream';
import type { Program } from '../command.ts';
import { connectHere, type LocalConnection } from '../connection.ts';
import { UsageError } from '../exit.ts';
import { runInJob } from '../job-session.ts';
import { quote } from '../options.ts';
import { DownloadFolder } from '../sdk/download.ts';
import { LoamError } from '../sdk/errors.ts';
import type { Job } from '../sdk/jobs.ts';
import { fileCount, note, ProgressBar, size } from '../terminal.ts';
import { noteLeftOut } from './artifacts.ts';
import { jobOf } from './job-name.ts';

const EXPLANATION = `
One of both is JOB:PATH, where JOB is a name or namespace/name, and a relative path begins at the working directory of the
job. An existing folder as target, also JOB: alone, gets the file or folder into it. Links and special files of a job are
left out, and so is what git would take for its own. The job needs the program tar.

Examples:
  loam cp train:/work/checkpoints .
  loam cp fix.py ada/train:src/fix.py`;

const REMOTE = /^([\w-]+(?:\/[\w-]+)?):(.*)$/s;
const MAX_ERROR_BYTES = 65_536;

type Remote = { job: string; path: string };

export function addCopyCommand(program: Program): void {
  program
    .command('cp')
    .description('Copy files from or to a running job')
    .argument('<from>', 'JOB:PATH, or a path of this machine')
    .argument('<to>', 'JOB:PATH, or a path of this machine')
    .option('--force', 'replace also files of this machine that no earlier copy wrote')
    .addHelpText('after', EXPLANATION)
    .action(async (from, to, { force = false }) => {
      const [source, target] = [parseRemote(from), parseRemote(to)];
      if (source && !target) {
        if (source.path === '') throw new UsageError(`${from}: name a path after the colon`);
        const jobs = await JobFiles.open(program, source.job);
        process.exitCode = await download(jobs, source.path, to, force);
      } else if (target && !source) {
        const jobs = await JobFiles.open(program, target.job);
        process.exitCode = await upload(jobs, from, target.path || '.');
      } else
        throw new UsageError('One of both must be JOB:PATH, and the other a path of this machine.');
    });
}

/** On Windows, one letter before a colon is a drive. */
function parseRemote(text: string): Remote | null {
  const [, job = '', path = ''] = REMOTE.exec(text) ?? [];
  if (job === '' || (process.platform === 'win32' && job.length === 1)) return null;
  if (path.includes('\0')) throw new UsageError(`${text}: a path has no NUL character`);
  return { job, path };
}

/** Runs commands of `sh` that copy files in a job. */
class JobFiles {
  readonly #connection: LocalConnection;
  readonly #job: Job;

  constructor(connection: LocalConnection, job: Job) {
    this.#connection = connection;
    this.#job = job;
  }

  static async open(program: Program, name: string): Promise<JobFiles> {
    const connection = await connectHere(program.opts());
    return new JobFiles(connection, jobOf(connection, name));
  }

  /** @returns the exit code, and what the command has written to stderr */
  async run(
    command: string,
    {
      stdin = Readable.from([]),
      ...rest
    }: { stdin?: Readable; stdout: Writable; signal?: AbortSignal },
  ): Promise<{ code: number; message: string }> {
    const errors = new Gathered();
    const script = `${NEEDS_TAR}\n${command}`;
    const streams = { stdin, stderr: errors, ...rest };
    const code = await runInJob(this.#connection, this.#job, { command: script }, streams);
    return { code, message: errors.text.trim() };
  }
}

const NEEDS_TAR = `command -v tar >/dev/null || { echo "The job has no program tar, which loam cp needs" >&2; exit 127; }`;

/** Keeps the beginning of what is written to it. */
class Gathered extends Writable {
  text = '';

  override _write(chunk: Buffer, _encoding: string, done: () => void): void {
    if (this.text.length < MAX_ERROR_BYTES) this.text += chunk;
    done();
  }
}

/** What was copied. */
class Tally {
  readonly #bar = new ProgressBar();
  readonly leftOut = {
    git_folder: [] as string[],
    exists: [] as string[],
    special: [] as string[],
  };
  files = 0;
  #bytes = 0;

  advance(path: string, bytes: number, total: number): void {
    this.#bytes += bytes;
    this.#bar.advance(path, bytes, total);
  }

  fileDone(): void {
    this.files++;
    this.#bar.fileDone();
  }

  clear(): void {
    this.#bar.clear();
  }

  /** @returns the exit code */
  report(to: string, { code, message }: { code: number; message: string }): number {
    if (message !== '') note(message);
    // Of an exit code of `tar` with files that were copied, its message says what is missing.
    if (code === 0 || this.files > 0)
      note(`Copied ${fileCount(this.files)} (${size(this.#bytes)}) to ${to}`);
    const { git_folder: ofGit, exists, special } = this.leftOut;
    noteLeftOut(ofGit, 'because git would use them as its own');
    noteLeftOut(exists, 'because files that no copy wrote have their names. --force replaces them');
    noteLeftOut(special, 'because they are links or special files');
    return code === 0 && ofGit.length + exists.length + special.length === 0 ? 0 : 1;
  }
}

async function download(
  files: JobFiles,
  path: string,
  to: string,
  force: boolean,
): Promise<number> {
  const { extract } = await import('tar-stream');
  const name = posix.basename(path);
  const isWhole = name === '' || name === '.' || name === '..';
  const [folder, item] = isWhole ? [path, '.'] : [posix.dirname(path), name];
  const isInto = await stat(to).then(
    (found) => found.isDirectory(),
    () => false,
  );
  // The parts of a local path that take the place of the first part of each name in the tar.
  const own = isInto ? (isWhole ? [] : [name]) : [basename(resolve(to))];
  const root = await DownloadFolder.open(isInto ? to : dirname(resolve(to)));
  const tally = new Tally();
  const archive = extract();
  const output = new PassThrough();
  // An error is also that of `unpacked`.
  pipeline(output, archive as unknown as Writable).catch(() => {});
  const failed = new AbortController();
  const unpacked = unpack(archive, { item, own, root, force, tally });
  unpacked.catch((error) => failed.abort(error));
  try {
    const command = `hard=; tar --version 2>/dev/null | grep -q GNU && hard=--hard-dereference
cd -- ${quote(folder)} || exit 1
[ -e ${quote(`./${item}`)} ] || [ -L ${quote(`./${item}`)} ] || { echo ${quote(`${path}: no such file or folder in the job`)} >&2; exit 1; }
exec tar $hard -cf - ${quote(`./${item}`)}`;
    const result = await files.run(command, { stdout: output, signal: failed.signal });
    if (result.code === 0 || tally.files > 0) {
      output.end();
      await unpacked;
    } else output.destroy();
    return tally.report(to, result);
  } finally {
    tally.clear();
  }
}

async function unpack(
  archive: Extract,
  {
    item,
    own,
    root,
    force,
    tally,
  }: { item: string; own: readonly string[]; root: DownloadFolder; force: boolean; tally: Tally },
): Promise<void> {
  for await (const entry of archive) {
    const { name, type, size: bytes = 0, mode = 0 } = entry.header;
    const parts = name
      .replace(/^\.\//, '')
      .replace(/\/+$/, '')
      .split('/')
      .filter((part) => part !== '.');
    if (item !== '.' && parts.shift() !== item)
      throw new LoamError(
        'bad_answer',
        `The job sent ${JSON.stringify(name)}, which was not asked for.`,
      );
    const path = [...own, ...parts.filter((part) => part !== '')].join('/');
    if (type === 'directory') {
      if (path !== '' && (await root.makeFolder(path))) tally.leftOut.git_folder.push(path);
    } else if (type === 'file' || type === 'contiguous-file') {
      const content = counted(entry as AsyncIterable<Uint8Array>, (chunk) =>
        tally.advance(path, chunk, bytes),
      );
      const reason = await root.write(path, content, { force, isProgram: (mode & 0o111) !== 0 });
      if (reason) tally.leftOut[reason].push(path);
      else tally.fileDone();
    } else tally.leftOut.special.push(path);
    // Of a file that was left out.
    entry.resume();
  }
}

async function* counted(
  entry: AsyncIterable<Uint8Array>,
  count: (bytes: number) => void,
): AsyncGenerator<Uint8Array> {
  for await (const chunk of entry) {
    count(chunk.length);
    yield chunk;
  }
}

async function upload(files: JobFiles, from: string, path: string): Promise<number> {
  const { pack } = await import('tar-stream');
  const found = await stat(from).catch(() => null);
  if (!found) throw new UsageError(`${from}: no such file or folder`);
  const answer = new Gathered();
  const asked = await files.run(`if [ -d ${quote(path)} ]; then echo folder; fi`, {
    stdout: answer,
  });
  if (asked.code !== 0) throw new Error(asked.message);
  const isInto = answer.text.trim() === 'folder';
  const trimmed = path.replace(/\/+$/, '');
  if (!isInto && trimmed !== path) throw new UsageError(`${path}: no such folder in the job`);
  const [folder, name] = isInto
    ? [path, basename(resolve(from))]
    : [posix.dirname(path), posix.basename(path)];
  const tally = new Tally();
  const archive = pack();
  const failed = new AbortController();
  const packed = addTo(archive, from, name, found, tally).then(() => archive.finalize());
  packed.catch((error) => failed.abort(error));
  try {
    const result = await files.run(`cd -- ${quote(folder)} || exit 1\nexec tar -xof -`, {
      stdin: Readable.from(archive as AsyncIterable<Buffer>),
      stdout: new Gathered(),
      signal: failed.signal,
    });
    if (result.code !== 0) tally.files = 0;
    return tally.report(`${path} of the job`, result);
  } finally {
    tally.clear();
    archive.destroy();
  }
}

async function addTo(
  archive: Pack,
  path: string,
  name: string,
  found: Stats,
  tally: Tally,
): Promise<void> {
  const header = { name, mode: found.mode & 0o777, mtime: found.mtime };
  if (found.isDirectory()) {
    archive.entry({ ...header, type: 'directory' });
    for await (const { name: child } of await opendir(path)) {
      const inside = join(path, child);
      await addTo(archive, inside, `${name}/${child}`, await lstat(inside), tally);
    }
  } else if (found.isFile()) {
    const entry = archive.entry({ ...header, size: found.size });
    // A file that grows meanwhile is cut to the size in its header.
    const content =
      found.size === 0 ? Readable.from([]) : createReadStream(path, { end: found.size - 1 });
    content.on('data', (chunk) => tally.advance(name, chunk.length, found.size));
    await pipeline(content, entry as unknown as Writable);
    tally.fileDone();
  } else if (found.isSymbolicLink())
    archive.entry({ ...header, type: 'symlink', linkname: await readlink(path) });
  else tally.leftOut.special.push(name);
}
