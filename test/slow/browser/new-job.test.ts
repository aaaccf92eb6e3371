import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { expectUsable, openBrowser, visit } from '../../support/browser.ts';
import { startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { cancel, job, lines, submit, until } from '../../support/submit.ts';

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

test('the form validates, shows the price, and creates the job', async () => {
  const ada = await app.user('ada');
  await ada.post('/auth/v1/repository/ada', { name: 'code' });
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/new/job');
  const price = page.locator('[data-price]');
  // The default size, or the size of the largest machine if that is smaller.
  const { jobOptions } = await ada.gql('{ jobOptions { largestMachine { cpus memoryGb } } }');
  const { cpus, memoryGb } = jobOptions.largestMachine;
  const chosen = async (label: string) => Number(await page.getByLabel(label).inputValue());
  expect(await chosen('vCPUs')).toBeLessThanOrEqual(Math.max(2, Math.min(8, cpus)));
  expect(await chosen('Memory in GB')).toBeLessThanOrEqual(Math.max(2, Math.min(32, memoryGb)));
  // 8 vCPUs and 32 GB, the defaults of the API.
  await page.getByLabel('vCPUs').selectOption('8');
  await page.getByLabel('Memory in GB').fill('32');
  await expect.poll(() => price.textContent()).toBe('$0.288 an hour');
  await page.getByLabel('GPU', { exact: true }).selectOption('T4');
  await page.getByText('No worker has the GPU T4 now. The job waits').waitFor();
  await expect.poll(() => price.textContent()).toBe('$0.638 an hour');
  await page.getByLabel('GPU', { exact: true }).selectOption('NONE');
  await page.getByRole('button', { name: 'Create job' }).click();
  await page.getByText('Enter a name').waitFor();
  await page.getByText('Enter a command').waitFor();
  await expectUsable(page);

  await page.getByLabel('Name', { exact: true }).fill('from form');
  await page.getByText('At most 100 letters').waitFor();
  await page.getByLabel('Name', { exact: true }).fill('formed');
  await page.getByLabel('Command').fill('echo $WHAT; sleep 300');
  await page.getByLabel('Memory in GB').fill('500');
  await page.getByText('From 2 to 128').waitFor();
  await page.getByLabel('Memory in GB').fill('4');
  await page.getByText('Output, environment, timeout and more').click();
  await page.getByLabel('Environment').fill('WHAT=seen');
  await page.getByLabel('Secrets', { exact: true }).fill('KEY=hush');
  const request = page.getByRole('region', { name: 'The request' });
  for (const client of ['GraphQL', 'curl', 'loam']) {
    await page.getByRole('button', { name: client, exact: true }).click();
    expect(await request.textContent()).not.toContain('hush');
  }
  expect(await request.textContent()).toContain("--secret KEY -- 'echo $WHAT; sleep 300'");
  await page.getByText('Export KEY in your shell first.').waitFor();
  await page.getByRole('button', { name: 'Create job' }).click();
  await page.waitForURL('**/ada/-/jobs/formed');
  await page.getByText('seen', { exact: true }).waitFor();
  expect(await job(ada, 'ada', 'formed')).toMatchObject({
    memoryGb: 4,
    repo: 'ada/code',
    gpu: 'NONE',
  });

  // The name is taken: the server's error is shown at the field.
  await page.goto('/new/job?command=true');
  await page.getByLabel('Name', { exact: true }).fill('formed');
  await page.getByRole('button', { name: 'Create job' }).click();
  await page
    .getByRole('alert')
    .filter({ hasText: /exists/ })
    .waitFor();
  await cancel(ada, 'ada', 'formed');
  visitor.expectQuiet();
});

test('a changed copy of a job keeps its test reports, and settings that the form does not show', async () => {
  const cleo = await app.user('cleo');
  await cleo.post('/auth/v1/repository/cleo', { name: 'code' });
  const common = { namespace: 'cleo', repo: 'cleo/code' };
  const needed = { ...common, name: 'build', command: 'echo VERSION=7 > "$JOB_OUTPUTS"; exit 1' };
  await submit(cleo, needed);
  await submit(cleo, {
    ...common,
    ...{ name: 'unit', command: 'true', testReports: ['reports/*.xml'], maxCost: '2.50' },
    ...{ needs: [{ job: 'build', when: 'FAILED' }], checks: [{ metric: 'loss', max: 1 }] },
    ...{ concurrency: { group: 'units' } },
  });
  await until(cleo, 'cleo', 'unit', 'FAILED');
  await using visitor = await visit(browser, app, { as: cleo });
  const { page } = visitor;
  await page.goto('/new/job?namespace=cleo&rerun=unit');
  await page
    .getByText('Also kept: needed jobs, concurrency group, checks of metrics, maximum cost.')
    .waitFor();
  await page.getByText('Output, environment, timeout and more').click();
  const reports = page.getByLabel('Test reports', { exact: true });
  expect(await reports.inputValue()).toBe('reports/*.xml');
  await expectUsable(page);
  await page
    .getByLabel('Command', { exact: true })
    .fill('echo "got $VERSION"; echo ::metric::loss=0');
  await reports.fill('../out.xml');
  await page.getByRole('button', { name: 'Create job' }).click();
  await page.getByRole('alert').filter({ hasText: 'must not contain' }).waitFor();
  await reports.fill('a.xml\n\n b/**.xml\n');
  await page.getByRole('button', { name: 'loam', exact: true }).click();
  const request = page.getByRole('region', { name: 'The request' });
  const line = (await request.textContent())?.replaceAll(/\s*\\\s+/g, ' ');
  expect(line).toContain("--test-reports a.xml --test-reports 'b/**.xml'");
  await page.getByRole('button', { name: 'Create job' }).click();
  await page.waitForURL('**/cleo/-/jobs/unit-2');
  await until(cleo, 'cleo', 'unit-2', 'SUCCEEDED');
  expect(await lines(cleo, 'cleo', 'unit-2')).toEqual(['got 7']);
  const { job: copy } = await cleo.gql(
    `{ job(namespace: "cleo", name: "unit-2") { testReports maxCost needs { name when }
      checks { metric max } concurrency { group onConflict } } }`,
  );
  expect(copy).toEqual({
    ...{ testReports: ['a.xml', 'b/**.xml'], checks: [{ metric: 'loss', max: 1 }] },
    // How the needed job ended no longer matters.
    needs: [{ name: 'build', when: 'FINISHED' }],
    concurrency: { group: 'units', onConflict: 'QUEUE' },
    maxCost: expect.stringMatching(/^2\.50?/),
  });
  visitor.expectQuiet();
});

test('jobs are filtered, and the filter is in the address', async () => {
  const bea = await app.user('bea');
  await bea.post('/auth/v1/repository/bea', { name: 'code' });
  await using visitor = await visit(browser, app, { as: bea });
  const { page } = visitor;
  await page.goto('/bea/-/jobs');
  await page.getByRole('heading', { name: 'There is no job yet' }).waitFor();
  await expectUsable(page);
  for (const name of ['one', 'two'])
    await bea.post('/auth/v1/seed/bea/jobs', {
      name,
      repo: 'bea/code',
      command: 'true',
      gpu: 'none',
    });
  await page.locator('[data-job=two] [data-status=SUCCEEDED]').waitFor();
  await page.getByLabel('Name begins with').fill('on');
  await page.getByText('1 job', { exact: true }).waitFor();
  await expect.poll(() => new URL(page.url()).search).toBe('?name=on');
  await page.reload();
  await page.getByText('1 job', { exact: true }).waitFor();
  await page.getByLabel('Status').selectOption('FAILED');
  await page.getByRole('heading', { name: 'No matching jobs' }).waitFor();
  await expectUsable(page);
  visitor.expectQuiet();
});
