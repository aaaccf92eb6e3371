/** Settings of a user in the dashboard, and the server pages that only operators see. */
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
  ada = await app.user('settings-ada');
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
});

test('a token whose name is a script is created, shown once, and deleted', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  const name = '<img src=x onerror=alert(1)>';
  await page.goto('/settings/tokens');
  await page.getByRole('button', { name: 'New token' }).first().click();
  await page.getByLabel('Name', { exact: true }).fill(name);
  await page.getByRole('button', { name: 'Create token' }).click();
  const token = await page.locator('[data-secret]').innerText();
  const answer = await fetch(`${app.base}/auth/v1/whoami`, {
    headers: { authorization: `Bearer ${token}` },
  });
  expect(answer.status).toBe(200);
  await page.getByRole('button', { name: 'I have copied it' }).click();
  await page.getByText(name, { exact: true }).waitFor();
  expect(await page.content()).not.toContain(token);
  await expectUsable(page);

  await page.getByRole('button', { name: `Delete ${name}` }).click();
  await page.getByRole('button', { name: 'Delete token', exact: true }).click();
  await page.getByText(name, { exact: true }).waitFor({ state: 'detached' });
  visitor.expectQuiet();
});

test('a form shows an error at the field it is about', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/settings/ssh-keys');
  await page.getByRole('button', { name: 'Add a key' }).first().click();
  await page.getByLabel('Public key').fill('no key');
  await page.getByRole('button', { name: 'Add key' }).click();
  await page.getByText(/^Must begin with a supported key type/).waitFor();
  expect(await page.getByLabel('Public key').getAttribute('aria-invalid')).toBe('true');
});

test('users who are not operators see a notice in place of the server pages', async () => {
  await using visitor = await visit(browser, app, { as: ada, width: 375, colorScheme: 'dark' });
  const { page } = visitor;
  for (const path of ['', '/users', '/organizations', '/servers', '/queue', '/audit']) {
    await page.goto(`/settings/server${path}`);
    await page.getByRole('heading', { name: 'Only operators can see this page' }).waitFor();
    await expectUsable(page);
  }
  visitor.expectQuiet();
});

test('signing out everywhere ends the current session, too', async () => {
  const grace = await app.user('settings-grace');
  await using visitor = await visit(browser, app, { as: grace });
  const { page } = visitor;
  await page.goto('/settings/sessions');
  await page.getByText('this browser', { exact: true }).waitFor();
  await expectUsable(page);
  await page.getByRole('button', { name: 'Everywhere, including here' }).click();
  await page.getByRole('button', { name: 'Sign out', exact: true }).last().click();
  await page.waitForURL(/\/login/);
});
