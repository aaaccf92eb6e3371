/** Keyboard-only use of the dashboard: keys go to the focused element, and the focus is never lost. */
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { expectUsable, openBrowser, visit } from '../../support/browser.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { submit } from '../../support/submit.ts';

let browser: Browser;
let app: TestApp;
let ada: Client;

beforeEach((ctx) => needs(ctx, 'chromium'));
beforeAll(async () => {
  if (!has('chromium')) return;
  browser = await openBrowser();
  app = await startApp({ config: { runner: 'process' } });
  ada = await app.user('ada');
  await ada.post('/auth/v1/repository/ada', { name: 'code', gitignore_template: 'Python' });
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
});

/** The label or text of the focused element; `main` is the page, `body` means that no element has the focus. */
const focused = (page: Page) =>
  page.evaluate(() => {
    const element = document.activeElement as HTMLElement & { labels?: NodeListOf<HTMLElement> };
    if (element === document.body || element.tagName === 'MAIN')
      return element.tagName.toLowerCase();
    const name = element.getAttribute('aria-label') || element.labels?.[0]?.innerText;
    return (name || element.title || element.innerText).trim();
  });

const expectFocus = (page: Page, name: string) => expect.poll(() => focused(page)).toBe(name);

/** Presses Tab until the element has the focus. */
async function tabTo(page: Page, name: string): Promise<void> {
  const seen: string[] = [];
  for (let presses = 0; presses < 80; presses++) {
    if ((await focused(page)) === name) return;
    await page.keyboard.press('Tab');
    seen.push(await focused(page));
  }
  throw new Error(`Tab does not lead to ${name}: ${seen.join(', ')}`);
}

const palette = (page: Page) => page.getByRole('dialog', { name: 'Go to' }).getByRole('combobox');

/** Opens a page with the palette, without reloading the document. */
async function goTo(page: Page, name: string): Promise<void> {
  await page.keyboard.press('Control+k');
  await palette(page).waitFor();
  await page.keyboard.type(name);
  await page.getByRole('option', { selected: true }).filter({ hasText: name }).waitFor();
  await page.keyboard.press('Enter');
  await palette(page).waitFor({ state: 'detached' });
}

test('a failed submit focuses the first invalid field, and details stay open while the user types', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/new/job');
  await tabTo(page, 'Create job');
  await page.keyboard.press('Enter');
  await expectFocus(page, 'Name');
  expect(await page.getByLabel('Name', { exact: true }).getAttribute('aria-required')).toBe('true');
  await page.keyboard.type('typed');
  await page.keyboard.press('Enter');
  await expectFocus(page, 'Command');
  await page.keyboard.type('true');
  await tabTo(page, 'Output, environment, timeout and more');
  await page.keyboard.press('Enter');
  await tabTo(page, 'Timeout of an attempt in minutes');
  await page.keyboard.press('Control+a');
  await page.keyboard.type('0');
  // Closed by the user, it reopens when it has an invalid field.
  await page.locator('details summary', { hasText: 'Output, environment' }).focus();
  await page.keyboard.press('Enter');
  await tabTo(page, 'Create job');
  await page.keyboard.press('Enter');
  await expectFocus(page, 'Timeout of an attempt in minutes');
  await page.keyboard.press('Control+a');
  await page.keyboard.type('15');
  await expectFocus(page, 'Timeout of an attempt in minutes');
  await tabTo(page, 'Secrets');
  await page.keyboard.type('KEY=hush');
  expect(await page.getByLabel('Secrets', { exact: true }).inputValue()).toBe('KEY=hush');
  expect(await page.getByLabel('Timeout of an attempt in minutes').inputValue()).toBe('15');
  visitor.expectQuiet();
});

test('a button keeps the focus while busy and when done, and ignores a second press', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/code/settings');
  const { promise: gate, resolve: open } = Promise.withResolvers<void>();
  let updates = 0;
  await page.route('**/graphql', async (route) => {
    if (route.request().postData()?.includes('UpdateRepository')) {
      updates++;
      await gate;
    }
    await route.continue();
  });
  await page.getByLabel('Description').focus();
  await page.keyboard.type('Code of ada');
  await tabTo(page, 'Save description');
  await page.keyboard.press('Enter');
  await page.locator('button[aria-busy=true]').waitFor();
  await expectFocus(page, 'Save description');
  await page.keyboard.press('Enter');
  open();
  await page.getByText('The description was saved.').waitFor();
  await expect.poll(() => page.locator('button[aria-busy=true]').count()).toBe(0);
  await expectFocus(page, 'Save description');
  // With nothing to save, the button is disabled but can still be focused.
  await expect
    .poll(() => page.getByRole('button', { name: 'Save description' }).isDisabled())
    .toBe(true);
  await page.keyboard.press('Enter');
  expect(updates).toBe(1);
  visitor.expectQuiet();
});

test('an error is shown at its field, without the API name of the field', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/code/settings');
  await page.getByLabel('Default branch').focus();
  await page.keyboard.press('Control+a');
  await page.keyboard.type('nope');
  await page.keyboard.press('Enter');
  const alert = page.getByRole('alert');
  await alert.waitFor();
  expect(await alert.innerText()).toBe('The repository has no branch nope');
  await expectFocus(page, 'Default branch');
});

test('creating and deleting a token never loses the focus', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/settings/tokens');
  await page.getByRole('button', { name: 'New token' }).first().focus();
  await page.keyboard.press('Enter');
  await expectFocus(page, 'Name');
  await page.keyboard.press('Escape');
  await expectFocus(page, 'New token');
  await page.keyboard.press('Enter');
  await expectFocus(page, 'Name');
  await page.keyboard.type('by-keys');
  await tabTo(page, 'Everything that I may do');
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('Enter');
  const alert = page.getByRole('alert');
  expect(await alert.innerText()).toBe('Choose at least one.');
  await page.keyboard.press('ArrowUp');
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'The new token' }).waitFor();
  expect(await page.evaluate(() => document.activeElement?.closest('dialog') !== null)).toBe(true);
  await expectUsable(page);
  await page.keyboard.press('Escape');
  await expectFocus(page, 'New token');

  await tabTo(page, 'Delete by-keys');
  await page.keyboard.press('Enter');
  const dialog = page.getByRole('dialog', { name: 'Delete the token by-keys?' });
  await dialog.waitFor();
  expect(await dialog.getAttribute('aria-describedby')).not.toBeNull();
  // Navigates while a dialog is open.
  await goTo(page, 'Settings: API keys');
  await page.waitForURL('**/settings/api-keys');
  await expectFocus(page, 'main');

  await goTo(page, 'Settings: Access tokens');
  await page.getByRole('button', { name: 'Delete by-keys' }).waitFor();
  await tabTo(page, 'Delete by-keys');
  await page.keyboard.press('Enter');
  await tabTo(page, 'Delete token');
  await page.keyboard.press('Enter');
  await page.getByText('by-keys', { exact: true }).waitFor({ state: 'detached' });
  await expectFocus(page, 'main');
  visitor.expectQuiet();
});

test('after cancelling and deleting a job, the timeline ends and the focus moves to the page', async () => {
  // The process ends seconds after the cancellation.
  const command = "trap 'sleep 4; exit 0' TERM; echo begun; while :; do sleep 0.1; done";
  await submit(ada, { namespace: 'ada', name: 'held', repo: 'ada/code', command });
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/-/jobs/held');
  await page.getByRole('log').getByText('begun').waitFor();
  await tabTo(page, 'Cancel');
  await page.keyboard.press('Enter');
  await tabTo(page, 'Cancel job');
  await page.keyboard.press('Enter');
  await page.getByText(/^Cancelled\. The processes of the job get SIGTERM/).waitFor();
  await page.locator('main [data-status=CANCELLED]').first().waitFor();
  await expectFocus(page, 'main');
  await expect
    .poll(() => page.locator('[data-attempt="1"]').innerText())
    .toMatch(/^Attempt 1 ended/);

  await tabTo(page, 'Delete');
  await page.keyboard.press('Enter');
  await expectFocus(page, 'Type held to confirm');
  await page.keyboard.type('held');
  await page.keyboard.press('Enter');
  await page.waitForURL('**/ada/-/jobs');
  await page.getByText('held was deleted').waitFor();
  await expectFocus(page, 'main');
  visitor.expectQuiet();
});

test('the palette finds pages by name, and says when there are no results', async () => {
  await using visitor = await visit(browser, app, { as: app.admin });
  const { page } = visitor;
  await page.goto('/ada/code');
  await page.getByRole('heading', { level: 1 }).waitFor();
  const status = page.getByRole('dialog', { name: 'Go to' }).getByRole('status');
  for (const [text, name] of [
    ['users', 'This server: Users'],
    ['members', 'ada: Members'],
    ['access tokens', 'Settings: Access tokens'],
    ['compare', 'ada/code: Compare'],
  ] as const) {
    await page.keyboard.press('Control+k');
    await palette(page).waitFor();
    const answer = page.waitForResponse((response) =>
      Boolean(response.request().postData()?.includes(`"text":"${text}"`)),
    );
    await page.keyboard.type(text);
    await answer;
    await page.getByRole('option', { name: new RegExp(name) }).waitFor();
    expect(await status.innerText()).toBe('');
    await page.keyboard.press('Escape');
    await palette(page).waitFor({ state: 'detached' });
  }
  await page.keyboard.press('Control+k');
  await palette(page).waitFor();
  await page.keyboard.type('no such thing');
  await expect.poll(() => status.innerText()).toBe('No results.');
  visitor.expectQuiet();
});

test('a comparison keeps the focus, and a search announces its results', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/code/compare');
  await tabTo(page, 'To');
  await page.keyboard.type('main');
  await page.keyboard.press('Enter');
  await page.getByText('is the same as').waitFor();
  await expectFocus(page, 'To');

  await goTo(page, 'ada/code: Search in files');
  await expectFocus(page, 'Text or name of a file');
  await page.keyboard.type('gitignore');
  await page.keyboard.press('Enter');
  await page.getByRole('status').filter({ hasText: '1 file by name' }).waitFor();
  visitor.expectQuiet();
});

test('arrow keys choose a role, and a button saves it', async () => {
  await app.organization('keys', { ada: 'READ' }, 'free');
  await using visitor = await visit(browser, app, { as: app.admin });
  const { page } = visitor;
  let saved = 0;
  page.on('request', (request) => {
    if (request.postData()?.includes('mutation SetMember')) saved++;
  });
  await page.goto('/keys/-/members');
  await page.getByLabel('Role of ada').waitFor();
  await tabTo(page, 'Role of ada');
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('ArrowDown');
  expect(await page.getByRole('combobox', { name: 'Role of ada' }).inputValue()).toBe('ADMIN');
  await tabTo(page, 'Change: Role of ada');
  expect(saved).toBe(0);
  await page.keyboard.press('Enter');
  await page.getByText('ada has the role admin.').waitFor();
  await expectFocus(page, 'Role of ada');
  expect(saved).toBe(1);
  visitor.expectQuiet();
});

test('arrow keys, Home and End move in a menu, and Tab closes it', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada');
  await tabTo(page, 'ada: menu');
  await page.keyboard.press('Enter');
  await expectFocus(page, 'ada');
  await page.keyboard.press('End');
  await expectFocus(page, 'Sign out');
  await page.keyboard.press('ArrowDown');
  await expectFocus(page, 'ada');
  await page.keyboard.press('End');
  await page.keyboard.press('Home');
  await expectFocus(page, 'ada');
  expect(
    await page.getByRole('menuitemradio', { name: 'System theme' }).getAttribute('aria-checked'),
  ).toBe('true');
  await page.keyboard.press('Tab');
  await expect.poll(() => page.getByRole('menu').count()).toBe(0);
  expect(await page.evaluate(() => document.activeElement?.closest('[role=menu]'))).toBeNull();
  visitor.expectQuiet();
});
