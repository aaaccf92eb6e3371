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
  await page.getByRole('heading', { name: 'No running jobs' }).waitFor();
  visitor.expectQuiet();
});

test('a visitor who is not signed in gets a link to sign in', async () => {
  await using visitor = await visit(browser, app);
  await visitor.page.goto('/');
  await visitor.page.getByRole('link', { name: 'Sign in' }).click();
  await expect.poll(() => new URL(visitor.page.url()).pathname).toBe('/login');
  visitor.expectQuiet();
});
