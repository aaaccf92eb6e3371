/** `npm run schema:print`: writes schema.graphql. A test checks that it is up to date. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { lexicographicSortSchema, printSchema } from 'graphql';
import { schema } from './schema.ts';

export function printSdl(): string {
  return `${printSchema(lexicographicSortSchema(schema))}\n`;
}

if (import.meta.main)
  writeFileSync(join(import.meta.dirname, '../../../schema.graphql'), printSdl());
