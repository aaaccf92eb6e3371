import { expect, test } from 'vitest';
import { countLanguages } from '../../src/repositories/pushes/language.ts';

test.each([
  ['TypeScript', { 'a.ts': 10, 'b.tsx': 10, 'c.js': 15 }],
  ['Python', { 'a.py': 10, 'node_modules/b.js': 99, 'vendor/c.js': 99, 'docs/d.js': 99 }],
  ['JavaScript', { 'a.js': 10, 'b.min.js': 99, 'data.json': 999, 'README.md': 999 }],
  ['C', { 'a.c': 10, 'a.h': 30, 'b.cpp': 5 }],
  ['C++', { 'a.cpp': 10, 'a.hpp': 1, 'a.h': 30, 'b.c': 5 }],
  ['Objective-C', { 'a.m': 10, 'a.h': 20 }],
  ['C', { 'a.h': 10 }],
  ['Dockerfile', { Dockerfile: 10 }],
  ['Makefile', { Makefile: 10, 'a.sh': 5 }],
  ['Rust', { 'src/lib.rs': 10, 'Cargo.toml': 50 }],
  ['C#', { 'a.cs': 1 }],
  ['Jupyter Notebook', { 'a.ipynb': 1 }],
  [null, { 'README.md': 10, 'a.sql': 0, 'x.unknown': 5 }],
  [null, {}],
])('%s', async (language, files) => {
  const count = await countLanguages();
  for (const [path, size] of Object.entries(files)) count.add(path, size);
  expect(count.largest()).toBe(language);
});
