/** Log lines on a terminal. */
import { expect, test } from 'vitest';
import { formatLogLine } from '../../src/base/log.ts';

const line = (fields: object) =>
  formatLogLine(JSON.stringify({ level: 30, time: '2026-01-02T03:04:05.678Z', ...fields }));

test('a log line on a terminal has the time, the level unless it is info, the message and its fields', () => {
  const time = new Date('2026-01-02T03:04:05.678Z').toTimeString().slice(0, 8);
  expect(line({ msg: 'Jobs are limited' })).toBe(`${time} Jobs are limited\n`);
  expect(line({ level: 40, msg: 'low', free: 7, disk: { name: 'a b' } })).toBe(
    `${time} WARN low free=7 disk={"name":"a b"}\n`,
  );
  const err = { message: 'no', stack: 'Error: no\n    at x' };
  expect(line({ level: 50, msg: 'failed', err })).toBe(
    `${time} ERROR failed\n  Error: no\n      at x\n`,
  );
});

test('text in a log line cannot control the terminal', () => {
  const text = line({ msg: '\x1b[2J\x9b2J', name: '\x1b]0;x\x07' });
  for (const control of ['\x1b', '\x07', '\x9b']) expect(text).not.toContain(control);
});
