/**
 * Each GraphQL document of the dashboard and of the command is valid for the schema. TypeScript does not check it: a field that
 * does not exist has the type `unknown`, and shows as nothing.
 */
import { globSync, readFileSync } from 'node:fs';
import { type DocumentNode, Kind, parse, validate, visit } from 'graphql';
import { expect, test } from 'vitest';
import { schema } from '../../src/api/graphql/schema.ts';

const texts = globSync('src/{dashboard,cli}/**/*.{ts,tsx}').flatMap((path) =>
  [...readFileSync(path, 'utf8').matchAll(/\bgraphql\(\s*`([^`]*)`/g)].map(([, text = '']) => ({
    path,
    document: parse(text),
  })),
);

const fragments = new Map(
  texts.flatMap(({ document }) =>
    document.definitions.flatMap((each) =>
      each.kind === Kind.FRAGMENT_DEFINITION ? [[each.name.value, each] as const] : [],
    ),
  ),
);

/** Adds the fragments of other files that a document uses, directly or indirectly. */
function whole(document: DocumentNode): DocumentNode {
  const definitions = [...document.definitions];
  const names = new Set(definitions.map((each) => 'name' in each && each.name?.value));
  for (const definition of definitions)
    visit(definition, {
      FragmentSpread({ name: { value } }) {
        const fragment = fragments.get(value);
        if (!fragment || names.has(value)) return;
        names.add(value);
        definitions.push(fragment);
      },
    });
  return { kind: Kind.DOCUMENT, definitions };
}

test('every document of the clients is valid', () => {
  const operations = texts.filter(({ document }) =>
    document.definitions.some((each) => each.kind === Kind.OPERATION_DEFINITION),
  );
  expect(operations.length).toBeGreaterThan(0);
  const faults = operations.flatMap(({ path, document }) =>
    validate(schema, whole(document)).map(({ message }) => `${path}: ${message}`),
  );
  expect(faults).toEqual([]);
});

test('the name of each fragment is unique, and that of each operation in its client', () => {
  const names = texts.flatMap(({ path, document }) =>
    document.definitions.map((each) => {
      const name = 'name' in each ? each.name?.value : null;
      return each.kind === Kind.FRAGMENT_DEFINITION ? name : `${path.split('/')[1]} ${name}`;
    }),
  );
  expect(names.filter((name, at) => names.indexOf(name) !== at)).toEqual([]);
});
