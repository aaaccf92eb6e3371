/** The documentation in a browser: search, contents, themes, and what is left without scripts. */
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import {
  expectContrast,
  expectUsable,
  openBrowser,
  setTheme,
  visit,
} from '../../support/browser.ts';
import { startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';

let browser: Browser;
let app: TestApp;

beforeEach((ctx) => needs(ctx, 'chromium'));
beforeAll(async () => {
  if (!has('chromium')) return;
  browser = await openBrowser();
  app = await startApp();
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
});

test('the search finds sections by the keyboard, and leads to them', async () => {
  await using visitor = await visit(browser, app);
  const { page } = visitor;
  await page.goto('/docs');
  await page.keyboard.press('/');
  await page.keyboard.type('required jobs');
  const first = page.locator('#results a').first();
  await first.getByText('Automation › Required jobs').waitFor();
  await expectUsable(page);
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('Enter');
  await page.waitForURL('**/docs/automation#required-jobs');
  await page.getByRole('heading', { name: 'Required jobs' }).waitFor();

  await page.keyboard.press('/');
  await page.keyboard.type('zzzz <b>');
  await page.getByText('Nothing matches “zzzz <b>”.').waitFor();
  await page.keyboard.press('Escape');
  await page.locator('#results').waitFor({ state: 'hidden' });
  visitor.expectQuiet();
});

test('pages are usable wide and narrow, light and dark, and examples name the server', async () => {
  for (const width of [1400, 390]) {
    await using visitor = await visit(browser, app, { width });
    const { page } = visitor;
    for (const path of ['/docs', '/docs/first-user', '/docs/automation', '/docs/webhooks']) {
      await page.goto(path);
      await setTheme(page, 'light');
      await expectUsable(page);
      await setTheme(page, 'dark');
      await expectContrast(page);
    }
    await page.getByText(`LOAM=${app.base} LOAM_TOKEN=`).waitFor();
    visitor.expectQuiet();
  }
});

test('a chosen theme applies, and without scripts the pages can be read', async () => {
  await using visitor = await visit(browser, app);
  await visitor.context.addCookies([{ name: 'loam-theme', value: 'dark', url: app.base }]);
  await visitor.page.goto('/docs/jobs');
  expect(await visitor.page.locator('html').getAttribute('data-theme')).toBe('dark');

  const plain = await browser.newContext({ javaScriptEnabled: false, baseURL: app.base });
  try {
    const page = await plain.newPage();
    await page.goto('/docs');
    expect(await page.getByRole('searchbox').isVisible()).toBe(false);
    await page.getByRole('main').getByRole('link', { name: 'Jobs', exact: true }).click();
    await page.getByRole('heading', { name: 'Inputs' }).waitFor();
  } finally {
    await plain.close();
  }
});

test('each page of the dashboard leads to what explains it', async () => {
  await using visitor = await visit(browser, app, { as: app.admin });
  const { page } = visitor;
  for (const [path, docs] of [
    ['/settings/ssh-keys', '/docs/ssh#keys'],
    ['/admin/-/webhooks', '/docs/webhooks'],
    ['/admin', '/docs/repositories'],
  ] as const) {
    await page.goto(path);
    const link = page.getByRole('link', { name: 'Documentation of this page' });
    await expect.poll(() => link.getAttribute('href')).toBe(docs);
  }
  await page.getByRole('contentinfo').getByRole('link', { name: 'Documentation' }).click();
  await page.waitForURL('**/docs');
  visitor.expectQuiet();
});
