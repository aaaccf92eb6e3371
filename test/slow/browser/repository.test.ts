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
  await page.getByText('must be 1 to 100 of letters').waitFor();
  await page.getByLabel('Name', { exact: true }).fill('clicked');
  await page.getByRole('button', { name: 'Create repository' }).click();
  await page.waitForURL('**/ada/clicked');

  await repository('code');
  await commit('code', 'Begin', {
    'README.md': '# Hello\n\nSee [the source](src/main.ts).\n',
    'src/main.ts': 'export const answer = 42;\nconsole.log(answer);\n',
  });
  await page.goto('/ada/code');
  await page.getByRole('heading', { name: 'Hello' }).waitFor();
  await expectUsable(page);
  await page.getByRole('link', { name: 'the source' }).click();
  await page.waitForURL('**/ada/code/file/src/main.ts');
  // Its colours are loaded, and set in a way that the policy of the page allows.
  await page.locator('span[style*="color"]', { hasText: 'export' }).first().waitFor();
  await expectUsable(page);
  await page.getByRole('link', { name: 'Line 2', exact: true }).click();
  await expect.poll(() => new URL(page.url()).hash).toBe('#L2');
  await page.getByRole('link', { name: 'Blame' }).click();
  await page.getByRole('link', { name: /Begin/ }).waitFor();

  await page.goto('/ada/code/search?q=answer');
  await page.getByText('export const answer = 42;').waitFor();
  await expectUsable(page);
  visitor.expectQuiet();
});

test('what users write runs nothing and loads nothing from elsewhere', async () => {
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

test('who is not signed in sees what is public, and nothing else', async () => {
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
  await page.getByRole('heading', { name: 'There is no such repository' }).waitFor();
  await page.getByRole('main').getByRole('button', { name: 'Sign in' }).click();
  await expect
    .poll(() => new URL(page.url()).search)
    .toBe(`?to=${encodeURIComponent('/ada/shut')}`);
});

test('without a ref in the address the default branch is shown, whatever it is called', async () => {
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

test('a repository called - and its namespace have pages of their own', async () => {
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
  await page.getByRole('link', { name: 'README.md' }).click();
  await page.waitForURL('**/ada/~-/file/jobs/README.md');
  await page.getByText('Of the repository').waitFor();
  for (const path of ['jobs', 'settings']) {
    await page.goto(`/ada/-/${path}`);
    await page.getByRole('heading', { level: 1, name: 'ada', exact: true }).waitFor();
  }
  visitor.expectQuiet();
});

test('a repository that is called as a page is called has pages all the same', async () => {
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
