/** Arrays in lists of jobs, and what a job waits for. */
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import {
  expectContrast,
  expectUsable,
  openBrowser,
  setTheme,
  visit,
} from '../../support/browser.ts';
import { fakeRunner } from '../../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { submit, until } from '../../support/submit.ts';

let browser: Browser;
let app: TestApp;
let ada: Client;

beforeEach((ctx) => needs(ctx, 'chromium'));
beforeAll(async () => {
  if (!has('chromium')) return;
  browser = await openBrowser();
  app = await startApp({ overrides: { runner: fakeRunner({ images: true }) } });
  ada = await app.user('ada');
  const create = (name: string, command: string, fields: object = {}) =>
    submit(ada, { namespace: 'ada', name, command, image: 'debian:12', ...fields });
  await create('build', 'busy');
  await create('sweep', 'exit 1', { array: { size: 40, maxParallel: 4 } });
  await create('deploy', 'echo', {
    needs: [{ job: 'build' }, { job: 'sweep-7', when: 'FINISHED' }],
    concurrency: { group: 'deploy', onConflict: 'CANCEL_RUNNING' },
  });
  await until(ada, 'ada', 'sweep-39', 'FAILED');
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
});

for (const width of [1280, 390])
  test(`an array is one row with its counts, at ${width} pixels`, async () => {
    await using visitor = await visit(browser, app, { as: ada, width });
    const { page } = visitor;
    await page.goto('/ada/-/jobs');
    const row = page.locator('[data-array="sweep"]');
    await row.getByText('Array of 40 jobs, at most 4 at once').waitFor();
    await row.getByText('40', { exact: true }).waitFor();
    await expectUsable(page);
    await page.goto('/ada/-/jobs?status=FAILED');
    await row.waitFor();
    expect(await page.locator('[data-job]').count()).toBe(0);
    await row.getByRole('link', { name: 'sweep', exact: true }).click();
    await page.getByRole('heading', { level: 1, name: 'sweep' }).waitFor();
    await page.getByText('40 of 40 jobs ended').waitFor();
    await page.getByRole('button', { name: 'Rerun failed jobs' }).waitFor();
    expect(await page.locator('[data-job]').count()).toBe(25);
    await page.getByRole('button', { name: 'Show more' }).click();
    await page.locator('[data-job="sweep-39"]').waitFor();
    await expectUsable(page);
    await setTheme(page, 'dark');
    await expectContrast(page);
    await page.getByRole('link', { name: 'Search and select jobs' }).click();
    await page.locator('[data-job="sweep-39"]').waitFor();
    expect(await page.locator('[data-job="build"]').count()).toBe(0);
    await page.getByRole('link', { name: 'Show all jobs' }).click();
    await page.locator('[data-job="build"]').waitFor();
    visitor.expectQuiet();
  });

test('an array that does not exist is not found', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  for (const id of ['arr_00000000000000000000000000', 'other']) {
    await page.goto(`/ada/-/arrays/${id}`);
    await page.getByRole('heading', { level: 1, name: 'Array not found' }).waitFor();
  }
  visitor.expectQuiet();
});

for (const colorScheme of ['light', 'dark'] as const)
  test(`the page of a job shows what it waits for, in ${colorScheme} colours`, async () => {
    await using visitor = await visit(browser, app, { as: ada, colorScheme });
    const { page } = visitor;
    await page.goto('/ada/-/jobs/deploy');
    await page.getByText('waiting for build').first().waitFor();
    await page.getByRole('link', { name: 'sweep-7', exact: true }).waitFor();
    await page.getByText('deploy (cancel running)').waitFor();
    await expectUsable(page);
    await page.goto('/ada/-/jobs/sweep-7');
    await page.getByText('8 of 40').waitFor();
    visitor.expectQuiet();
  });
