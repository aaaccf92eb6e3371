/** What git says, passed on as it comes. */
import type { Writable } from 'node:stream';
import type { GitExit } from '../../platform/processes/git-started.ts';
import type { GitProcess } from '../processes/run.ts';

/**
 * Passes output on until git has ended. A client that left is no failure, and an output that breaks off shows in the ending.
 * @param shown what is passed on of a chunk
 */
export async function relay(
  process: GitProcess,
  output: Writable,
  shown: (chunk: Buffer) => Buffer = (chunk) => chunk,
): Promise<GitExit> {
  try {
    for await (const chunk of process.stdout as AsyncIterable<Buffer>) {
      const bytes = shown(chunk);
      if (bytes.length === 0 || output.destroyed) continue;
      if (!output.write(bytes)) await drained(output);
    }
  } catch {
    process.end();
  }
  return process.ended;
}

/** Resolves when `output` wants more, and when it is closed. */
export function drained(output: Writable): Promise<void> {
  return new Promise((resolve) => {
    const go = () => {
      output.off('drain', go);
      output.off('close', go);
      resolve();
    };
    output.once('drain', go);
    output.once('close', go);
  });
}

/** As `relay`. When nobody reads any more, there is nothing to finish: git is ended. */
export async function relayToReader(process: GitProcess, output: Writable): Promise<GitExit> {
  const gone = () => process.end();
  output.once('close', gone);
  try {
    return await relay(process, output);
  } finally {
    output.off('close', gone);
  }
}
