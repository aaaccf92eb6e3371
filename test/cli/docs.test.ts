import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { PAGE, renderPage } from '../../src/cli/print-docs.ts';

test('docs/cli.md has the help of the commands (npm run docs:cli)', () => {
  const page = readFileSync(PAGE, 'utf8');
  expect(page).toBe(renderPage(page));
});
