/** Secrets and variables on the settings pages of repositories and namespaces. */
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { expectUsable, openBrowser, setTheme, visit } from '../../support/browser.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';

let browser: Browser;
let app: TestApp;
let ada: Client;
let wendy: Client;

const HOSTILE = `<img src=x onerror="window.hit=1">`;

beforeEach((ctx) => needs(ctx, 'chromium'));
beforeAll(async () => {
  if (!has('chromium')) return;
  browser = await openBrowser();
  app = await startApp();
  ada = await app.user('ada');
  wendy = await app.user('wendy');
  await ada.post('/auth/v1/repository/ada', { name: 'code' });
  await ada.setMembers('ada', { wendy: 'WRITE' });
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
});

const stored = async (name: string) => {
  const { rows } = await app.pool.query(
    'select id, sealed, refs from stored_values where name = $1',
    [name],
  );
  const { id, sealed, refs } = rows[0];
  return { value: app.app.services.storedSecretSealer.open(id, sealed), refs };
};

test('an admin adds, changes and deletes a secret of a repository', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  const picture = async (name: string) => {
    const folder = process.env.LOAM_TEST_PICTURES;
    if (folder) await page.screenshot({ path: `${folder}/${name}.png`, fullPage: true });
  };
  await page.goto('/ada/code/settings');
  const section = page.getByRole('region', { name: 'Secrets', exact: true });
  await section.getByText('No secrets').waitFor();
  await section.getByRole('button', { name: 'New secret' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByLabel('Name').fill('JOB_TOKEN');
  await dialog.getByLabel('Value').fill('hush-hush');
  await expectUsable(page);
  await dialog.getByRole('button', { name: 'Save secret' }).click();
  await dialog.getByText('JOB_TOKEN is reserved', { exact: false }).waitFor();
  await picture('dialog');
  await dialog.getByLabel('Name').fill('TOKEN');
  await dialog.getByLabel('Available to').selectOption('Jobs of certain branches and tags');
  await dialog.getByLabel('Branches and tags').fill('main a..b');
  await dialog.getByRole('button', { name: 'Save secret' }).click();
  await dialog.getByRole('alert').waitFor();
  await dialog.getByLabel('Branches and tags').fill('main, tags/v*');
  await dialog.getByRole('button', { name: 'Save secret' }).click();
  const row = page.locator('[data-secret=TOKEN]');
  await row.getByText('Jobs of main, tags/v*').waitFor();
  expect(await stored('TOKEN')).toEqual({ value: 'hush-hush', refs: ['main', 'tags/v*'] });
  await page.getByText('The secret TOKEN was saved.').waitFor();

  await row.getByRole('button', { name: 'Edit TOKEN' }).click();
  expect(await dialog.getByLabel('Value').inputValue()).toBe('');
  await dialog.getByLabel('Available to').selectOption('Jobs of protected branches');
  await dialog.getByRole('button', { name: 'Save secret' }).click();
  await row.getByText('Jobs of protected branches').waitFor();
  expect(await stored('TOKEN')).toEqual({ value: 'hush-hush', refs: [] });
  await row.getByRole('button', { name: 'Edit TOKEN' }).click();
  await dialog.getByLabel('Value').fill('line 1\nline 2');
  await dialog.getByLabel('Available to').selectOption('All jobs');
  await dialog.getByRole('button', { name: 'Save secret' }).click();
  await row.getByText('All jobs').waitFor();
  expect(await stored('TOKEN')).toEqual({ value: 'line 1\nline 2', refs: ['**'] });
  expect(await page.content()).not.toContain('line 2');

  await row.getByRole('button', { name: 'Delete TOKEN' }).click();
  await dialog.getByRole('button', { name: 'Delete secret' }).click();
  await section.getByText('No secrets').waitFor();
  visitor.expectQuiet();
});

test('a namespace has secrets and variables, which writers see and cannot change', async () => {
  const set = (kind: string, input: object) =>
    ada.gql(
      `mutation ($input: Set${kind}Input!) { set${kind}(input: $input) { ${kind.toLowerCase()} { name } } }`,
      { input: { namespace: 'ada', ...input } },
    );
  await set('Secret', { name: 'NPM_TOKEN', value: 'x' });
  await set('Secret', {
    name: `LONG_${'NAME_'.repeat(19)}`.slice(0, 100),
    value: 'x',
    refs: ['release/**', `feature-${'x'.repeat(150)}`, 'tags/v*'],
  });
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/-/settings');
  const section = page.getByRole('region', { name: 'Variables', exact: true });
  await section.getByRole('button', { name: 'New variable' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByLabel('Name').fill('GREETING');
  await dialog.getByLabel('Value').fill(HOSTILE);
  await dialog.getByRole('button', { name: 'Save variable' }).click();
  await section.getByText(HOSTILE).waitFor();
  expect(await page.evaluate(() => 'hit' in window)).toBe(false);
  for (const width of [1280, 400])
    for (const theme of ['light', 'dark'] as const) {
      await page.setViewportSize({ width, height: 900 });
      await setTheme(page, theme);
      await expectUsable(page);
      const folder = process.env.LOAM_TEST_PICTURES;
      if (folder)
        await page.screenshot({ path: `${folder}/secrets-${width}-${theme}.png`, fullPage: true });
    }
  visitor.expectQuiet();

  await using reading = await visit(browser, app, { as: wendy });
  await reading.page.goto('/ada/-/settings');
  await reading.page.locator('[data-secret=NPM_TOKEN]').waitFor();
  await reading.page.locator('[data-variable=GREETING]').waitFor();
  expect(
    await reading.page
      .getByRole('button', { name: /^(New (secret|variable)|Edit|Delete)/ })
      .count(),
  ).toBe(0);
  await expectUsable(reading.page);
  reading.expectQuiet();
});

test('the form of a new job and its page name stored secrets and variables', async () => {
  await ada.gql(
    `mutation { setSecret(input: { namespace: "ada", name: "ANY", value: "x", refs: ["**"] }) { secret { name } }
      setVariable(input: { namespace: "ada", name: "REGION", value: "eu" }) { variable { name } } }`,
  );
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await ada.gql(
    `mutation { createJob(input: { namespace: "ada", name: "first", command: "true", repo: "ada/code", gpu: NONE,
      secretNames: ["ANY"], variableNames: ["REGION"] }) { job { id } } }`,
  );
  await page.goto('/ada/-/jobs/first');
  const facts = page.getByRole('region', { name: 'Settings', exact: true });
  await facts.getByText('ANY', { exact: true }).waitFor();
  await facts.getByText('REGION', { exact: true }).waitFor();
  // A changed rerun keeps the names.
  await page.goto('/new/job?namespace=ada&rerun=first');
  const command = page.getByLabel('Command', { exact: true });
  await command.fill('echo changed');
  await page.getByRole('button', { name: 'Create job' }).click();
  await page.waitForURL('**/ada/-/jobs/first-2');
  await facts.getByText('ANY', { exact: true }).waitFor();
  await facts.getByText('REGION', { exact: true }).waitFor();
  visitor.expectQuiet();
});
