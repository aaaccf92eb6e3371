/** Runs the examples of docs/graphql.md. */
import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { parse, validate } from 'graphql';
import { expect, test } from 'vitest';
import { MAX_COST, MAX_DEPTH, MAX_TOKENS } from '../../src/api/graphql/limits.ts';
import { schema } from '../../src/api/graphql/schema.ts';
import { Workspace } from '../support/git.ts';
import { startApp } from '../support/harness.ts';
import { submit, until } from '../support/submit.ts';

const ROOT = join(import.meta.dirname, '../..');
const run = promisify(execFile);

type Example = { mark: string | undefined; language: string; text: string };

async function examples(): Promise<Example[]> {
  const page = await readFile(join(ROOT, 'docs/graphql.md'), 'utf8');
  const found = page.matchAll(/(?:<!-- (\w+) -->\n)?```(\w+)\n(.*?)```/gs);
  return [...found].map(([, mark, language = '', text = '']) => ({ mark, language, text }));
}

test('the examples of docs/graphql.md work as printed', async () => {
  await using app = await startApp();
  await using workspace = await Workspace.open();
  const { admin } = app;
  await admin.repository('admin/hello');
  await workspace.clone(admin, 'admin/hello');
  await workspace.commit('hello', { 'README.md': '# Hello\n' });
  await workspace.git('hello', 'push', '-q', 'origin', 'HEAD:main');
  await workspace.commit('hello', { 'feature.txt': 'new\n' });
  await workspace.git('hello', 'push', '-q', 'origin', 'HEAD:feature');
  await submit(admin, {
    namespace: 'admin',
    name: 'count',
    repo: 'admin/hello',
    command: 'echo 1',
  });
  await until(admin, 'admin', 'count', 'SUCCEEDED');

  const all = await examples();
  const ran = { graphql: 0, sh: 0, js: 0 };
  const env = { PATH: process.env.PATH, LOAM: app.base, LOAM_TOKEN: admin.token };
  // So that an example finds the packages that it imports.
  const folder = await mkdtemp(join(ROOT, 'node_modules/.docs-'));
  try {
    for (const [at, { mark, language, text }] of all.entries()) {
      if (language === 'graphql') {
        expect(validate(schema, parse(text)), text).toEqual([]);
        ran.graphql++;
        if (/^\s*subscription/.test(text)) continue;
        const next = all[at + 1];
        const variables = next?.language === 'json' ? JSON.parse(next.text) : {};
        const { data, errors } = await admin.graphql(text, variables);
        expect(
          errors?.map(({ extensions }) => extensions.code),
          text,
        ).toEqual(mark === 'fails' ? ['NOT_FOUND'] : undefined);
        expect(JSON.stringify(data)).toContain('"');
      } else if (mark === 'run' && language === 'sh') {
        ran.sh++;
        const { stdout } = await run('bash', ['--norc', '-euo', 'pipefail', '-c', text], { env });
        expect(stdout, text).toContain('"data":');
        expect(stdout, text).not.toContain('"errors"');
      } else if (mark === 'run') {
        ran.js++;
        const file = join(folder, 'example.mjs');
        await writeFile(file, text);
        const { stdout } = await run(process.execPath, [file], { env });
        expect(stdout).toContain('QUEUED');
      }
    }
  } finally {
    await rm(folder, { recursive: true });
  }
  expect(ran).toEqual({ graphql: 12, sh: 2, js: 1 });
});

test('the page states the limits of the code', async () => {
  const page = await readFile(join(ROOT, 'docs/graphql.md'), 'utf8');
  const shown = (n: number) => n.toLocaleString('en');
  expect(page).toContain(`| size of the document | ${shown(MAX_TOKENS)} tokens | \`tokens\` |`);
  expect(page).toContain(`| fields within each other | ${MAX_DEPTH} | \`depth\` |`);
  expect(page).toContain(`| cost | ${shown(MAX_COST)} | \`cost\` |`);
});
