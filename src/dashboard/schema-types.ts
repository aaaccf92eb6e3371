/**
 * Writes `generated/schema.d.ts`: the types that queries of the dashboard are checked against, made of
 * `schema.graphql`. gql.tada's own command needs a TypeScript with its old programming interface, which ours is not.
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
const folder = join(import.meta.dirname, 'generated');
mkdirSync(folder, { recursive: true });
writeFileSync(join(folder, 'schema.d.ts'), text);
