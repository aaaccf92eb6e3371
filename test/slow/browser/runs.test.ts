/** The pages of runs: the list with schedules, the graph of a run, and an invalid file. */
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import {
  expectContrast,
  expectUsable,
  openBrowser,
  setTheme,
  visit,
} from '../../support/browser.ts';
import { eventually } from '../../support/eventually.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';

let browser: Browser;
let app: TestApp;
let ada: Client;

const FILE = `jobs:
  lint:
    on: { push: { branches: [main] }, manual: true, schedule: [{ cron: "0 3 * * 1-5", timezone: Europe/Berlin }] }
    command: npm run lint
  test:
    on: { push: { branches: [main] } }
    command: npm test
  train:
    needs: [lint, test]
    matrix: { seed: [1, 2, 3] }
    command: python train.py
  report:
    needs: [{ job: train, when: finished }]
    command: ./report
`;

beforeEach((ctx) => needs(ctx, 'chromium'));
beforeAll(async () => {
  if (!has('chromium')) return;
  browser = await openBrowser();
  app = await startApp();
  ada = await app.user('ada');
  const { body } = await ada.post('/auth/v1/repository/ada', { name: 'model' });
  const commit = (content: string, message: string) =>
    ada.gql(
      'mutation ($input: CreateCommitInput!) { createCommit(input: $input) { commit { sha } } }',
      {
        input: {
          id: body.id,
          branch: 'main',
          message,
          changes: [{ path: '.loam/jobs.yml', content }],
        },
      },
    );
  await commit(FILE, 'Train with three seeds');
  await commit(`${FILE}  wrong:\n    comand: x\n`, 'Break the <b>file</b>');
  await eventually(async () => {
    const { repository } = await ada.gql(
      '{ repository(namespace: "ada", name: "model") { runs { totalCount } } }',
    );
    expect(repository.runs.totalCount).toBe(2);
  });
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
});

test.each([1280, 390])(
  'runs are shown with their graph and problems, at %i pixels',
  async (width) => {
    await using visitor = await visit(browser, app, { as: ada, width });
    const { page } = visitor;
    await page.goto('/ada/model/runs');
    await page.locator('[data-run="1"]').getByText('Train with three seeds').waitFor();
    await page.locator('[data-run="2"]').getByText('Break the <b>file</b>').waitFor();
    await expectUsable(page);
    await page.locator('[data-run="2"]').getByRole('link').first().click();
    await page.getByRole('link', { name: '.loam/jobs.yml:15:3', exact: true }).waitFor();
    await expectUsable(page);
    await page.goto('/ada/model/runs/1');
    await page.locator('[data-step="train"]').waitFor();
    expect(await page.locator('[data-step]').count()).toBe(4);
    await page.locator('[data-step="train"]').getByText('seed=2').waitFor();
    const row = page.locator('[data-array="train-1"]');
    await row.getByText('Array of 3 jobs').waitFor();
    await expectUsable(page);
    await setTheme(page, 'dark');
    await expectContrast(page);
    await row.getByRole('link', { name: 'train-1', exact: true }).click();
    await page.locator('[data-job="train-1-3"]').getByText('seed=3').waitFor();
    await page.getByRole('link', { name: '#1', exact: true }).waitFor();
    visitor.expectQuiet();
  },
);

test('a run is started, followed, and cancelled', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/model/runs');
  await page.getByText('Run jobs').click();
  await page.getByRole('button', { name: 'Run', exact: true }).click();
  await page.getByText(/^\.loam\/jobs\.yml:15: /).waitFor();
  // The tip has an invalid file; the commit before it does not.
  await page.goto('/ada/model/runs/1');
  await page.getByRole('button', { name: /Cancel run|Rerun all jobs/ }).waitFor();
});
