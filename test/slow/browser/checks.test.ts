/** Commit statuses on the pages of a repository, and badges in READMEs. */
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { expectUsable, openBrowser, visit } from '../../support/browser.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';

let browser: Browser;
let app: TestApp;
let ada: Client;
let sha: string;
let earlier: string;

const HOSTILE = `<img src=x onerror="window.hit=1">`;

beforeEach((ctx) => needs(ctx, 'chromium'));
beforeAll(async () => {
  if (!has('chromium')) return;
  browser = await openBrowser();
  app = await startApp();
  ada = await app.user('ada');
  const { body } = await ada.post('/auth/v1/repository/ada', { name: 'code' });
  const commit = async (message: string, content: string) => {
    const { createCommit } = await ada.gql(
      'mutation ($input: CreateCommitInput!) { createCommit(input: $input) { commit { sha } } }',
      {
        input: {
          id: body.id,
          branch: 'main',
          message,
          changes: [{ path: 'README.md', content }],
        },
      },
    );
    return createCommit.commit.sha;
  };
  earlier = await commit('Without checks', 'empty');
  sha = await commit(
    'With checks',
    `# Hello\n\n![own](${app.base}/ada/code/-/badge.svg) ![other](https://example.com/a/b/-/badge.svg)\n`,
  );
  const reports = [
    { context: 'unit', state: 'SUCCESS', targetUrl: 'https://ci.example.com/1' },
    { context: 'lint', state: 'PENDING' },
    { context: HOSTILE, state: 'ERROR', description: `${HOSTILE} \u202e` },
  ];
  for (const report of reports)
    await ada.gql(
      'mutation ($input: SetCommitStatusInput!) { setCommitStatus(input: $input) { status { state } } }',
      { input: { namespace: 'ada', name: 'code', sha, ...report } },
    );
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
});

test('lists show the combined state, and the commit shows each check', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/code/commits');
  await page.locator(`[data-commit="${sha}"]`).getByLabel('Checks: failed').waitFor();
  expect(await page.locator(`[data-commit="${earlier}"] [data-checks]`).count()).toBe(0);
  await expectUsable(page);
  await page.goto('/ada/code/branches');
  await page.getByLabel('Checks: failed').waitFor();
  await expectUsable(page);
  await page.goto('/ada/code');
  await page.locator('[data-last-commit]').getByLabel('Checks: failed').click();
  await page.waitForURL(`**/ada/code/commit/${sha}#checks`);

  const checks = page.getByRole('region', { name: 'Checks: failed' });
  await checks.waitFor();
  const states = await checks
    .locator('[data-check]')
    .evaluateAll((rows) => rows.map((row) => row.getAttribute('data-check')));
  expect(states).toEqual(['ERROR', 'PENDING', 'SUCCESS']);
  const link = checks.getByRole('link', { name: 'unit', exact: true });
  expect(await link.getAttribute('href')).toBe('https://ci.example.com/1');
  expect(await link.getAttribute('rel')).toBe('nofollow noreferrer noopener');
  expect(await checks.getByText(HOSTILE).count()).toBe(2);
  expect(await page.locator('img[src=x], [onerror]').count()).toBe(0);
  expect(await page.evaluate(() => 'hit' in window)).toBe(false);
  await expectUsable(page);
  await page.goto(`/ada/code/commit/${earlier}`);
  await page.getByRole('heading', { name: 'Without checks' }).waitFor();
  expect(await page.locator('#checks').count()).toBe(0);
  visitor.expectQuiet();
});

test('a README shows badges of this server, also of a private repository', async () => {
  await using visitor = await visit(browser, app, { as: ada, width: 400 });
  const { page } = visitor;
  await page.goto('/ada/code');
  const badge = page.getByRole('img', { name: 'own', exact: true });
  await badge.waitFor();
  await expect
    .poll(() => badge.evaluate((image) => (image as HTMLImageElement).naturalWidth))
    .toBeGreaterThan(50);
  await page.getByRole('link', { name: 'other', exact: true }).waitFor();
  await expectUsable(page);
  await page.goto('/ada/code/-/badge.svg');
  expect(await page.locator('title').textContent()).toBe('checks: failing');
  visitor.expectQuiet();
});
