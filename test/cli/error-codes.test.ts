/** The clients import nothing of the server, so the table of error codes stands in three places. */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { HTTP_STATUS } from '../../src/base/errors.ts';
import * as sdk from '../../src/cli/sdk/errors.ts';
import { needs } from '../support/needs.ts';

test('the TypeScript library has the codes and statuses of the server', () => {
  expect(sdk.HTTP_STATUS).toEqual(HTTP_STATUS);
});

test('the Python library has the codes and statuses of the server', async (ctx) => {
  needs(ctx, 'python3');
  const program = 'import json, loam; print(json.dumps(loam._STATUS))';
  const cwd = join(import.meta.dirname, '../../src/cli/python');
  const { stdout } = await promisify(execFile)('/usr/bin/python3', ['-B', '-c', program], { cwd });
  expect(JSON.parse(stdout)).toEqual(HTTP_STATUS);
});
