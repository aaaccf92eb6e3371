import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { printSdl } from '../../src/api/graphql/print.ts';

test('schema.graphql is the schema (npm run schema:print)', () => {
  expect(readFileSync(join(import.meta.dirname, '../../schema.graphql'), 'utf8')).toBe(printSdl());
});
