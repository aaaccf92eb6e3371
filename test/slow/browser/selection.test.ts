/** Selecting jobs in a list, and changing all that are selected, with mouse and keyboard. */
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { expectUsable, openBrowser, visit } from '../../support/browser.ts';
import { fakeRunner } from '../../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { job, submit, until } from '../../support/submit.ts';

let browser: Browser;
let app: TestApp;
let ada: Client;

beforeEach((ctx) => needs(ctx, 'chromium'));
beforeAll(async () => {
  if (!has('chromium')) return;
  browser = await openBrowser();
  app = await startApp({
    config: { jobSlots: 10 },
    overrides: { runner: fakeRunner({ images: true, graceMs: 100 }) },
  });
  ada = await app.user('ada', 'unlimited');
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
});

const run = (name: string, command: string, more: object = {}) =>
  submit(ada, { namespace: 'ada', name, image: 'x', command, ...more });
const box = (page: Page, name: string) => page.getByRole('checkbox', { name, exact: true });
const status = (page: Page, text: string) =>
  page.getByRole('status').getByText(text, { exact: true }).waitFor();

test('selected jobs are cancelled, run again and deleted', async () => {
  for (const name of ['one', 'two', 'three']) await run(name, 'sleep 600');
  await until(ada, 'ada', 'one', 'RUNNING');
  await run('ended', 'exit 0');
  await until(ada, 'ada', 'ended', 'SUCCEEDED');
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/-/jobs');
  await status(page, '4 jobs');
  await box(page, 'Select one').check();
  await box(page, 'Select ended').check();
  await status(page, '4 jobs, 2 selected');
  await expectUsable(page);
  await page.getByRole('button', { name: 'Cancel', exact: true }).click();
  await page.getByRole('dialog').getByText('1 job is skipped: It has ended.').waitFor();
  await expectUsable(page);
  await page.getByRole('button', { name: 'Cancel 1 job' }).click();
  await status(page, '1 job cancelled, 1 skipped');
  await status(page, '4 jobs');
  expect((await job(ada, 'ada', 'one')).status).toBe('CANCELLED');

  // By keyboard alone: the checkbox of the list, then the action.
  const all = box(page, 'Select all shown jobs');
  await all.focus();
  await page.keyboard.press('Space');
  await status(page, '4 jobs, 4 selected');
  await box(page, 'Select two').focus();
  await page.keyboard.press('Space');
  await status(page, '4 jobs, 3 selected');
  expect(await all.evaluate((input: HTMLInputElement) => input.indeterminate)).toBe(true);
  await page.getByRole('button', { name: 'Run again' }).focus();
  await page.keyboard.press('Enter');
  const dialog = page.getByRole('dialog', { name: 'Run 3 jobs again?' });
  await dialog.getByRole('button', { name: 'Run again' }).focus();
  await page.keyboard.press('Enter');
  await status(page, '3 jobs created');
  await page.locator('[data-job=one-2]').waitFor();

  await until(ada, 'ada', 'ended-2', 'SUCCEEDED');
  await page.goto('/ada/-/jobs?status=SUCCEEDED');
  await box(page, 'Select all shown jobs').check();
  await page.getByRole('button', { name: 'Delete', exact: true }).click();
  await page.getByLabel('Type 2 to confirm').fill('2');
  await page.getByRole('button', { name: 'Delete 2 jobs' }).click();
  await page.getByText('No matching jobs').waitFor();
  expect((await ada.get('/ada/job/ended')).status).toBe(404);
  visitor.expectQuiet();
});

test('all jobs that match a filter are selected, on a narrow screen, too', async () => {
  const labels = [{ key: 'sweep', value: '1' }];
  for (let n = 0; n < 30; n++) await run(`sweep-${n}`, 'sleep 600', { labels });
  await using visitor = await visit(browser, app, { as: ada, width: 380, colorScheme: 'dark' });
  const { page } = visitor;
  await page.goto('/ada/-/jobs?label=sweep%3D1');
  await status(page, '30 jobs');
  await box(page, 'Select all shown jobs').check();
  await status(page, '30 jobs, 25 selected');
  await expectUsable(page);
  await page.getByRole('button', { name: 'Select all 30 jobs' }).click();
  await status(page, '30 jobs, 30 selected');
  await page.getByRole('button', { name: 'Cancel', exact: true }).click();
  await page.getByRole('button', { name: 'Cancel 30 jobs' }).click();
  await status(page, '30 jobs cancelled');
  expect((await job(ada, 'ada', 'sweep-0')).status).toBe('CANCELLED');
  // Another filter begins without a selection.
  await box(page, 'Select all shown jobs').check();
  await page.getByLabel('Status').selectOption('CANCELLED');
  await status(page, '30 jobs');
  visitor.expectQuiet();
});

test('a list of arrays alone has no shown jobs to select, but all of them', async () => {
  const dan = await app.user('dan', 'unlimited');
  await submit(dan, {
    namespace: 'dan',
    name: 'a',
    image: 'x',
    command: 'sleep 600',
    array: { size: 3 },
  });
  await using visitor = await visit(browser, app, { as: dan });
  const { page } = visitor;
  await page.goto('/dan/-/jobs');
  await status(page, '3 jobs');
  expect(await box(page, 'Select all shown jobs').isChecked()).toBe(false);
  await page.getByRole('button', { name: 'Select all 3 jobs' }).click();
  await status(page, '3 jobs, 3 selected');
  await page.getByRole('button', { name: 'Cancel', exact: true }).click();
  await page.getByRole('button', { name: 'Cancel 3 jobs' }).click();
  await status(page, '3 jobs cancelled');
  visitor.expectQuiet();
});

test('who may only read cannot select, and a job shows its inputs', async () => {
  await run('source', 'echo x > out/x', { outputPath: 'out' });
  await until(ada, 'ada', 'source', 'SUCCEEDED');
  await run('user', 'echo ran', { inputs: [{ job: 'source', path: 'x', to: 'in/' }] });
  await until(ada, 'ada', 'user', 'SUCCEEDED');
  const bob = await app.user('bob');
  await app.pool.query(
    `insert into members (namespace_id, user_id, role)
     select n.id, u.id, 'read' from namespaces n, users u where n.name = 'ada' and u.username = 'bob'`,
  );
  await using visitor = await visit(browser, app, { as: bob });
  const { page } = visitor;
  await page.goto('/ada/-/jobs');
  await page.locator('[data-job=user]').waitFor();
  expect(await page.getByRole('checkbox').count()).toBe(0);
  await page.getByRole('link', { name: 'user', exact: true }).click();
  const settings = page.getByRole('region', { name: 'Settings', exact: true });
  await settings.getByText('source: x → in/').waitFor();
  await expectUsable(page);
  await settings.getByRole('link', { name: 'source', exact: true }).click();
  await page.getByRole('heading', { name: 'source', exact: true }).waitFor();
  visitor.expectQuiet();
});
