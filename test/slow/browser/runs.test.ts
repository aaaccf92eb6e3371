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
  await page.getByText(/is invalid: \.loam\/jobs\.yml:15: /).waitFor();
  // The tip has an invalid file; the commit before it does not.
  await page.goto('/ada/model/runs/1');
  await page.getByRole('button', { name: /Cancel run|Rerun all jobs/ }).waitFor();
});

test.each([1280, 390])(
  'a run is started with values of its inputs, at %i pixels',
  async (width) => {
    const name = `tuned-${width}`;
    const { body } = await ada.post('/auth/v1/repository/ada', { name });
    const content = `jobs:
  train:
    on:
      manual:
        inputs:
          epochs: { type: integer, default: 10, description: How often all data is used }
          model: { type: choice, options: [small, large] }
          note: { default: "" }
    command: python train.py
  clean: { on: { manual: true }, command: ./clean }
`;
    await ada.gql(
      'mutation ($input: CreateCommitInput!) { createCommit(input: $input) { commit { sha } } }',
      {
        input: {
          id: body.id,
          branch: 'main',
          message: 'Add jobs',
          changes: [{ path: '.loam/jobs.yml', content }],
        },
      },
    );
    await using visitor = await visit(browser, app, { as: ada, width });
    const { page } = visitor;
    await page.goto(`/ada/${name}/runs`);
    await page.getByText('Run jobs').click();
    await page.getByLabel('epochs').waitFor();
    await page.getByLabel('Job', { exact: true }).selectOption('clean');
    await page.getByLabel('epochs').waitFor({ state: 'detached' });
    await page.getByLabel('Job', { exact: true }).selectOption('train');
    await page.getByLabel('epochs').fill('20');
    await page.getByLabel('model').selectOption('large');
    await page.getByLabel('note').fill('<b>more</b> data');
    await expectUsable(page);
    await page.getByRole('button', { name: 'Run', exact: true }).click();
    const values = page.getByRole('list', { name: 'Inputs' });
    await values.getByText('20', { exact: true }).waitFor();
    await values.getByText('<b>more</b> data').waitFor();
    await expectUsable(page);
    await setTheme(page, 'dark');
    await expectContrast(page);
    visitor.expectQuiet();
  },
);
