import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { PAGE, renderPage } from '../../src/cli/print-docs.ts';
import * as sdk from '../../src/cli/sdk/reference.ts';

test('docs/cli.md has the help of the commands (npm run docs:cli)', () => {
  const page = readFileSync(PAGE, 'utf8');
  expect(page).toBe(renderPage(page));
});

test('docs/typescript.md has the comments of the library (npm run docs:sdk)', () => {
  expect(readFileSync(sdk.PAGE, 'utf8')).toBe(sdk.renderReference());
});
