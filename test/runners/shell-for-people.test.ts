/** The shell that `loam shell` and `ssh` open without a command. */
import { execFile } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { SHELL_FOR_PEOPLE } from '../../src/runners/process/exec.ts';

test('the prompt of bash names the job and the folder, unless the job has set another one', async ({
  onTestFinished,
}) => {
  const folder = await mkdtemp(join(tmpdir(), 'loam-test-'));
  onTestFinished(() => rm(folder, { recursive: true }));
  await writeFile(join(folder, 'bash'), '#!/bin/sh\nprintf %s "$PS1"\n', { mode: 0o755 });
  const promptWith = async (env: object) => {
    const options = { env: { PATH: `${folder}:/usr/bin:/bin`, JOB_NAME: 'train-1', ...env } };
    return (await promisify(execFile)('/bin/sh', ['-c', SHELL_FOR_PEOPLE], options)).stdout;
  };
  expect(await promptWith({})).toBe('train-1:\\w\\$ ');
  expect(await promptWith({ PS1: '\\u> ' })).toBe('\\u> ');
});
