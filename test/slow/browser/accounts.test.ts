/** The dashboard forms for accounts, organizations and the default branch, which operators and admins use. */
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { expectUsable, openBrowser, visit } from '../../support/browser.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';

let browser: Browser;
let app: TestApp;
let ada: Client;

beforeEach((ctx) => needs(ctx, 'chromium'));
beforeAll(async () => {
  if (!has('chromium')) return;
  browser = await openBrowser();
  app = await startApp();
  ada = await app.user('ada');
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
});

test('an operator disables, enables and deletes a user', async () => {
  const carol = await app.user('carol');
  const status = async () => (await carol.get('/auth/v1/whoami')).status;
  await using visitor = await visit(browser, app, { as: app.admin });
  const { page } = visitor;
  await page.goto('/settings/server/users');
  await page.getByRole('button', { name: 'Disable carol' }).click();
  await page.getByRole('button', { name: 'Disable user' }).click();
  await page.getByText('disabled', { exact: true }).waitFor();
  expect(await status()).toBe(401);
  await expectUsable(page);
  await page.getByRole('button', { name: 'Enable carol' }).click();
  await page.getByRole('button', { name: 'Enable user' }).click();
  await page.getByRole('button', { name: 'Disable carol' }).waitFor();
  expect(await status()).toBe(200);
  // Operators cannot disable themselves.
  expect(await page.getByRole('button', { name: 'Disable admin' }).count()).toBe(0);

  await page.getByRole('button', { name: 'Delete carol' }).click();
  await page.getByLabel('Type carol to confirm').fill('carol');
  await page.getByRole('button', { name: 'Delete user' }).click();
  await page.getByText('carol@example.com').waitFor({ state: 'detached' });
  expect(await status()).toBe(401);
  visitor.expectQuiet();
});

test('a member leaves an organization, and its admin deletes it', async () => {
  await app.admin.gql(
    `mutation { createOrganization(input: { name: "acme" }) { namespace { id } }
      ada: setMember(input: { namespace: "acme", username: "ada", role: READ }) { member { id } } }`,
  );
  await using member = await visit(browser, app, { as: ada });
  await member.page.goto('/acme/-/members');
  await member.page.getByRole('button', { name: 'Leave', exact: true }).click();
  await member.page.getByRole('button', { name: 'Remove', exact: true }).click();
  await member.page.getByText('ada was removed.').waitFor();

  await using visitor = await visit(browser, app, { as: app.admin });
  const { page } = visitor;
  await page.goto('/acme/-/settings');
  await page.getByRole('button', { name: 'Delete organization' }).click();
  await expectUsable(page);
  await page.getByLabel('Type acme to confirm').fill('acme');
  await page.getByRole('button', { name: 'Delete permanently' }).click();
  await page.getByText('acme was deleted.').waitFor();
  expect((await app.admin.get('/auth/v1/repository/acme')).status).toBe(404);
  visitor.expectQuiet();
});

test('an admin changes the default branch', async () => {
  const { body } = await ada.post('/auth/v1/repository/ada', { name: 'code' });
  await ada.gql(
    'mutation ($id: ID!) { createBranch(input: { id: $id, name: "trunk" }) { repository { id } } }',
    { id: body.id },
  );
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/code/settings');
  await page.getByLabel('Default branch').fill('none');
  await page.getByRole('button', { name: 'Change default branch' }).click();
  await page.getByText('the repository has no branch none').waitFor();
  await page.getByLabel('Default branch').fill('trunk');
  await page.getByRole('button', { name: 'Change default branch' }).click();
  await page.getByText('The default branch is trunk.').waitFor();
  await page.getByLabel('Protect trunk').waitFor();
  await expectUsable(page);
  const { body: now } = await ada.get(`/auth/v1/repository/ada/${body.id}`);
  expect(now.default_branch).toBe('trunk');
  visitor.expectQuiet();
});
