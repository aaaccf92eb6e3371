/**
 * Generates `generated/schema.d.ts` of the clients from `schema.graphql`: the types that check their queries. The command of
 * gql.tada is not used because it needs the old compiler API, which our version of TypeScript does not have.
 */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { minifyIntrospection, outputIntrospectionFile } from '@gql.tada/internal';
import { buildSchema, introspectionFromSchema } from 'graphql';

const schema = buildSchema(readFileSync(join(import.meta.dirname, '../../schema.graphql'), 'utf8'));
const introspection = minifyIntrospection(introspectionFromSchema(schema));
const text = outputIntrospectionFile(introspection, {
  fileType: '.d.ts',
  shouldPreprocess: true,
});
for (const client of ['dashboard', 'cli']) {
  const folder = join(import.meta.dirname, '..', client, 'generated');
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'schema.d.ts'), text);
}
