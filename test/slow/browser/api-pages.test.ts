/** The pages that others made, the reference of REST and GraphiQL: under the header of the dashboard. */
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { openBrowser, visit } from '../../support/browser.ts';
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

test('both lead to each other and home, and fill the window below the header', async () => {
  await using visitor = await visit(browser, app);
  const { page } = visitor;
  // The address of the reference in links of older versions.
  await page.goto('/docs#/Jobs');
  await page.waitForURL('**/docs/api#/Jobs');
  await page.getByText('/auth/v1/whoami').first().waitFor();
  const header = page.getByRole('banner');
  expect(await header.locator('[aria-current=page]').textContent()).toBe('REST');
  await header.getByRole('link', { name: 'GraphQL', exact: true }).click();
  await page.waitForURL('**/graphql');
  const graphiql = page.locator('.graphiql-container').first();
  await graphiql.waitFor();
  expect(await header.locator('[aria-current=page]').textContent()).toBe('GraphQL');
  const box = await graphiql.boundingBox();
  const { height = 0 } = (await header.boundingBox()) ?? {};
  expect([box?.y, (box?.y ?? 0) + (box?.height ?? 0)]).toEqual([height, 900]);
  await header.getByRole('link', { name: 'Loam', exact: true }).click();
  await page.waitForURL((url) => url.pathname === '/');
  visitor.expectQuiet();
});

test('GraphiQL asks with the session of who is signed in', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/graphql');
  await page.getByRole('button', { name: 'Execute query' }).click();
  await page.locator('.result-window').getByText('"ada"').first().waitFor();
  visitor.expectQuiet();
});
