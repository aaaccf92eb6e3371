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

/** Drags over the middle of a chart. */
async function zoom(page: Page, name: string): Promise<void> {
  const canvas = page.locator(`[data-metric="${name}"] .u-over`);
  await canvas.scrollIntoViewIfNeeded();
  const { x, y, width, height } = (await canvas.boundingBox()) as NonNullable<
    Awaited<ReturnType<typeof canvas.boundingBox>>
  >;
  await page.mouse.move(x + 0.3 * width, y + height / 2);
  await page.mouse.down();
  await page.mouse.move(x + 0.6 * width, y + height / 2, { steps: 5 });
  await page.mouse.up();
}

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
  const showAll = page.getByRole('button', { name: 'Show all points' });
  await zoom(page, 'loss');
  await showAll.waitFor();
  runner.release();
  await chart(page, 'loss', 50).locator('canvas').waitFor();
  // New points come while the chart shows the same part.
  expect(await showAll.count()).toBe(1);
  await chart(page, 'train/accuracy', 50).locator('canvas').waitFor();
  await page.getByText('last 0.02 at step 49, min 0.02, max 1', { exact: true }).waitFor();
  await page.locator('main [data-status=SUCCEEDED]').first().waitFor();
  await expectUsable(page);
  await showAll.click();
  await expect.poll(() => showAll.count()).toBe(0);

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

test('jobs of an array are compared', async () => {
  const points = [1, 0.5, 0.25].map((value) => `::metric::val/loss=${value} acc=${1 - value}`);
  const sweep = { name: 'sweep', array: { size: 6 } };
  await submit(ada, {
    namespace: 'ada',
    repo: 'ada/code',
    command: `${echo(points)}; exit 0`,
    ...sweep,
  });
  for (let at = 0; at < 6; at++) await until(ada, 'ada', `sweep-${at}`, 'SUCCEEDED');
  await app.pool.query(`
    update jobs set matrix_values = json_build_array(
        json_build_object('key', 'lr', 'value', (10 ^ -(array_index % 3))::text),
        json_build_object('key', 'note', 'value', case array_index when 0 then '<b>x</b>' else 'seed ' || array_index end))
      where name like 'sweep-%'`);
  await app.pool.query(`
    update job_metrics m set last = case j.array_index when 5 then 'NaN'::float8 when 4 then 'Infinity' else j.array_index end
      from jobs j where j.id = m.job_id and j.name like 'sweep-%' and m.name = 'acc'`);
  const { jobArray } = await ada.gql('{ jobArray(namespace: "ada", name: "sweep") { id } }');
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto(`/ada/-/arrays/${jobArray.id}`);
  await page.getByRole('link', { name: 'Compare', exact: true }).click();
  const best = page.locator('[data-best]');
  const names = () =>
    page
      .locator('tr[data-job]')
      .evaluateAll((rows) => rows.map((row) => row.getAttribute('data-job')));
  // By the first metric, infinity first and NaN last.
  await best.getByText('Infinity').waitFor();
  expect((await names()).map((name) => name?.at(-1)).join('')).toBe('432105');
  await page.getByRole('button', { name: 'val/loss', exact: true }).focus();
  await page.keyboard.press('Enter');
  await best.getByText('0.25').waitFor();
  await page.getByRole('searchbox', { name: 'Filter jobs' }).fill('lr=0.1 acc<4');
  await page.getByText('1 of 6 jobs match the filter').waitFor();
  expect(await names()).toEqual(['sweep-1']);
  expect(page.url()).toContain('find=lr%3D0.1+acc%3C4');
  await page.getByRole('searchbox', { name: 'Filter jobs' }).fill('');
  await page.locator('[data-curves="6"] canvas').waitFor();
  // NaN and infinity have no place in the plot.
  await page.locator('svg[data-dots="4"]').waitFor();
  await page.getByLabel('Value of metrics').selectOption('Best values');
  await page.getByLabel('Colour by').selectOption('Colour by note');
  await page.getByText('<b>x</b>').first().waitFor();
  for (const name of ['sweep-0', 'sweep-4']) await page.getByLabel(`Select ada/${name}`).check();
  await page.locator('[data-curves="2"] canvas').waitFor();
  await page.getByRole('rowheader', { name: 'Value note', exact: true }).waitFor();
  await expectUsable(page);
  await page.reload();
  await page.getByRole('heading', { name: 'Differences' }).waitFor();
  await expect.poll(() => page.getByLabel('Colour by').inputValue()).toBe('value:note');
  visitor.expectQuiet();
});

test('comparisons of other selections, also narrow and dark', async () => {
  await using visitor = await visit(browser, app, { as: ada, width: 390, colorScheme: 'dark' });
  const { page } = visitor;
  await page.goto('/ada/-/compare?jobs=sweep-1,sweep-2,gone,bea/secret');
  await page.getByText('Deleted, or not visible to you: ada/gone, bea/secret').waitFor();
  await page.locator('svg[data-dots="2"]').waitFor();
  await expectUsable(page);
  await page.goto('/ada/-/compare?name=sweep-');
  await page.getByText('6 jobs', { exact: true }).waitFor();
  await page.goto('/ada/-/compare');
  await page.getByRole('heading', { name: 'No jobs selected' }).waitFor();
  await expectUsable(page);
  visitor.expectQuiet();
});
