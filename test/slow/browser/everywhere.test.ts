/** Every page, wide and narrow, light and dark: no errors in the browser, and no findings of axe. */
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import {
  expectContrast,
  expectUsable,
  openBrowser,
  setTheme,
  visit,
} from '../../support/browser.ts';
import { startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { submit, until } from '../../support/submit.ts';

let browser: Browser;
let app: TestApp;
let webhook: string;
let sha: string;
let array: string;

beforeEach((ctx) => needs(ctx, 'chromium'));
beforeAll(async () => {
  if (!has('chromium')) return;
  browser = await openBrowser();
  app = await startApp({ config: { runner: 'process' } });
  const { admin } = app;
  const { body: code } = await admin.post('/auth/v1/repository/admin', { name: 'code' });
  const changes = [{ path: 'README.md', content: '# Code\n' }];
  await admin.gql(
    'mutation ($input: CreateCommitInput!) { createCommit(input: $input) { commit { sha } } }',
    { input: { id: code.id, branch: 'main', message: 'Say what it is', changes } },
  );
  await submit(admin, { namespace: 'admin', name: 'done', repo: 'admin/code', command: 'echo ok' });
  await until(admin, 'admin', 'done', 'SUCCEEDED');
  const { createJob } = await admin.gql(
    `mutation { createJob(input: { namespace: "admin", name: "sweep", command: "exit 3", repo: "admin/code", gpu: NONE,
      array: { size: 3 }, needs: [{ job: "done" }] }) { job { array { id } } } }`,
  );
  array = createJob.job.array.id;
  for (const index of [0, 1, 2]) await until(admin, 'admin', `sweep-${index}`, 'FAILED');
  const hook = { name: 'hook', url: 'https://example.com/x', event_types: ['job.completed'] };
  const made = await admin.post('/auth/v1/seed/webhooks', { ...hook, namespaces: ['admin'] });
  webhook = made.body.id;
  const { repository } = await admin.gql(
    '{ repository(namespace: "admin", name: "code") { commits(first: 1) { nodes { sha } } } }',
  );
  sha = repository.commits.nodes[0].sha;
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
});

const pages = () => [
  '/',
  '/admin',
  '/admin/-/jobs',
  '/admin/-/jobs/done',
  `/admin/-/arrays/${array}`,
  `/admin/-/compare?array=${array}`,
  '/admin/-/activity',
  '/admin/-/members',
  '/admin/-/usage',
  '/admin/-/settings',
  '/admin/-/webhooks',
  `/admin/-/webhooks/${webhook}`,
  '/admin/code',
  '/admin/code/file/README.md',
  '/admin/code/file/absent',
  '/admin/code/edit/README.md',
  '/admin/code/edit/absent',
  '/admin/code/new-file',
  '/admin/code/commits',
  `/admin/code/commit/${sha}`,
  '/admin/code/compare',
  '/admin/code/branches',
  '/admin/code/tags',
  '/admin/code/search',
  '/admin/code/jobs',
  '/admin/code/large-files',
  '/admin/code/caches',
  '/admin/code/settings',
  '/new/repository',
  '/new/job',
  '/new/webhook',
  '/new/organization',
  '/settings',
  '/settings/tokens',
  '/settings/api-keys',
  '/settings/ssh-keys',
  '/settings/sessions',
  '/settings/server',
  '/settings/server/users',
  '/settings/server/organizations',
  '/settings/server/servers',
  '/settings/server/machines',
  '/settings/server/queue',
  '/settings/server/audit',
];

test('every page is accessible and has no errors', async () => {
  await using visitor = await visit(browser, app, { as: app.admin });
  const { page } = visitor;
  for (const path of pages()) {
    await page.goto(path);
    await page.getByRole('heading', { level: 1 }).waitFor();
    await expect.poll(() => page.getByRole('status', { name: 'Loading' }).count()).toBe(0);
    expect(await page.getByRole('heading', { level: 1 }).count(), path).toBe(1);
    expect(await page.title(), path).toMatch(/^.+ · Loam$/);
    for (const width of [1280, 375]) {
      await page.setViewportSize({ width, height: 900 });
      await setTheme(page, 'light');
      await expectUsable(page);
      await setTheme(page, 'dark');
      await expectContrast(page);
    }
  }
  visitor.expectQuiet();
}, 600_000);

test('Ctrl-K opens the palette, and ? lists the keyboard shortcuts', async () => {
  await using visitor = await visit(browser, app, { as: app.admin });
  const { page } = visitor;
  await page.goto('/');
  await page.getByRole('heading', { level: 1 }).waitFor();
  await page.keyboard.press('?');
  await page.getByRole('heading', { name: 'Keyboard shortcuts' }).waitFor();
  await page.keyboard.press('Escape');
  await page.keyboard.press('Control+k');
  // Keys go to the focused element, as with a real keyboard.
  await page.getByRole('combobox').waitFor();
  await page.keyboard.type('admin/co');
  await page.getByRole('option', { name: /admin\/code/ }).waitFor();
  await expectUsable(page);
  await page.keyboard.press('Enter');
  await page.waitForURL('**/admin/code');
  await page.goBack();
  await page.getByRole('heading', { level: 1, name: 'Home' }).waitFor();
  visitor.expectQuiet();
});
