/** Creating, editing and deleting files in the browser. Concurrent pushes are never lost. */
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { expectUsable, openBrowser, visit } from '../../support/browser.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';

let browser: Browser;
let app: TestApp;
let ada: Client;
let id: string;

beforeEach((ctx) => needs(ctx, 'chromium'));
beforeAll(async () => {
  if (!has('chromium')) return;
  browser = await openBrowser();
  app = await startApp();
  ada = await app.user('ada');
  const made = await ada.post('/auth/v1/repository/ada', { name: 'text', visibility: 'public' });
  id = made.body.id;
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
});

async function push(path: string, content: string): Promise<void> {
  await ada.gql(
    'mutation ($input: CreateCommitInput!) { createCommit(input: $input) { commit { sha } } }',
    { input: { id, branch: 'main', message: 'From elsewhere', changes: [{ path, content }] } },
  );
}

async function read(path: string, ref = 'main'): Promise<string | null> {
  const { repository } = await ada.gql(
    `{ repository(namespace: "ada", name: "text") { file(path: "${path}", ref: "${ref}") { content } } }`,
  );
  return repository.file?.content ?? null;
}

test('a file is created, edited, committed to a new branch, and deleted', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/text');
  await page.getByRole('link', { name: 'New file' }).click();
  await page.getByLabel('Path').fill('docs/start.md');
  await page.getByLabel('Contents').fill('# <script>alert(1)</script>\n');
  await expectUsable(page);
  await page.getByRole('button', { name: 'Commit', exact: true }).click();
  await page.waitForURL('**/ada/text/file/docs/start.md');
  await page.getByRole('link', { name: 'Code', exact: true }).click();
  await page
    .getByRole('region', { name: 'docs/start.md', exact: true })
    .getByText('<script>alert')
    .waitFor();

  await page.getByRole('link', { name: 'Edit', exact: true }).click();
  await expectUsable(page);
  await page.getByLabel('Contents of docs/start.md').fill('# Start\n');
  await page.getByLabel('Message').fill('Say where to start');
  await page.getByRole('button', { name: 'Commit', exact: true }).click();
  await page.waitForURL('**/ada/text/file/docs/start.md');
  await page.getByRole('heading', { name: 'Start', exact: true }).waitFor();
  await page.getByRole('link', { name: 'Commits', exact: true }).click();
  await page.getByRole('link', { name: 'Say where to start' }).waitFor();

  await page.goto('/ada/text/edit/docs/start.md');
  await page.getByLabel('Contents of').fill('# Of a branch\n');
  await page.getByLabel('Branch').fill('ideas');
  await page.getByRole('button', { name: 'Commit', exact: true }).click();
  await page.waitForURL('**/ada/text/file/docs/start.md?ref=ideas');
  expect(await read('docs/start.md')).toBe('# Start\n');
  expect(await read('docs/start.md', 'ideas')).toBe('# Of a branch\n');

  await page.goto('/ada/text/new-file?folder=docs');
  await page.getByLabel('Path').fill('docs/start.md');
  await page.getByRole('button', { name: 'Commit', exact: true }).click();
  await page.getByText('names a file that already exists').waitFor();

  await page.goto('/ada/text/file/docs/start.md?ref=ideas');
  await page.getByRole('link', { name: 'Edit', exact: true }).click();
  await page.getByRole('button', { name: 'Delete file' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Delete file' }).click();
  await page.waitForURL('**/ada/text?ref=ideas');
  await expect.poll(() => read('docs/start.md', 'ideas').catch(() => null)).toBeNull();
  visitor.expectQuiet();
});

test('concurrent pushes of other files are kept, those of the same file are a conflict', async () => {
  await push('notes.txt', 'one\r\ntwo\r\n');
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/text/edit/notes.txt');
  const contents = page.getByLabel('Contents of notes.txt');
  await contents.fill('one\nthree\n');
  await push('other.txt', 'theirs');
  await page.getByRole('button', { name: 'Commit', exact: true }).click();
  await page.waitForURL('**/file/notes.txt');
  // The line endings are unchanged.
  expect(await read('notes.txt')).toBe('one\r\nthree\r\n');
  expect(await read('other.txt')).toBe('theirs');

  await page.goto('/ada/text/edit/notes.txt');
  await contents.fill('mine\n');
  await push('notes.txt', 'theirs\n');
  await page.getByRole('button', { name: 'Commit', exact: true }).click();
  await page.getByText('Someone else changed this file while you were editing it.').waitFor();
  await expectUsable(page);
  expect(await read('notes.txt')).toBe('theirs\n');
  expect(await contents.inputValue()).toBe('mine\n');
  await page.getByRole('button', { name: 'Keep my text' }).click();
  await page.getByRole('button', { name: 'Commit', exact: true }).click();
  await page.waitForURL('**/file/notes.txt');
  expect(await read('notes.txt')).toBe('mine\r\n');
  visitor.expectQuiet();
});

test('editing needs write access and a branch', async () => {
  await push('read.txt', 'as it is');
  await ada.gql(
    'mutation ($input: CreateTagInput!) { createTag(input: $input) { repository { id } } }',
    { input: { id, name: 'v1', from: 'main' } },
  );
  await using own = await visit(browser, app, { as: ada });
  await own.page.goto('/ada/text/file/read.txt?ref=v1');
  await own.page.getByRole('link', { name: 'Raw', exact: true }).waitFor();
  await own.page.goto('/ada/text/edit/read.txt?ref=v1');
  await own.page.getByRole('heading', { name: 'File not found' }).waitFor();
  await own.page.goto('/ada/text/file/read.txt?ref=v1');
  await own.page.getByText('as it is').waitFor();
  expect(await own.page.getByRole('link', { name: 'Edit' }).count()).toBe(0);

  const eve = await app.user('eve');
  await using visitor = await visit(browser, app, { as: eve });
  await visitor.page.goto('/ada/text/file/read.txt');
  await visitor.page.getByText('as it is').waitFor();
  expect(await visitor.page.getByRole('link', { name: 'Edit' }).count()).toBe(0);
  await visitor.page.goto('/ada/text/edit/read.txt');
  await visitor.page.getByText('You need write access to ada to edit its files.').waitFor();
  visitor.expectQuiet();
});
