/** The budget on the page Usage, and retention and shells in the settings of a namespace. */
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { expectUsable, openBrowser, visit } from '../../support/browser.ts';
import { eventually } from '../../support/eventually.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { submit, until } from '../../support/submit.ts';

let app: TestApp;
let ada: Client;
let browser: Browser;
/** `LOAM_TEST_PICTURES=folder` stores pictures of the pages. */
const pictures = process.env.LOAM_TEST_PICTURES;

beforeEach((ctx) => needs(ctx, 'chromium'));
beforeAll(async () => {
  if (!has('chromium')) return;
  app = await startApp();
  ada = await app.user('ada');
  await ada.post('/auth/v1/repository/ada', { name: 'code' });
  browser = await openBrowser();
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
});

async function finished(name: string, team: string) {
  const labels = [{ key: 'team', value: team }];
  await submit(ada, { namespace: 'ada', repo: 'ada/code', name, command: 'echo up', labels });
  await until(ada, 'ada', name, 'SUCCEEDED');
}

test('an admin sets a budget, sees the cost against it, and deletes it', async () => {
  await finished('costly', 'nlp');
  await app.pool.query(`update jobs set runtime_seconds = 36000 where name = 'costly'`);
  await app.pool.query(`
    insert into usage_days (namespace_id, day, user_id, seconds, gpu_seconds, price_seconds, jobs)
    select namespace_id, (now() at time zone 'UTC')::date, 'u', 36000, 0, 360 * 3600, 1
    from jobs where name = 'costly'`);
  await ada.gql(
    `mutation { setBudget(input: { namespace: "ada", month: "300.00", onReached: CANCEL }) { budget { cost } } }`,
  );
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/-/usage');
  await page.getByText('The budget is used up').waitFor();
  await page.getByText('Change the budget').click();
  await page.getByLabel('Amount per month').fill('1000');
  await page.getByLabel('Events at').fill('50, 50');
  await page.getByRole('button', { name: 'Save budget' }).click();
  await page.getByText('must not have the same percentage twice').waitFor();
  await page.getByLabel('Events at').fill('50, 90');
  await page.getByRole('button', { name: 'Save budget' }).click();
  await page.getByText('36 % of $1000.00').waitFor();
  await page.getByText('Cost by label this month').click();
  await page.getByRole('rowheader', { name: 'team=nlp', exact: true }).waitFor();
  await expectUsable(page);
  await takePicture(page, 'budget-wide');
  await page.setViewportSize({ width: 390, height: 900 });
  await takePicture(page, 'budget-narrow');
  await page.setViewportSize({ width: 1280, height: 900 });

  await page.getByText('Change the budget').click();
  await page.getByRole('button', { name: 'Delete budget' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Delete budget' }).click();
  await page.getByText('No budget. Jobs are not limited by what they cost.').waitFor();
});

test('an admin switches shells in jobs off', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/-/settings');
  const section = page.getByRole('region', { name: 'Shells in jobs' });
  await section.getByLabel('Shells in jobs', { exact: true }).selectOption('None');
  await section.getByRole('button', { name: 'Change: Shells in jobs' }).click();
  await page.getByText('The setting was saved.').waitFor();
  await expectUsable(page);
  await section.scrollIntoViewIfNeeded();
  await takePicture(page, 'shell-access-wide');
  await page.setViewportSize({ width: 390, height: 900 });
  await section.scrollIntoViewIfNeeded();
  await takePicture(page, 'shell-access-narrow');
  await page.reload();
  await section.getByText('None').first().waitFor({ state: 'attached' });
  const { namespace } = await ada.gql('{ namespace(name: "ada") { shellAccess } }');
  expect(namespace.shellAccess).toBe('NONE');
  visitor.expectQuiet();
});

test('an admin sets retention after a look at what goes, and keeps a job', async () => {
  await finished('old', 'nlp');
  await app.pool.query(
    `update jobs set completed_at = completed_at - interval '31 days' where name = 'old'`,
  );
  await using visitor = await visit(browser, app, { as: ada, colorScheme: 'dark' });
  const { page } = visitor;
  await page.goto('/ada/-/settings');
  await page.getByText('Nothing is removed by age.').waitFor();
  await page.getByLabel('Delete logs', { exact: true }).fill('40');
  await page.getByLabel('Delete jobs and their logs').fill('30');
  await page.getByRole('button', { name: 'Save retention' }).click();
  await page.getByText('must not be more than jobDays (30)').waitFor();
  await page.getByLabel('Delete logs', { exact: true }).fill('');
  await page.getByRole('button', { name: 'Save retention' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByText('1 job with the log (3 B): old').waitFor();
  await expectUsable(page);
  await takePicture(page, 'retention-confirm');
  await dialog.getByLabel('Type ada to confirm').fill('ada');
  await dialog.getByRole('button', { name: 'Save and remove' }).click();
  await page.getByText('Removes jobs after 30 days.').waitFor();
  await takePicture(page, 'retention-wide');
  await page.setViewportSize({ width: 390, height: 900 });
  await takePicture(page, 'retention-narrow');
  await page.setViewportSize({ width: 1280, height: 900 });

  await page.goto('/ada/-/jobs/old');
  await page.getByRole('button', { name: 'Keep', exact: true }).click();
  await page.getByRole('button', { name: 'Stop keeping' }).waitFor();
  await eventually(async () =>
    expect((await app.pool.query(`select from job_labels where key = 'keep'`)).rowCount).toBe(1),
  );
});

async function takePicture(page: Page, name: string): Promise<void> {
  if (!pictures) return;
  await mkdir(pictures, { recursive: true });
  await page.screenshot({ path: join(pictures, `${name}.png`), fullPage: true });
}
