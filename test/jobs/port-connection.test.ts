/** Connections to ports of a job: what becomes of the answers of the command that connects. */
import type { Duplex } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { expect, test } from 'vitest';
import { PortConnection } from '../../src/jobs/shells/port-connection.ts';
import { encodeFrame, encodeJsonFrame } from '../../src/platform/frames.ts';

const frame = (kind: 'data' | 'stderr', text: string) =>
  Buffer.concat(encodeFrame(kind, Buffer.from(text)));
const exit = (code: number) => encodeJsonFrame('exit', { code });

/** A connection whose command says this. */
function connection(say: (frames: Duplex) => void): PortConnection {
  return new PortConnection(80, async (frames) => say(frames));
}

test('a port that was not reached is an error that says why', async () => {
  const cases: [number, string, (frames: Duplex) => void][] = [
    [
      502,
      'Nothing listens on port 80',
      (f) => f.write(Buffer.concat([frame('stderr', 'refused'), exit(1)])),
    ],
    [502, 'need perl or python3', (f) => f.write(exit(127))],
    [
      503,
      'The job has 100 open shells',
      (f) =>
        f.write(Buffer.concat([frame('stderr', 'loam: The job has 100 open shells\n'), exit(1)])),
    ],
    [503, 'was lost', (f) => f.destroy()],
    [503, 'was lost', (f) => f.end()],
    [502, 'not valid', (f) => f.write(frame('data', '-no'))],
  ];
  for (const [status, message, say] of cases) {
    const failed = buffer(connection(say));
    await expect(failed, message).rejects.toMatchObject({
      status,
      message: expect.stringContaining(message),
    });
  }
  const refused = new PortConnection(80, () => Promise.reject(new Error('no server')));
  await expect(buffer(refused)).rejects.toThrow('no server');
  const garbage = connection((frames) => frames.write(Buffer.alloc(10, 99)));
  await expect(buffer(garbage)).rejects.toThrow('Unknown frame kind');
});

test('the bytes after the first are those of the port, to the end', async () => {
  const whole = connection((frames) => {
    for (const part of ['', '+', 'one', '', ' two']) frames.write(frame('data', part));
    frames.write(exit(0));
  });
  expect(String(await buffer(whole))).toBe('one two');
  const cut = connection((frames) => {
    frames.write(frame('data', '+one'));
    setImmediate(() => frames.destroy());
  });
  await expect(buffer(cut)).rejects.toThrow('Premature close');
});

test('what nobody reads makes the command wait', async () => {
  let written = 0;
  let whole: PromiseWithResolvers<void> | undefined;
  const slow = connection(async (frames) => {
    frames.write(frame('data', '+'));
    const piece = frame('data', 'x'.repeat(2 ** 16));
    for (let count = 0; count < 100; count++) {
      const isRead = new Promise((resolve) => frames.write(piece, resolve));
      written += 2 ** 16;
      await isRead;
    }
    frames.write(exit(0));
    whole?.resolve();
  });
  await new Promise((resolve) => setImmediate(resolve));
  for (let count = 0; count < 1_000; count++) await new Promise((resolve) => setImmediate(resolve));
  expect(written).toBeLessThan(10 * 2 ** 16);
  whole = Promise.withResolvers();
  expect((await buffer(slow)).length).toBe(100 * 2 ** 16);
});
