/** The caches of a repository on their page, and caches, checkpoints and inputs of a job on its page. */
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import {
  expectContrast,
  expectUsable,
  openBrowser,
  setTheme,
  visit,
} from '../../support/browser.ts';
import { createRepository } from '../../support/caches.ts';
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
  app = await startApp({ config: { runner: 'process' } });
  ada = await app.user('ada');
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
});

const KEY = `npm-${'0123456789'.repeat(6)}`;

test('the page of caches lists them, filters and deletes them', async () => {
  const { repo } = await createRepository(ada, 'ada', { 'a.txt': 'a' });
  await using visitor = await visit(browser, app, { as: ada, width: 390 });
  const { page } = visitor;
  await page.goto(`/${repo}/caches`);
  await page.getByRole('heading', { name: 'No caches', exact: true }).waitFor();
  await expectUsable(page);
  expect(
    await page.getByRole('link', { name: 'Jobs', exact: true }).getAttribute('aria-current'),
  ).toBe('true');

  await submit(ada, {
    ...{ namespace: 'ada', name: 'saves', repo },
    command: 'mkdir -p a b && echo 1 | tee a/x > b/x',
    cache: [
      { path: 'a', key: KEY },
      { path: 'b', key: 'objects' },
    ],
  });
  await until(ada, 'ada', 'saves', 'SUCCEEDED');
  await page.reload();
  await page.getByText('2 caches').waitFor();
  await page.getByText('restored 0 times').first().waitFor();
  await expectUsable(page);
  await setTheme(page, 'dark');
  await expectContrast(page);

  await page.getByLabel('Key begins with').fill('nothing');
  await page.getByRole('heading', { name: 'No caches whose key begins with nothing' }).waitFor();
  await expectUsable(page);
  await page.getByLabel('Key begins with').fill('npm-');
  await page.getByText('1 cache', { exact: true }).waitFor();

  await page.getByRole('button', { name: `Delete ${KEY}` }).click();
  await page.getByRole('dialog').getByText(`Delete the cache ${KEY}?`).waitFor();
  await expectUsable(page);
  await page.getByRole('button', { name: 'Delete cache' }).click();
  await page.getByRole('heading', { name: 'No caches whose key begins with npm-' }).waitFor();
  await page.getByLabel('Key begins with').fill('');
  await page.getByText('1 cache', { exact: true }).waitFor();
  visitor.expectQuiet();
});

test('the page of a job shows its caches, its checkpoint and files of repositories', async () => {
  const { repo } = await createRepository(ada, 'ada', { 'a.txt': 'a' });
  await submit(ada, {
    ...{ namespace: 'ada', name: 'facts', repo },
    command: 'mkdir kept && echo 1 > kept/x && echo 1 > steps/1',
    cache: [
      { path: 'kept', key: KEY },
      { path: 'none', key: 'never' },
    ],
    inputs: [{ repo, path: 'a.txt', to: 'in/' }],
    checkpointPath: 'steps',
  });
  await until(ada, 'ada', 'facts', 'SUCCEEDED');
  await using visitor = await visit(browser, app, { as: ada, width: 390 });
  const { page } = visitor;
  await page.goto('/ada/-/jobs/facts');
  const settings = page.getByRole('region', { name: 'Settings' });
  await settings.getByText(`${KEY}: not found, saved`).waitFor();
  await settings.getByText('never: not saved: nothing exists at its path').waitFor();
  await settings.getByText('Removed at the end of the job').waitFor();
  await settings.getByText('a.txt').waitFor();
  await page
    .getByRole('log')
    .getByText('The cache never was not saved: nothing exists at its path.')
    .waitFor();
  await expectUsable(page);
  await setTheme(page, 'dark');
  await expectContrast(page);
  visitor.expectQuiet();
});
