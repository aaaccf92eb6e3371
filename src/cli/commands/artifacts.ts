/** `loam artifacts ls` and `get` */
import { type Program, toArray } from '../command.ts';
import { parseCount, quote } from '../options.ts';
import type { DownloadOptions } from '../sdk/artifacts.ts';
import type { LeftOutReason } from '../sdk/download.ts';
import type { Job } from '../sdk/jobs.ts';
import {
  fileCount,
  isTerminal,
  note,
  ProgressBar,
  printJson,
  printTable,
  safeText,
  size,
} from '../terminal.ts';
import { announced } from './follow.ts';
import { openJob } from './job-name.ts';

export function addArtifactCommands(program: Program): void {
  const artifacts = program.command('artifacts').description('Files that jobs have left');

  artifacts
    .command('ls')
    .description('List the artifacts of a job')
    .argument('<job>', 'name or namespace/name')
    .argument('[path]', 'only this file or folder')
    .option('--json', 'print JSON')
    .action(async (name, path, options) => {
      const job = await openJob(program, name);
      const files = await toArray(job.artifacts.list({ path }));
      if (options.json) return printJson(files);
      if (files.length === 0) note(describeNone(job, path));
      printTable(
        ['SIZE', 'PATH'],
        files.map((file) => [isTerminal ? size(file.sizeBytes) : `${file.sizeBytes}`, file.path]),
      );
    });

  artifacts
    .command('get')
    .description('Download the artifacts of a job')
    .argument('<job>', 'name or namespace/name')
    .argument('[path]', 'only this file or folder')
    .option('-o, --out <folder>', 'folder to write to', '.')
    .option('--parallel <n>', 'files at the same time', parseCount, 4)
    .option('--force', 'replace also files that no earlier download wrote')
    .action(async (name, path, { out, parallel, force }) => {
      const job = await openJob(program, name);
      const options = { folder: out, path, concurrency: parallel, force };
      const { written, leftOut } = await downloadArtifacts(job, options);
      if (written === 0 || leftOut > 0) process.exitCode = 1;
    });
}

function describeNone({ namespace, name }: Job, path: string | undefined): string {
  const where = path === undefined ? '' : ` at ${path}`;
  return safeText(`Job ${namespace}/${name} has no artifacts${where}`);
}

/** Names of files that are shown for each reason. */
const MAX_SHOWN = 20;

/** Downloads with a progress bar, and says which files were left out. @returns the numbers of files */
export async function downloadArtifacts(
  job: Job,
  options: Pick<DownloadOptions, 'path' | 'concurrency' | 'force'> & { folder: string },
): Promise<{ written: number; leftOut: number }> {
  const { folder, ...rest } = options;
  const bar = new ProgressBar();
  const leftOut: Record<LeftOutReason, string[]> = { git_folder: [], exists: [] };
  try {
    const files = await job.artifacts.download(folder, {
      ...rest,
      ...announced(),
      onBytes: (file, bytes) => bar.advance(file.path, bytes, file.sizeBytes),
      onFile: () => bar.fileDone(),
      onLeftOut: ({ path }, reason) => leftOut[reason].push(path),
    });
    bar.clear();
    const leftOutCount = Object.values(leftOut).flat().length;
    if (files.length === 0 && leftOutCount === 0) {
      note(describeNone(job, options.path));
      return { written: 0, leftOut: 0 };
    }
    const bytes = files.reduce((sum, file) => sum + file.sizeBytes, 0);
    note(`Downloaded ${fileCount(files.length)} (${size(bytes)}) to ${folder}`);
    noteLeftOut(leftOut.git_folder, 'because git would use them as its own');
    noteLeftOut(
      leftOut.exists,
      `because files that no download wrote have their names. To replace them: loam artifacts get --force -o ${quote(folder)} ${quote(`${job.namespace}/${job.name}`)}`,
    );
    return { written: files.length, leftOut: leftOutCount };
  } finally {
    bar.clear();
  }
}

export function noteLeftOut(paths: readonly string[], reason: string): void {
  if (paths.length === 0) return;
  note(`Left out ${fileCount(paths.length)}, ${reason}`);
  for (const path of paths.slice(0, MAX_SHOWN)) note(`  ${safeText(path)}`);
  if (paths.length > MAX_SHOWN) note(`  and ${paths.length - MAX_SHOWN} more`);
}
