/** Webhooks in the dashboard: the form for a new webhook, tests, and live deliveries. */
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { expectUsable, openBrowser, visit } from '../../support/browser.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import {
  type Authority,
  makeAuthority,
  type Receiver,
  startReceiver,
} from '../../support/webhook-receiver.ts';

let browser: Browser;
let app: TestApp;
let ada: Client;
let authority: Authority;
let receiver: Receiver;

beforeEach((ctx) => needs(ctx, 'chromium'));
beforeAll(async () => {
  if (!has('chromium')) return;
  browser = await openBrowser();
  authority = await makeAuthority();
  receiver = await startReceiver(authority);
  app = await startApp({
    config: {
      runner: 'process',
      webhooks: { allow: ['127.0.0.0/8'], authorities: authority.file },
    },
  });
  ada = await app.user('hooks-ada');
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
  await receiver?.[Symbol.asyncDispose]();
  await authority?.[Symbol.asyncDispose]();
});

test('a webhook is created, tested and deleted, and its name never runs as a script', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  const name = '<script>alert(1)</script>';
  await page.goto('/new/webhook?namespace=hooks-ada');
  await page.getByLabel('Name', { exact: true }).fill(name);
  await page.getByLabel('URL').fill('javascript:alert(1)');
  await page.getByText('Loam does not send these types yet: service.created,').waitFor();
  expect(await page.getByLabel('Secret', { exact: true }).inputValue()).toMatch(/^whsec_.{44}$/);
  await page.getByRole('button', { name: 'Create webhook' }).click();
  await page.getByText(/^Must use https/).waitFor();
  await page.getByLabel('URL').fill(`${receiver.url}/hook`);
  await page.getByRole('button', { name: 'Create webhook' }).click();

  await page.getByRole('heading', { name, level: 1 }).waitFor();
  await page.getByRole('link', { name: 'Webhooks', exact: true }).waitFor();
  await page.locator('[data-live=live]').waitFor();
  await page.getByRole('button', { name: 'Send test' }).click();
  const delivery = page.locator('[data-event=PING]');
  await delivery.locator('[data-delivery=SUCCEEDED]').waitFor();
  await delivery.getByRole('button', { name: 'ping', exact: true }).click();
  await delivery.getByText('"type": "ping"').waitFor();
  await expectUsable(page);

  // A failed delivery that will be retried looks different from a delivery not sent yet.
  receiver.answer = (response) => void response.writeHead(500).end();
  await page.getByRole('button', { name: 'Send test' }).click();
  await page.locator('[data-delivery=PENDING].text-warn', { hasText: 'will retry' }).waitFor();
  await page.getByRole('button', { name: 'Delete webhook' }).click();
  await page.keyboard.type(name);
  await page.getByRole('dialog').getByRole('button', { name: 'Delete webhook' }).click();
  await page.getByRole('heading', { name: 'No webhooks yet' }).waitFor();
  visitor.expectQuiet();
});
