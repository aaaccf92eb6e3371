import { mkdtempDisposable, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test, vi } from 'vitest';
import { watchDisk } from '../../src/runners/supervisor/disk.ts';

test('folders whose measurement failed are measured again at once', async () => {
  await using root = await mkdtempDisposable(join(tmpdir(), 'loam-disk-'));
  await writeFile(join(root.path, 'x'), Buffer.alloc(4 * 2 ** 20, 1));
  let looks = 0;
  // On a clock that stands still, the normal interval of 30 seconds never ends.
  vi.useFakeTimers({ toFake: ['Date'] });
  onTestFinished(() => void vi.useRealTimers());
  const verdict = await watchDisk(
    {
      dirs: [root.path],
      diskBytes: 2 ** 20,
      files: 100,
      floorBytes: 0,
      pids: () => [],
      measureOther: () => (looks++ ? Promise.resolve(0) : Promise.reject(new Error('away'))),
      onMeasured: () => {},
    },
    new AbortController().signal,
  );
  expect(verdict).toMatchObject({ full: false, reason: expect.stringContaining('4 MB on disk') });
  expect(looks).toBe(2);
});
