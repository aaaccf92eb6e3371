import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { expectUsable, openBrowser, visit } from '../../support/browser.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';

let browser: Browser;
let app: TestApp;
let ada: Client;

beforeEach((ctx) => needs(ctx, 'chromium'));
beforeAll(async () => {
  if (!has('chromium')) return;
  browser = await openBrowser();
  app = await startApp();
  ada = await app.user('ada');
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
});

const commit = (name: string, message: string, files: Record<string, string>, branch = 'main') =>
  ada.gql(
    `mutation ($input: CreateCommitInput!) { createCommit(input: $input) { commit { sha } } }`,
    {
      input: {
        id: ids.get(name),
        branch,
        message,
        changes: Object.entries(files).map(([path, content]) => ({ path, content })),
      },
    },
  );

const ids = new Map<string, string>();
async function repository(name: string, more: object = {}): Promise<void> {
  const { body } = await ada.post('/auth/v1/repository/ada', { name, ...more });
  ids.set(name, body.id);
}

test('a repository is created, browsed and searched', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada');
  await page.getByRole('heading', { name: 'There is no repository yet' }).waitFor();
  await expectUsable(page);
  await page.getByRole('link', { name: 'New repository' }).first().click();
  await page.getByLabel('Name', { exact: true }).fill('no name');
  await page.getByText('must be 1 to 100 letters').waitFor();
  await page.getByLabel('Name', { exact: true }).fill('clicked');
  await page.getByRole('button', { name: 'Create repository' }).click();
  await page.waitForURL('**/ada/clicked');
  // The forms begin with the namespace and the repository of the page.
  await page.getByRole('button', { name: 'New…' }).click();
  await page.getByRole('menuitem', { name: 'New job' }).click();
  await page.waitForURL('**/new/job?namespace=ada&repo=ada%2Fclicked');

  await repository('code');
  await commit('code', 'Begin', {
    'README.md': '# Hello\n\nSee [the source](src/main.ts).\n',
    'src/main.ts': 'export const answer = 42;\nconsole.log(answer);\n',
  });
  await page.goto('/ada/code');
  await page.getByRole('heading', { name: 'Hello', exact: true }).waitFor();
  await expectUsable(page);
  await page.getByRole('link', { name: 'the source' }).click();
  await page.waitForURL('**/ada/code/file/src/main.ts');
  // Highlighting has loaded, and the content security policy allows its inline styles.
  await page.locator('span[style*="color"]', { hasText: 'export' }).first().waitFor();
  await expectUsable(page);
  await page.getByRole('link', { name: 'Line 2', exact: true }).click();
  await expect.poll(() => new URL(page.url()).hash).toBe('#L2');
  await page.getByRole('link', { name: 'Blame', exact: true }).click();
  const blame = page.getByRole('region', { name: 'Who changed src/main.ts' });
  await blame.getByRole('link', { name: /Begin/ }).waitFor();
  // Blame has line numbers and highlighting, as the code view.
  await blame.getByText('2', { exact: true }).waitFor();
  await blame.locator('span[style*="color"]', { hasText: 'export' }).first().waitFor();
  await expectUsable(page);

  await page.goto('/ada/code/search?q=answer');
  await page.getByText('export const answer = 42;').waitFor();
  expect(await page.locator('mark').allTextContents()).toEqual(['answer', 'answer']);
  await expectUsable(page);
  visitor.expectQuiet();
});

const NOTEBOOK = JSON.stringify({
  nbformat: 4,
  metadata: { language_info: { name: 'python' } },
  cells: [
    { cell_type: 'markdown', source: ['# A study\n', 'of $x^2$'] },
    {
      cell_type: 'code',
      source: ['import os\n', 'print(os.name)'],
      execution_count: 3,
      outputs: [
        { output_type: 'stream', name: 'stdout', text: ['posix\n'] },
        {
          output_type: 'display_data',
          data: {
            'image/png':
              'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==',
            'text/plain': ['a plot'],
          },
        },
      ],
    },
  ],
});

test('Markdown, tables, notebooks and images have a preview and a code view', async () => {
  await repository('shown');
  await commit('shown', 'Begin', {
    'README.md':
      '# Shown :rocket:\n\n- [x] drawn\n\n> [!TIP]\n> See ![the picture](picture.svg).\n\n```ts\nconst answer = 42;\n```\n',
    'docs/guide.md':
      '# The guide\n\nIt costs $5 or $10, and $\\frac{1}{2}$.\n\n$$\n\\sum_i i\n$$\n\n```math\nE = mc^2\n```\n\n$$a + b$$\n',
    'data/table.csv': 'name,"the, value"\none,1\n',
    'study.ipynb': NOTEBOOK,
    'broken.ipynb': '{"cells": 7}',
    'picture.svg': '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>',
  });
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/shown');
  await page.locator('.markdown pre span[style*="color"]', { hasText: 'const' }).waitFor();
  await page
    .locator('[data-last-commit]')
    .getByRole('link', { name: 'Begin', exact: true })
    .waitFor();
  await page.getByRole('img', { name: '2 commits in the last year' }).waitFor();
  await page.getByRole('heading', { name: 'Shown 🚀' }).waitFor();
  await page.getByRole('checkbox', { name: 'drawn' }).waitFor();
  const drawn = page.locator('[data-alert=tip]').getByRole('img', { name: 'the picture' });
  await expect.poll(() => drawn.evaluate((img: HTMLImageElement) => img.naturalWidth)).toBe(9);
  await expectUsable(page);

  await page.goto('/ada/shown/file/docs/guide.md');
  await page.getByRole('heading', { name: 'The guide' }).waitFor();
  await page.getByText('It costs $5 or $10, and').waitFor();
  await expect.poll(() => page.locator('math').count()).toBe(4);
  expect(await page.locator('math[display=block]').count()).toBe(3);
  await page.locator('math mfrac').waitFor();
  await expectUsable(page);
  await page.getByRole('link', { name: 'Code', exact: true }).click();
  await page.getByText('# The guide').waitFor();
  await page.getByRole('link', { name: 'Line 3', exact: true }).click();
  await page.getByRole('link', { name: 'Preview', exact: true }).click();
  await page.getByRole('heading', { name: 'The guide' }).waitFor();
  // A link to a line opens the code view.
  await page.goto('/ada/shown/file/docs/guide.md#L1');
  await page.getByText('# The guide').waitFor();

  await page.goto('/ada/shown/file/data/table.csv');
  await page.getByRole('columnheader', { name: 'the, value' }).waitFor();
  await page.getByRole('cell', { name: 'one', exact: true }).waitFor();
  await expectUsable(page);

  await page.goto('/ada/shown/file/study.ipynb');
  await page.getByRole('heading', { name: 'A study' }).waitFor();
  await page.locator('span[style*="color"]', { hasText: 'import' }).waitFor();
  await page.getByText('posix').waitFor();
  const plot = page.getByRole('img', { name: 'a plot' });
  await expect.poll(() => plot.evaluate((img: HTMLImageElement) => img.naturalWidth)).toBe(1);
  await expectUsable(page);
  await page.goto('/ada/shown/file/broken.ipynb');
  await page.getByRole('heading', { name: 'This is not a notebook' }).waitFor();

  await page.goto('/ada/shown/file/picture.svg');
  const picture = page.getByRole('img', { name: 'picture.svg', exact: true });
  await expect.poll(() => picture.evaluate((img: HTMLImageElement) => img.naturalWidth)).toBe(9);
  await page.getByRole('link', { name: 'Code', exact: true }).click();
  await page.getByText('http://www.w3.org/2000/svg').waitFor();
  visitor.expectQuiet();
});

test('a README whose preview fails is shown as text', async () => {
  await repository('failing');
  await commit('failing', 'Begin', { 'README.md': '# Not a heading\n' });
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.route('**/assets/markdown-*.js', (route) =>
    route.fulfill({
      contentType: 'text/javascript',
      body: 'throw new Error("The preview is broken.");',
    }),
  );
  await page.goto('/ada/failing');
  await page.getByText('The preview is broken.').waitFor();
  await page.getByText('# Not a heading').waitFor();
  await page.getByRole('link', { name: 'README.md', exact: true }).waitFor();
  await expectUsable(page);
});

test('diffs mark changed words, history is grouped by day, branches show their distance', async () => {
  await repository('changed');
  await commit('changed', 'Begin', { 'main.ts': 'const answer = 41;\nlet rest;\n' });
  await ada.gql(
    'mutation ($input: CreateBranchInput!) { createBranch(input: $input) { repository { id } } }',
    { input: { id: ids.get('changed'), name: 'side', from: 'main' } },
  );
  const main = 'const answer = 42;\nlet rest;\n';
  const more = Array.from({ length: 21 }, (_, i) => [`src/deep/${10 + i}.txt`, `${i}\n`]);
  const corrected = { 'main.ts': main, ...Object.fromEntries(more) };
  await commit('changed', 'Correct it', corrected, 'side');
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/changed/compare?base=main&head=side');
  await page.locator('.word-removed', { hasText: '41' }).waitFor();
  await page.locator('.word-added', { hasText: '42' }).waitFor();
  await page.locator('td span[style*="color"]', { hasText: 'const' }).first().waitFor();
  await expectUsable(page);
  // The tree lists all files. A click loads the diff of a file that was not shown yet, and scrolls to it.
  const tree = page.getByRole('navigation', { name: 'Changed files' });
  await tree.getByText('src/deep', { exact: true }).waitFor();
  expect(await page.locator('[data-file="src/deep/30.txt"]').count()).toBe(0);
  await tree.getByRole('link', { name: '30.txt added' }).click();
  await page.locator('[data-file="src/deep/30.txt"] summary:focus').waitFor();
  await page.goto('/ada/changed/commits?ref=side');
  const today = new Intl.DateTimeFormat('en', { dateStyle: 'long' });
  const heading = page.getByRole('heading', { level: 2 });
  await heading.first().waitFor();
  // There are two days if midnight passes between the commits.
  for (const text of await heading.allTextContents())
    expect(today.format(new Date(text))).toBe(text);
  await expectUsable(page);
  await page.goto('/ada/changed/branches');
  await page.getByText('1 ahead, 0 behind').waitFor();
  await expectUsable(page);
  visitor.expectQuiet();
});

test('user content runs no script and loads nothing from other hosts', async () => {
  const attacks = [
    '<script>window.hit = 1</script>',
    '<img src=x onerror="window.hit = 1">',
    '<svg onload="window.hit = 1"></svg>',
    '<iframe src="javascript:parent.hit = 1"></iframe>',
    '<a href="javascript:window.hit = 1">press</a>',
    '[press too](javascript:window.hit=1)',
    '<form action="https://example.com"><button>send</button></form>',
    '<style>body { display: none }</style>',
    '![seen](https://example.com/track.png)',
    '<img src="//example.com/track.png" alt="seen too">',
    '<base href="https://example.com/">',
  ].join('\n\n');
  await repository('evil', { description: '<img src=x onerror="window.hit = 1">' });
  await commit('evil', '<script>window.hit = 1</script>', {
    'README.md': attacks,
    '<img src=x onerror=alert(1)>.txt': attacks,
  });
  await using visitor = await visit(browser, app, { as: ada });
  const { page, context } = visitor;
  const asked: string[] = [];
  context.on('request', (request) => asked.push(request.url()));
  await page.goto('/ada/evil');
  await page.getByRole('link', { name: 'seen', exact: true }).waitFor();
  for (const link of await page.getByText(/^press/).all()) await link.click({ force: true });
  await page.goto(`/ada/evil/file/${encodeURIComponent('<img src=x onerror=alert(1)>.txt')}`);
  await page.getByText('window.hit').first().waitFor();
  expect(await page.evaluate(() => 'hit' in window)).toBe(false);
  expect(asked.filter((url) => !url.startsWith(app.base))).toEqual([]);
  expect(page.url()).toContain(app.base);
});

test('before its first push, a repository has neither a push nor commits to show', async () => {
  await repository('fresh');
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/fresh');
  await page.getByRole('heading', { name: 'No files yet' }).waitFor();
  await page.getByText('Created', { exact: true }).waitFor();
  for (const text of ['never', 'commit in the last year'])
    expect(await page.getByText(text).count()).toBe(0);
  visitor.expectQuiet();
});

test('anonymous visitors see public repositories only', async () => {
  await repository('open', { visibility: 'public' });
  await repository('shut');
  await commit('open', 'Begin', { 'README.md': '# Come in' });
  await using visitor = await visit(browser, app);
  const { page } = visitor;
  await page.goto('/ada/open');
  await page.getByRole('heading', { name: 'Come in' }).waitFor();
  await expectUsable(page);
  visitor.expectQuiet();
  await page.goto('/ada/shut');
  await page.getByRole('heading', { name: 'Repository not found' }).waitFor();
  await page.getByRole('main').getByRole('button', { name: 'Sign in' }).click();
  await expect
    .poll(() => new URL(page.url()).search)
    .toBe(`?to=${encodeURIComponent('/ada/shut')}`);
});

test('without a ref in the URL the default branch is shown, whatever its name', async () => {
  await repository('dev', { default_branch: 'dev' });
  await ada.gql(
    'mutation ($input: CreateBranchInput!) { createBranch(input: $input) { repository { id } } }',
    { input: { id: ids.get('dev'), name: 'main' } },
  );
  await commit('dev', 'On main', { 'README.md': '# Of main' });
  await commit('dev', 'On dev', { 'README.md': '# Of dev' }, 'dev');
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/dev');
  await page.getByRole('heading', { name: 'Of dev' }).waitFor();
  await page.goto('/ada/dev/file/README.md');
  await page.getByText('Of dev').waitFor();
  await page.getByLabel('Branch, tag or commit').selectOption('main');
  await page.getByText('Of main').waitFor();
  visitor.expectQuiet();
});

test('a repository named - and its namespace have separate pages', async () => {
  await repository('-');
  await commit('-', 'Begin', { 'jobs/README.md': '# Of the repository' });
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  const title = page.getByRole('heading', { level: 1, name: 'ada/-' });
  await page.goto('/ada/-');
  await title.waitFor();
  for (const tab of ['Jobs', 'Settings']) {
    await page.getByRole('main').getByRole('link', { name: tab, exact: true }).click();
    await page.waitForURL(`**/ada/~-/${tab.toLowerCase()}`);
    await title.waitFor();
    await page.reload();
    await title.waitFor();
  }
  await page.goto('/ada/~-/tree/jobs');
  await page.getByRole('link', { name: 'README.md', exact: true }).click();
  await page.waitForURL('**/ada/~-/file/jobs/README.md');
  await page.getByText('Of the repository').waitFor();
  for (const path of ['jobs', 'settings']) {
    await page.goto(`/ada/-/${path}`);
    await page.getByRole('heading', { level: 1, name: 'ada', exact: true }).waitFor();
  }
  visitor.expectQuiet();
});

test('a repository with the name of a page is reachable', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  for (const name of ['graphql', 'login', 'settings', 'commits', 'new-file', 'job']) {
    await repository(name);
    for (const path of ['', '/commits', '/settings']) {
      await page.goto(`/ada/${name}${path}`);
      await page.getByRole('heading', { level: 1, name: `ada/${name}` }).waitFor();
    }
  }
  visitor.expectQuiet();
});
