/** Forms for repositories, members, webhooks and operators. The API confirms the result of each form. */
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { expectUsable, openBrowser, type Visitor, visit } from '../../support/browser.ts';
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

const button = (page: Page, name: string) => page.getByRole('button', { name, exact: true });
/** The button of the confirmation dialog, which may have the name of the button that opened it. */
const confirmed = (page: Page, name: string) =>
  page.getByRole('dialog').getByRole('button', { name, exact: true });

/** Creates a repository with one commit, and returns a visitor who owns it. */
async function owner(name: string): Promise<Visitor & { id: string }> {
  const { body } = await ada.post('/auth/v1/repository/ada', { name });
  const input = { branch: 'main', message: 'Begin', changes: [{ path: 'a.txt', content: 'a' }] };
  await ada.gql(
    'mutation ($input: CreateCommitInput!) { createCommit(input: $input) { commit { sha } } }',
    { input: { id: body.id, ...input } },
  );
  return Object.assign(await visit(browser, app, { as: ada }), { id: body.id });
}

test('branches and tags are created and deleted', async () => {
  await using visitor = await owner('refs');
  const { page } = visitor;
  await page.goto('/ada/refs/branches');
  await page.getByText('New branch', { exact: true }).click();
  await page.getByLabel('Name', { exact: true }).fill('no..name');
  await page.getByText('must be a name that git accepts for a branch').waitFor();
  await page.getByLabel('Name', { exact: true }).fill('feature/one');
  await button(page, 'Create branch').click();
  await page.getByRole('link', { name: 'feature/one', exact: true }).waitFor();
  // The count in the tab includes the new branch.
  await page.getByRole('link', { name: 'Branches 2' }).waitFor();
  await button(page, 'Delete feature/one').click();
  expect(await button(page, 'Delete branch').isDisabled()).toBe(true);
  await page.getByLabel('Type feature/one to confirm').fill('feature/one');
  await button(page, 'Delete branch').click();
  await page.getByRole('link', { name: 'Branches 1' }).waitFor();

  await page.goto('/ada/refs/tags');
  await page.getByText('New tag', { exact: true }).click();
  await page.getByLabel('Name', { exact: true }).fill('v1');
  await page.getByLabel('Starts at').fill('nothing');
  await button(page, 'Create tag').click();
  await page.getByRole('alert').waitFor();
  await page.getByLabel('Starts at').fill('main');
  await page.getByLabel('Message').fill('<b>The first</b>');
  await button(page, 'Create tag').click();
  await page.getByText('<b>The first</b>').waitFor();
  await expectUsable(page);
  await button(page, 'Delete v1').click();
  await page.getByLabel('Type v1 to confirm').fill('v1');
  await button(page, 'Delete tag').click();
  await page.getByRole('heading', { name: 'No tags yet' }).waitFor();
  visitor.expectQuiet();
});

test('a repository is renamed, published, transferred, given a branch rule, and deleted', async () => {
  await app.admin.gql(
    `mutation { createOrganization(input: {name: "lab", plan: TEAM}) { namespace { id } }
      setMember(input: {namespace: "lab", username: "ada", role: ADMIN}) { member { id } } }`,
  );
  await using visitor = await owner('before');
  const { page } = visitor;
  await page.goto('/ada/before/settings');
  await page.getByLabel('Name', { exact: true }).fill('after');
  await button(page, 'Rename').click();
  await page.waitForURL('**/ada/after/settings');
  await page.getByRole('heading', { name: 'ada/after', level: 1 }).waitFor();

  await page.getByLabel('Visibility', { exact: true }).selectOption('PUBLIC');
  await button(page, 'Change visibility').click();
  await confirmed(page, 'Change visibility').click();
  await page.getByRole('dialog').waitFor({ state: 'detached' });
  const open = '{ repository(namespace: "ada", name: "after") { visibility } }';
  expect((await app.anonymous.gql(open)).repository).toEqual({ visibility: 'PUBLIC' });

  await page.getByLabel('New owner').fill('lab');
  await button(page, 'Transfer').click();
  await page.getByLabel('Type ada/after to confirm').fill('ada/after');
  await button(page, 'Transfer repository').click();
  await page.getByRole('heading', { name: 'lab/after', level: 1 }).waitFor();
  await page.getByRole('link', { name: 'Settings', exact: true }).click();

  await page.getByText('Add or change a rule').click();
  await page.getByLabel('Branches', { exact: true }).fill('release/**');
  await page.getByLabel('Allowed to push').selectOption('ADMIN');
  await button(page, 'Save rule').click();
  await page.getByText('Administrators can push.').waitFor();
  await button(page, 'Delete the rule for release/**').click();
  await page
    .getByText('No branch rules. Everyone with write access can push to every branch.')
    .waitFor();
  await button(page, 'Undo').click();
  await page.getByText('Administrators can push.').waitFor();

  await button(page, 'Delete repository').click();
  await page.keyboard.type('lab/after');
  await confirmed(page, 'Delete repository').click();
  await page.waitForURL('**/lab');
  await page.getByText('lab/after was deleted.').waitFor();
  expect((await ada.get('/auth/v1/repository/lab/after')).status).toBe(404);
  visitor.expectQuiet();
});

test('an operator creates an organization and a user, and sets roles and plans', async () => {
  await using visitor = await visit(browser, app, { as: app.admin });
  const { page } = visitor;
  await page.goto('/new/organization');
  await page.getByLabel('Name', { exact: true }).fill('-acme');
  await button(page, 'Create organization').click();
  await page.getByRole('alert').waitFor();
  expect(await page.getByLabel('Name', { exact: true }).getAttribute('aria-invalid')).toBe('true');
  await page.getByLabel('Name', { exact: true }).fill('acme');
  await button(page, 'Create organization').click();
  await page.waitForURL('**/acme/-/members');
  await page.getByLabel('User name').fill('nobody-here');
  await button(page, 'Add member').click();
  await page.getByRole('alert').waitFor();
  await page.getByLabel('User name').fill('ada');
  await button(page, 'Add member').click();
  await page.getByLabel('Role of ada').selectOption('ADMIN');
  await button(page, 'Change: Role of ada').click();
  await page.getByText('ada has the role admin.').waitFor();
  const { viewer } = await ada.gql(
    '{ viewer { organizations(first: 5) { nodes { name viewerRole } } } }',
  );
  expect(viewer.organizations.nodes).toContainEqual({ name: 'acme', viewerRole: 'ADMIN' });
  await button(page, 'Remove ada').click();
  await button(page, 'Remove').click();
  await page.getByText('ada was removed.').waitFor();

  await page.goto('/settings/server/organizations');
  await page.getByLabel('Plan of acme').selectOption('TEAM');
  await button(page, 'Change: Plan of acme').click();
  await page.getByText('The plan of acme was changed.').waitFor();
  await page.reload();
  await expect.poll(() => page.getByLabel('Plan of acme').inputValue()).toBe('TEAM');

  await page.goto('/settings/server/users');
  await button(page, 'New user').click();
  await page.getByLabel('User name').fill('grace');
  await page.getByLabel('Email', { exact: true }).fill('grace@example.com');
  await button(page, 'Create user').click();
  const link = await page.locator('[data-secret]').innerText();
  await using guest = await visit(browser, app);
  await guest.page.goto(link);
  await guest.page.getByRole('button').first().click();
  await guest.page.getByRole('button', { name: 'grace: menu' }).waitFor();
  visitor.expectQuiet();
});

test('a webhook gets a new secret, which is shown once', async () => {
  const made = await ada.post('/auth/v1/seed/webhooks', {
    name: 'hook',
    url: 'https://example.com/x',
    event_types: ['job.completed'],
    namespaces: ['ada'],
  });
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto(`/ada/-/webhooks/${made.body.id}`);
  await page.getByRole('button', { name: /Generate (new )?secret/ }).click();
  await confirmed(page, 'Generate secret').click();
  const secret = await page.locator('[data-secret]').innerText();
  expect(secret).toMatch(/^whsec_/);
  await page.reload();
  await page.getByText('Deliveries are signed.').waitFor();
  expect(await page.content()).not.toContain(secret);
  visitor.expectQuiet();
});

test('a long list has a next page, and the back button returns to the previous page', async () => {
  await using visitor = await owner('many');
  const { page, id } = visitor;
  const names = Array.from({ length: 55 }, (_, number) => `b${String(number).padStart(2, '0')}`);
  for (const name of names)
    await ada.gql(
      'mutation ($input: CreateBranchInput!) { createBranch(input: $input) { repository { id } } }',
      { input: { id, name, from: 'main' } },
    );
  await page.goto('/ada/many/branches');
  await page.getByRole('link', { name: 'b00', exact: true }).waitFor();
  expect(await page.getByRole('link', { name: 'b54', exact: true }).count()).toBe(0);
  await page.getByRole('link', { name: 'Next page' }).click();
  await page.getByRole('link', { name: 'b54', exact: true }).waitFor();
  await page.reload();
  await page.getByRole('link', { name: 'b54', exact: true }).waitFor();
  await page.goBack();
  await page.getByRole('link', { name: 'b00', exact: true }).waitFor();
  visitor.expectQuiet();
});
