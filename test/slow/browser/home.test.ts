import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { expectUsable, openBrowser, visit } from '../../support/browser.ts';
import { startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { cancel, submit } from '../../support/submit.ts';

let browser: Browser;
let app: TestApp;

beforeEach((ctx) => needs(ctx, 'chromium'));
beforeAll(async () => {
  if (!has('chromium')) return;
  browser = await openBrowser();
  app = await startApp({ config: { runner: 'process' } });
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
});

test('a signed-in user starts at the home page, where a new job appears by itself', async () => {
  const ada = await app.user('home-ada');
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/');
  await page.getByRole('heading', { name: 'No running jobs' }).waitFor();
  await page.locator('[data-live=live]').waitFor();
  await expectUsable(page);

  await ada.post('/auth/v1/repository/home-ada', { name: 'code' });
  await submit(ada, {
    namespace: 'home-ada',
    name: 'wait',
    repo: 'home-ada/code',
    command: 'sleep 60',
  });
  await page.getByRole('link', { name: 'wait' }).waitFor();
  await page.locator('[data-job=wait] [data-status=RUNNING]').waitFor();
  await cancel(ada, 'home-ada', 'wait');
  await page.getByText('No running jobs').waitFor();
  // A job that has ended stays on the page, whatever its state.
  const recent = page.getByRole('region', { name: 'My recent jobs' });
  await recent.locator('[data-job=wait] [data-status=CANCELLED]').waitFor();
  await expectUsable(page);
  visitor.expectQuiet();
});

test('the next step is a first push, and then a file of jobs', async () => {
  const eve = await app.user('home-eve');
  const { body } = await eve.post('/auth/v1/repository/home-eve', {
    name: 'project',
    auto_init: false,
  });
  await using visitor = await visit(browser, app, { as: eve });
  const { page } = visitor;
  await page.goto('/');
  await page.getByRole('heading', { name: 'Push your project to project' }).waitFor();
  await eve.gql(
    'mutation ($input: CreateCommitInput!) { createCommit(input: $input) { commit { sha } } }',
    {
      input: {
        id: body.id,
        branch: 'main',
        message: 'Begin',
        changes: [{ path: 'a.txt', content: 'a' }],
      },
    },
  );
  await page.reload();
  await page.getByRole('link', { name: 'Add .loam/jobs.yml' }).click();
  await page.getByLabel('Contents').waitFor();
  expect(await page.getByLabel('Path').inputValue()).toBe('.loam/jobs.yml');
  await page.getByRole('button', { name: 'Commit' }).click();
  await page.waitForURL('**/home-eve/project/file/.loam/jobs.yml');
  await page.goto('/');
  await page.locator('[data-job^=test]').first().waitFor();
  expect(await page.getByRole('heading', { name: 'Next step' }).count()).toBe(0);
  visitor.expectQuiet();
});

test('a visitor who is not signed in gets a link to sign in', async () => {
  await using visitor = await visit(browser, app);
  await visitor.page.goto('/');
  await visitor.page.getByRole('link', { name: 'Sign in' }).click();
  await expect.poll(() => new URL(visitor.page.url()).pathname).toBe('/login');
  visitor.expectQuiet();
});
