/** From signing in to the artifacts of a job, by clicking alone, and by pasting the lines that the pages show. */

import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { readConfig } from '../../../src/base/config/config.ts';
import { expectUsable, openBrowser, visit } from '../../support/browser.ts';
import { eventually } from '../../support/eventually.ts';
import { startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { CLIENT, startIssuer, type TestIssuer } from '../../support/oidc-issuer.ts';

let browser: Browser;
let app: TestApp;
let issuer: TestIssuer;

beforeEach((ctx) => needs(ctx, 'chromium'));
beforeAll(async () => {
  if (!has('chromium')) return;
  browser = await openBrowser();
  issuer = await startIssuer();
  const { issuers } = readConfig({
    LOAM_OIDC_ISSUER: issuer.address,
    LOAM_OIDC_CLIENT_ID: CLIENT.client_id,
    LOAM_OIDC_CLIENT_SECRET: CLIENT.client_secret,
    LOAM_OIDC_DOMAINS: 'acme.com',
  });
  app = await startApp({ config: { runner: 'process', issuers } });
  await issuer.serve(`${app.base}/login/oidc/callback`);
  issuer.people = {
    ada: { email: 'ada@acme.com', email_verified: true, preferred_username: 'ada' },
  };
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
  await issuer?.[Symbol.asyncDispose]();
});

test('the tour, by clicking alone', async () => {
  await using visitor = await visit(browser, app);
  const { page } = visitor;
  await page.goto('/');
  await page.getByRole('link', { name: 'Sign in' }).click();
  await page.getByLabel('Personal access token').fill(app.admin.token as string);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('heading', { name: 'Home', exact: true }).waitFor();

  await choose(page, 'New…', 'New repository');
  await page.getByLabel('Name', { exact: true }).fill('clicked');
  await page.getByLabel('Add an initial commit').uncheck();
  await page.getByRole('button', { name: 'Create repository' }).click();
  await page.getByRole('heading', { name: 'Nothing was pushed yet' }).waitFor();
  await page.getByRole('button', { name: 'git', exact: true }).click();
  const shown = await page.getByRole('region', { name: 'Text to copy' }).innerText();
  expect(shown).toContain('git push');
  await paste(shown, app.admin.token as string);
  // The page has heard of the push.
  await page.getByRole('heading', { name: 'Hello', exact: true }).waitFor();

  await page.getByRole('link', { name: 'Jobs', exact: true }).click();
  await page.getByRole('link', { name: 'New job' }).first().click();
  await page.getByLabel('Name', { exact: true }).fill('first');
  await page
    .getByLabel('Command')
    .fill('for i in 1 2 3; do echo "step $i"; sleep 1; done; mkdir out; date > out/when.txt');
  await page.getByLabel('Memory in GB').fill('4');
  await page.getByText('Output, environment, timeout and more').click();
  await page.getByLabel('Output path').fill('out');
  await page.getByRole('button', { name: 'Create job' }).click();
  for (const step of ['step 1', 'step 2', 'step 3'])
    await page.getByRole('log').getByText(step, { exact: true }).waitFor();
  await page.locator('main [data-status=SUCCEEDED]').first().waitFor();
  const [download] = await Promise.all([
    page.waitForEvent('download'),
    page.getByRole('link', { name: /when\.txt/ }).click(),
  ]);
  expect(download.suggestedFilename()).toBe('when.txt');

  await choose(page, 'New…', 'New webhook');
  await page.getByLabel('Name', { exact: true }).fill('mine');
  await page.getByLabel('URL').fill('https://example.com/hook');
  await page.getByRole('button', { name: 'Create webhook' }).click();
  await page.getByRole('heading', { name: 'mine', level: 1 }).waitFor();

  await choose(page, 'admin: menu', 'Settings');
  await page.getByRole('link', { name: 'Tokens' }).click();
  await page.getByRole('button', { name: 'New token' }).first().click();
  await page.getByLabel('Name', { exact: true }).fill('laptop');
  await page.getByRole('button', { name: 'Create token' }).click();
  const authorization = `Bearer ${await page.locator('[data-secret]').innerText()}`;
  const answer = await fetch(`${app.base}/auth/v1/whoami`, { headers: { authorization } });
  expect(answer.status).toBe(200);
  await page.getByRole('button', { name: 'I have copied it' }).click();

  await choose(page, 'admin: menu', 'Sign out');
  await page.getByLabel('Personal access token').waitFor();
  visitor.expectQuiet();
});

test('who is sent away to sign in comes back to the page, by a real issuer', async () => {
  issuer.person = 'ada';
  await using visitor = await visit(browser, app);
  const { page } = visitor;
  await page.goto('/new/job?name=x');
  await page.getByRole('main').getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('link', { name: /^Sign in with / }).click();
  await page.getByRole('heading', { name: 'New job' }).waitFor();
  await expect.poll(() => page.url()).toBe(`${app.base}/new/job?name=x`);
  await page.getByRole('button', { name: 'ada: menu' }).waitFor();
  visitor.expectQuiet();
});

test('an identity is connected and taken away, and a program is signed in by its code', async () => {
  issuer.people.second = { email: 'second@acme.com', email_verified: true };
  issuer.person = 'second';
  const bob = await app.user('bob');
  await using visitor = await visit(browser, app, { as: bob });
  const { page } = visitor;
  await page.goto('/settings/sessions');
  await page.getByRole('link', { name: /^Connect / }).click();
  await page.getByRole('button', { name: /^Disconnect / }).waitFor();
  await expect.poll(() => page.url()).toBe(`${app.base}/settings/sessions`);
  await page.getByText('second · since').waitFor();
  await expectUsable(page);
  await page.getByRole('button', { name: /^Disconnect / }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Disconnect', exact: true }).click();
  await page.getByRole('button', { name: /^Disconnect / }).waitFor({ state: 'detached' });

  const client_id = '<img src=x onerror=alert(1)>';
  const device_name = 'שלום<b>x'.repeat(3);
  const requester = `${client_id} on ${device_name}`;
  const begun = await fetch(`${app.base}/login/device/code`, {
    method: 'POST',
    body: new URLSearchParams({ client_id, device_name }),
  });
  const { user_code, device_code } = await begun.json();
  await page.goto('/login/device');
  await page.getByLabel('Code shown by the program').fill('AAAA-AAAA');
  await page.getByRole('button', { name: 'Continue', exact: true }).click();
  await page.getByRole('alert').waitFor();
  await page.getByLabel('Code shown by the program').fill(user_code);
  await page.getByRole('button', { name: 'Continue', exact: true }).click();
  await page.getByText(requester).first().waitFor();
  await expectUsable(page);
  await page.getByRole('button', { name: 'Approve', exact: true }).click();
  await page.getByRole('status').waitFor();
  const grant_type = 'urn:ietf:params:oauth:grant-type:device_code';
  const answer = await fetch(`${app.base}/login/device/token`, {
    method: 'POST',
    body: new URLSearchParams({ grant_type, device_code, client_id }),
  });
  expect(answer.status).toBe(200);
  await page.goto('/settings/tokens');
  await page.getByText(requester).first().waitFor();
});

test('no other page frames these, and a session that was ended shows nothing more', async () => {
  const name = `eve${Date.now()}`;
  await using visitor = await visit(browser, app, { as: await app.user(name) });
  const { page, context } = visitor;
  const answer = await page.goto(`/${name}`);
  const policy = (await answer?.headerValue('content-security-policy')) ?? '';
  expect(policy).toContain("frame-ancestors 'none'");
  expect(policy).toContain("script-src 'self'");
  expect(policy).not.toContain('unsafe');
  expect(await answer?.headerValue('cache-control')).toBe('no-store');

  await page.getByRole('heading', { name, level: 1 }).waitFor();
  // A script of the page cannot read the cookie that signs it in.
  expect(await page.evaluate(() => document.cookie)).toBe('');
  const other = await context.newPage();
  await other.goto('/settings/sessions');
  await other.getByRole('button', { name: 'Everywhere, including here' }).click();
  await other.getByRole('button', { name: 'Sign out', exact: true }).last().click();
  await other.waitForURL('**/login**');
  // The page may notice the end of the session at any moment, and then the link is gone.
  page
    .getByRole('link', { name: 'Jobs', exact: true })
    .click()
    .catch(() => {});
  // `waitForURL` fails if the redirect supersedes the navigation of the link.
  await eventually(() =>
    expect(new URL(page.url()).pathname + new URL(page.url()).search).toMatch(/^\/login\?to=/),
  );
});

async function choose(page: Page, menu: string, item: string): Promise<void> {
  await page.getByRole('button', { name: menu }).click();
  await page.getByRole('menuitem', { name: item }).click();
}

/** In an empty folder, by somebody whose git knows the token. */
async function paste(lines: string, token: string): Promise<void> {
  const home = await mkdtemp(join(tmpdir(), 'loam-paste-'));
  const env = {
    PATH: process.env.PATH,
    HOME: home,
    TOKEN: token,
    GIT_CONFIG_NOSYSTEM: '1',
    GIT_TERMINAL_PROMPT: '0',
    GIT_AUTHOR_NAME: 'Ada',
    GIT_AUTHOR_EMAIL: 'ada@example.com',
    GIT_COMMITTER_NAME: 'Ada',
    GIT_COMMITTER_EMAIL: 'ada@example.com',
    GIT_CONFIG_COUNT: '1',
    GIT_CONFIG_KEY_0: 'credential.helper',
    GIT_CONFIG_VALUE_0: '!echo username=x; echo "password=$TOKEN"; :',
  };
  try {
    await promisify(execFile)('bash', ['-euc', lines], { cwd: home, env });
  } finally {
    await rm(home, { recursive: true, force: true });
  }
}
