/** Charts of metrics on the page of a job. */
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { expectUsable, openBrowser, visit } from '../../support/browser.ts';
import { fakeRunner } from '../../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { submit, until } from '../../support/submit.ts';

const runner = fakeRunner();
let browser: Browser;
let app: TestApp;
let ada: Client;

beforeEach((ctx) => needs(ctx, 'chromium'));
beforeAll(async () => {
  if (!has('chromium')) return;
  browser = await openBrowser();
  app = await startApp({ overrides: { runner } });
  ada = await app.user('ada');
  await ada.repository('ada/code');
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
});

const run = (name: string, command: string, more: object = {}) =>
  submit(ada, { namespace: 'ada', name, repo: 'ada/code', command, ...more });
const echo = (lines: string[]) => lines.map((line) => `echo ${line}`).join('; ');
const chart = (page: Page, name: string, points: number) =>
  page.locator(`[data-metric="${name}"][data-points="${points}"]`);

test('the charts of a running job are live', async () => {
  const epochs = (from: number, to: number) =>
    echo(
      Array.from({ length: to - from }, (_, at) => {
        const step = from + at;
        const accuracy = step === 7 ? 'nan' : Math.round((1 - 1 / (step + 2)) * 1e4) / 1e4;
        return `::metric::loss=${1 / (step + 1)} train/accuracy=${accuracy} step=${step}`;
      }),
    );
  await run('train', `${epochs(0, 20)}; hold; ${epochs(20, 50)}; exit 0`);
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/-/jobs/train');
  await chart(page, 'loss', 20).locator('canvas').waitFor();
  runner.release();
  await chart(page, 'loss', 50).locator('canvas').waitFor();
  await chart(page, 'train/accuracy', 50).locator('canvas').waitFor();
  await page.getByText('last 0.02 at step 49, min 0.02, max 1', { exact: true }).waitFor();
  await page.locator('main [data-status=SUCCEEDED]').first().waitFor();

  await page.getByLabel('Horizontal axis').selectOption('Time');
  await page.getByLabel('Logarithmic scale').check();
  await page.getByLabel(/^Smoothing/).focus();
  for (let press = 0; press < 3; press++) await page.keyboard.press('ArrowRight');
  await page.getByText('Smoothing: 0.03').waitFor();
  await chart(page, 'loss', 50).locator('canvas').waitFor();
  const link = page.getByRole('link', { name: 'Download train/accuracy as CSV' });
  const csv = await (await fetch((await link.getAttribute('href')) as string)).text();
  expect(csv.trimEnd().split('\n')).toHaveLength(51);
  await expectUsable(page);
  visitor.expectQuiet();
});

test('attempts are lines of their own, also narrow and dark', async () => {
  const command = `${echo(['::metric::a=1', '::metric::a=3', '::metric::a=-2'])}; exit 1`;
  await run('retried', command, { retries: 1 });
  await until(ada, 'ada', 'retried', 'FAILED');
  await using visitor = await visit(browser, app, { as: ada, width: 400, colorScheme: 'dark' });
  const { page } = visitor;
  await page.goto('/ada/-/jobs/retried');
  await chart(page, 'a', 6).scrollIntoViewIfNeeded();
  await chart(page, 'a', 6).locator('canvas').waitFor();
  await expectUsable(page);
  visitor.expectQuiet();
});

test('a job without metrics says how to print one', async () => {
  await run('quiet', 'exit 0');
  await until(ada, 'ada', 'quiet', 'SUCCEEDED');
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/-/jobs/quiet');
  await page.getByText('echo "::metric::loss=0.5"').waitFor();
  await expectUsable(page);
  visitor.expectQuiet();
});
