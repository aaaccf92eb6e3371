import fc from 'fast-check';
import { expect, test } from 'vitest';
import { JsonSyntaxError, parseJson } from '../../src/platform/web/request-body.ts';

test.each([
  ['', 'line 1, column 1: expected a value, found the end'],
  ['{"name":', 'line 1, column 9: expected a value, found the end'],
  ["{'name': 1}", `line 1, column 2: expected a name in double quotes or "}", found "'"`],
  ['{"a": 1,}', 'line 1, column 9: expected a name in double quotes, found "}"'],
  ['{\n  "a": 1\n  "b": 2\n}', 'line 3, column 3: expected a comma or "}", found "\\""'],
  ['{"a": [1, 2}', 'line 1, column 12: expected a comma or "]", found "}"'],
  ['{"a" 1}', 'line 1, column 6: expected a colon, found "1"'],
  ['{"a": NaN}', 'line 1, column 7: expected a value, found "N"'],
  ['{"a": 01}', 'line 1, column 8: expected a comma or "}", found "1"'],
  ['{"a": "é\u{1f600}" x}', 'line 1, column 12: expected a comma or "}", found "x"'],
  ['{"a": "one\ntwo"}', 'line 1, column 11: U+000A in a string must be escaped'],
  ['{"a": "C:\\dir"}', 'line 1, column 10: this escape is not valid in JSON'],
  ['{"a": "one}', 'line 1, column 7: this string is not closed'],
  ['{} {}', 'line 1, column 4: expected nothing more, found "{"'],
  ['\ufeff{}', 'line 1, column 1: expected a value, found U+FEFF'],
  ['// note\n{}', 'line 1, column 1: expected a value, found "/"'],
])('%j: %s', (text, message) => {
  expect(() => parseJson(text)).toThrow(new JsonSyntaxError(message));
});

test('it accepts the same texts as JSON.parse, and finds the error in all others', () => {
  const piece = fc.constantFrom(
    ...'{}[],:"\\ \n\t0123456789.eE+-truefalsn\u0000é',
    '\\u00e9',
    '\\n',
  );
  const broken = fc
    .tuple(fc.json(), fc.nat(), fc.nat(3), fc.array(piece, { maxLength: 3 }))
    .map(([text, at, drop, put]) => {
      const start = at % (text.length + 1);
      return text.slice(0, start) + put.join('') + text.slice(start + drop);
    });
  const check = (text: string) => {
    let right: unknown;
    try {
      right = JSON.parse(text);
    } catch {
      expect(() => parseJson(text), text).toThrow(/^line \d+, column \d+: (?!it is nested)/);
      return;
    }
    expect(parseJson(text)).toEqual(right);
  };
  fc.assert(
    fc.property(
      fc.oneof(
        broken,
        fc.array(piece).map((all) => all.join('')),
      ),
      check,
    ),
    {
      numRuns: 3_000,
    },
  );
});

test('it finds the error in a body of the maximum size quickly, however deep the body is', () => {
  for (const text of [
    '['.repeat(2 ** 20),
    `{"a": "${'x'.repeat(2 ** 20)}`,
    '"\\n'.repeat(2 ** 18),
  ]) {
    // CPU time of this process, because it does not depend on other load of the machine.
    const begun = process.cpuUsage();
    expect(() => parseJson(text)).toThrow(JsonSyntaxError);
    expect(process.cpuUsage(begun).user).toBeLessThan(1_000_000);
  }
});
