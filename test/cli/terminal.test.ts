/** What text of the server can do to a terminal: show itself, and colours in logs. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { parseRemote } from '../../src/cli/clone.ts';
import { toShell } from '../../src/cli/options.ts';
import { nameFor } from '../../src/cli/sdk/job-input.ts';
import { duration, safeLine, safeText, size } from '../../src/cli/terminal.ts';

test('of the control sequences in a log line only colours are left', () => {
  const shown = (line: string) => safeLine(line, true);
  expect(shown('plain text, \ttab, ünïcödé 🎉')).toBe('plain text, \ttab, ünïcödé 🎉');
  expect(shown('\x1b[1;31mred\x1b[0m')).toBe('\x1b[1;31mred\x1b[0m\x1b[0m');
  expect(shown('\x1b[38:2::1:2:3mtrue colour')).toBe('\x1b[38:2::1:2:3mtrue colour\x1b[0m');
  expect(safeLine('\x1b[31mred\x1b[0m', false)).toBe('red');
  for (const [line, text] of [
    ['a\x1b[2Jb', 'ab'],
    ['a\x1b[10;10Hb', 'ab'],
    ['a\x1b[1Ab', 'ab'],
    ['a\x1b[?1049hb', 'ab'],
    ['a\x1b[>4;2mb', 'ab'],
    ['a\x1b]0;title\x07b', 'ab'],
    ['a\x1b]52;c;aGk=\x1b\\b', 'ab'],
    ['a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\', 'alink'],
    ['a\x1bPq#0~\x1b\\b', 'ab'],
    ['a\x1bcb', 'ab'],
    ['a\x1b(0b', 'ab'],
    ['a\x9b2Jb', 'ab'],
    ['a\x9d0;title\x9cb', 'ab'],
    ['a\x08\x08b\x07\x0e', 'ab'],
    ['a\x1b]0;without an end', 'a'],
    ['a\x1b', 'a'],
    ['a\x1b[', 'a'],
    ['a\x1b[\x1b[2Jb', 'ab'],
    ['a\x1b]0;x\x1b[2Jb', 'ab'],
    ['10 %\r20 %\r', '20 %'],
  ] as const)
    expect(shown(line), JSON.stringify(line)).toBe(text);
});

// biome-ignore lint/suspicious/noControlCharactersInRegex: a colour begins with one.
const COLOURS = /\x1b\[[0-9;:]*m/g;

test('no line of any characters leaves a control sequence but colours', () => {
  const pieces = fc.constantFrom(
    '\x1b',
    '[',
    ']',
    '\x9b',
    '\x9d',
    '\x07',
    '\\',
    'm',
    'J',
    '0',
    ';',
    'P',
    '?',
    '\r',
    'a',
    ' ',
  );
  fc.assert(
    fc.property(fc.array(pieces, { maxLength: 30 }), (parts) => {
      const left = safeLine(parts.join(''), true).replace(COLOURS, '').replaceAll('\t', '');
      expect(left).not.toMatch(/\p{Cc}/u);
    }),
    { numRuns: 5_000 },
  );
});

test('names and messages are shown on one line, with what acts on the terminal escaped', () => {
  expect(safeText('ada/model-1')).toBe('ada/model-1');
  expect(safeText('a\nb\x1b[2J\u202e\u2028')).toBe('a\\u{a}b\\u{1b}[2J\\u{202e}\\u{2028}');
});

test('a command line keeps its arguments, and names its job', () => {
  expect(toShell(['python train.py && ls'])).toBe('python train.py && ls');
  expect(toShell(['echo', "it's", '$HOME', '--x=1'])).toBe(`echo 'it'\\''s' '$HOME' --x=1`);
  expect(nameFor('python train.py --lr 3')).toMatch(/^python-train-[a-z2-9]{5}$/);
  expect(nameFor('/usr/bin/env')).toMatch(/^env-[a-z2-9]{5}$/);
  expect(nameFor('(((')).toMatch(/^job-[a-z2-9]{5}$/);
  expect(nameFor(`${'x'.repeat(300)}`).length).toBeLessThanOrEqual(100);
});

test('remotes of every form are recognised', () => {
  const of = (url: string) => {
    const remote = parseRemote(url);
    return remote && [remote.origin ?? remote.host, remote.namespace, remote.name].join(' ');
  };
  expect(of('https://loam.example/ada/model.git')).toBe('https://loam.example ada model');
  expect(of('http://127.0.0.1:3000/ada/model')).toBe('http://127.0.0.1:3000 ada model');
  expect(of('https://ada:secret@loam.example/ada/model/')).toBe('https://loam.example ada model');
  expect(of('ssh://git@loam.example:2222/ada/model.git')).toBe('loam.example ada model');
  expect(of('git@loam.example:ada/model.git')).toBe('loam.example ada model');
  for (const url of [
    '/srv/git/model',
    'file:///srv/ada/model',
    '../model',
    'https://loam.example/',
    'https://loam.example/ada/%zz',
    'https://loam.example/ada/%1b[2J',
  ])
    expect(of(url)).toBeNull();
});

test('sizes and lengths of time are short', () => {
  expect([0, 1023, 1536, 2 ** 30].map(size)).toEqual(['0 B', '1023 B', '1.5 KiB', '1.0 GiB']);
  expect([0, 59, 61, 3_600, 90_061].map(duration)).toEqual(['0s', '59s', '1m 1s', '1h', '1d 1h']);
});
