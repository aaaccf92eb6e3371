/** The boxes with lines for a terminal: a user runs what the pages show, and the choice of a client stays. */
import { join } from 'node:path';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { expectUsable, openBrowser, type Visitor, visit } from '../../support/browser.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { LoamUser } from '../../support/loam-command.ts';
import { has, needs } from '../../support/needs.ts';
import { until } from '../../support/submit.ts';

let browser: Browser;
let app: TestApp;
let ada: Client;
let user: LoamUser;

beforeEach((ctx) => needs(ctx, 'chromium', 'curl'));
beforeAll(async () => {
  if (!has('chromium')) return;
  browser = await openBrowser();
  app = await startApp({ config: { runner: 'process' } });
  ada = await app.user('ada');
  user = await LoamUser.open(ada);
});
afterAll(async () => {
  await browser?.close();
  await user?.[Symbol.asyncDispose]();
  await app?.[Symbol.asyncDispose]();
});

const isPressed = (page: Page, client: string) =>
  page.getByRole('button', { name: client, exact: true }).first().getAttribute('aria-pressed');

/** Chooses a client in the first box of the page. @returns the lines that the box shows then */
async function linesOf(page: Page, client: string, label = 'Text to copy'): Promise<string> {
  await page.getByRole('button', { name: client, exact: true }).first().click();
  return page.getByRole('region', { name: label }).first().innerText();
}

/** Runs lines in the user's shell, where `~/.local/bin` is on the PATH. Only curl reads LOAM_TOKEN. */
const runLines = (lines: string, { before = '' } = {}) =>
  user.exec('bash', [
    '-ec',
    `export PATH='${join(user.home, '.local/bin')}':$PATH; LOAM_TOKEN=${ada.token}\n${before}\n${lines}`,
  ]);

test('a user installs the command with the lines of the home page', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/');
  const [install = '', login, whoami = ''] = (await linesOf(page, 'loam')).split('\n');
  expect(login).toBe(`loam login ${app.base}`);
  expect(await runLines(install)).toContain('Installed');
  expect(await runLines(whoami)).toContain('username\tada\n');
  expect(JSON.parse(await runLines(await linesOf(page, 'curl'))).username).toBe('ada');
  await expectUsable(page);
  visitor.expectQuiet();
});

test('the choice of a client stays, in all boxes that have it, and is copied', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page, context } = visitor;
  await context.grantPermissions(['clipboard-read', 'clipboard-write']);
  await page.goto('/new/job');
  const line = await linesOf(page, 'curl', 'The request');
  await page.getByRole('button', { name: 'Copy', exact: true }).click();
  await page.getByTitle('Copied').waitFor();
  expect(await page.evaluate(() => navigator.clipboard.readText())).toBe(line);
  await page.reload();
  await expect.poll(() => isPressed(page, 'curl')).toBe('true');
  // Not every box has GraphQL: the others keep the client chosen before.
  await linesOf(page, 'GraphQL', 'The request');
  const other = await context.newPage();
  await other.goto('/');
  await expect.poll(() => isPressed(other, 'curl')).toBe('true');
  await linesOf(other, 'loam');
  await expect.poll(() => isPressed(page, 'loam')).toBe('true');
  visitor.expectQuiet();
});

/** A user of their own with an empty namespace, and a page of theirs. */
async function withNewcomer(
  name: string,
  act: (visitor: Visitor, client: Client) => Promise<void>,
) {
  const client = await app.user(name);
  await using visitor = await visit(browser, app, { as: client });
  await user.loam(['login', app.base, '--token', '-'], { stdin: client.token });
  await act(visitor, client);
  visitor.expectQuiet();
}

test('the lines of the empty pages create what is missing', async () => {
  for (const client of ['loam', 'curl'])
    await withNewcomer(`with-${client}`, async ({ page }, newcomer) => {
      const before = `LOAM_TOKEN=${newcomer.token}`;
      const namespace = `with-${client}`;
      const run = async (path: string, heading: string) => {
        await page.goto(path);
        await page.getByRole('heading', { name: heading }).waitFor();
        const lines = await linesOf(page, client);
        await expectUsable(page);
        return runLines(lines.replace('loam run', 'loam run --detach'), { before });
      };
      await run(`/${namespace}`, 'There is no repository yet');
      await run(`/${namespace}/-/jobs`, 'There is no job yet');
      // There is no Makefile.
      await until(newcomer, namespace, 'train', 'FAILED');
      await run('/settings/api-keys', 'No API keys yet');
      await run(`/${namespace}/-/webhooks`, 'No webhooks yet');
      const { viewer } = await newcomer.gql(
        `{ viewer {
          repositories(first: 9) { nodes { fullName branchCount } }
          apiKeys(first: 9) { nodes { name } } webhooks(first: 9) { nodes { name eventTypes namespaces } }
        } }`,
      );
      expect(viewer).toMatchObject({
        repositories: { nodes: [{ fullName: `${namespace}/my-repository`, branchCount: 1 }] },
        webhooks: {
          nodes: [
            { name: 'chat', eventTypes: ['JOB_COMPLETED', 'JOB_FAILED'], namespaces: [namespace] },
          ],
        },
      });
      expect(viewer.apiKeys.nodes).toHaveLength(1);
    });
});

test('an empty repository gets its first commit, and is cloned', async () => {
  await withNewcomer('pusher', async ({ page }, newcomer) => {
    for (const [name, client, branch] of [
      ['plain', 'loam', 'main'],
      ['-', 'loam', 'main'],
      ['odd', 'loam', "it's;$(exit)"],
      ['other', 'git', "it's;$(exit)"],
    ] as const) {
      await newcomer.post('/auth/v1/repository/pusher', {
        name,
        auto_init: false,
        default_branch: branch,
      });
      await page.goto(`/pusher/${name === '-' ? '~-' : name}`);
      await page.getByRole('heading', { name: 'Nothing was pushed yet' }).waitFor();
      const lines = await linesOf(page, client);
      await runLines(lines, { before: `mkdir in-${client}-${name}; cd in-${client}-${name}` });
      await page.getByRole('heading', { name: 'Clone', exact: true }).waitFor();
      await page.getByText('Hello').first().waitFor();
    }
    const clone = await linesOf(page, 'loam', 'Clone command');
    expect(clone).toBe('loam repo clone pusher/other');
    await runLines(`${clone}\ncat other/README.md`);
  });
});

test('a new token and a new API key work in the lines of their dialogs', async () => {
  await withNewcomer('keys', async ({ page }) => {
    for (const [path, button, create] of [
      ['/settings/tokens', 'New token', 'Create token'],
      ['/settings/api-keys', 'New API key', 'Create API key'],
    ] as const) {
      await page.goto(path);
      await page.getByRole('button', { name: button }).first().click();
      const dialog = page.getByRole('dialog');
      await dialog.getByLabel('Name', { exact: true }).fill('try');
      await dialog.getByRole('button', { name: create }).click();
      await dialog.getByText('Try it in a terminal').waitFor();
      for (const client of ['loam', 'curl']) {
        await dialog.getByRole('button', { name: client, exact: true }).click();
        const lines = await dialog.getByRole('region', { name: 'Text to copy' }).innerText();
        expect(await runLines(lines), lines).toContain('keys');
      }
      await expectUsable(page);
    }
  });
});
