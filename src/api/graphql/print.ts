/** `npm run schema:print`: writes schema.graphql, which a test compares with the schema. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { lexicographicSortSchema, printSchema } from 'graphql';
import { schema } from './schema.ts';

export function printed(): string {
  return `${printSchema(lexicographicSortSchema(schema))}\n`;
}

if (import.meta.main)
  writeFileSync(join(import.meta.dirname, '../../../schema.graphql'), printed());
