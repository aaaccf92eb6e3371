import { text } from 'node:stream/consumers';
import { beforeEach, describe, expect, test } from 'vitest';
import { execContract } from '../support/exec.contract.ts';
import { needs } from '../support/needs.ts';
import { processRunner } from '../support/process-runner.ts';
import { attemptSpec } from '../support/runner.contract.ts';

describe('process', () => {
  execContract(() => processRunner());
});
describe('process, in a sandbox of util-linux', () => {
  execContract(() => processRunner('unshare'));
});

describe('process, with a network of its own', () => {
  beforeEach((ctx) => needs(ctx, 'bubblewrap', 'slirp4netns', 'perl'));
  execContract(() => processRunner('auto', 'internet'));
});

test('a command that comes early waits for the environment of the job', async () => {
  await using under = await processRunner();
  const { runner } = under;
  const spec = attemptSpec('exec sleep 600', { env: { SECRET: 'secret' } });
  for (let count = 0; count < 3; count++) {
    const handle = await runner.prepare(spec, new AbortController().signal);
    await runner.start(handle);
    const command = { command: 'echo $SECRET', env: {}, terminal: null };
    const session = await runner.exec?.(handle, command);
    session?.stdin.end();
    expect(session && (await text(session.stdout))).toBe('secret\n');
    await runner.remove(handle);
  }
});
