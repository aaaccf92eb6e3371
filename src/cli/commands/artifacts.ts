/** `loam artifacts ls` and `get` */
import { type Program, toArray } from '../command.ts';
import { parseCount } from '../options.ts';
import type { Job } from '../sdk/jobs.ts';
import {
  fileCount,
  isTerminal,
  note,
  ProgressBar,
  printJson,
  printTable,
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
    .action(async (name, path, { out, parallel }) => {
      const job = await openJob(program, name);
      const count = await downloadArtifacts(job, { folder: out, path, concurrency: parallel });
      if (count > 0) return;
      note('There are no such artifacts.');
      process.exitCode = 1;
    });
}

/** Downloads with a progress bar. @returns the number of files */
export async function downloadArtifacts(
  job: Job,
  options: { folder: string; path?: string | undefined; concurrency?: number },
): Promise<number> {
  const { folder, ...rest } = options;
  const bar = new ProgressBar();
  try {
    const files = await job.artifacts.download(folder, {
      ...rest,
      ...announced(),
      onBytes: (file, bytes) => bar.advance(file.path, bytes, file.sizeBytes),
      onFile: () => bar.fileDone(),
    });
    bar.clear();
    const bytes = files.reduce((sum, file) => sum + file.sizeBytes, 0);
    note(`Downloaded ${fileCount(files.length)} (${size(bytes)}) to ${folder}`);
    return files.length;
  } finally {
    bar.clear();
  }
}
