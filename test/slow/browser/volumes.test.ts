/** Volumes in the settings of a namespace, and on the page of a job. */
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { openBrowser, visit } from '../../support/browser.ts';
import { startApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { submit } from '../../support/submit.ts';
import { testVolumes } from '../../support/volumes.ts';

let browser: Browser;
beforeEach((ctx) => needs(ctx, 'chromium'));
beforeAll(async () => {
  if (has('chromium')) browser = await openBrowser();
});
afterAll(() => browser?.close());

test('the settings list volumes, and the page of a job shows its own', async () => {
  await using volumes = await testVolumes();
  await using app = await startApp({ config: { volumes: volumes.declared } });
  const ada = await app.user('ada');
  await submit(ada, {
    ...{ namespace: 'ada', name: 'user', image: 'x', command: 'true' },
    volumes: [{ name: 'data', to: '/data' }],
  });
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/-/settings');
  const section = page.getByRole('region', { name: 'Volumes' });
  await section.getByText('scratch').waitFor();
  expect(await section.innerText()).toMatch(/data\s+Read only · Not measured yet/);
  expect(await section.innerText()).not.toContain(volumes.root);
  await page.goto('/ada/-/jobs/user');
  await page.getByText('data at /data, read only').waitFor();
  await volumes.declare([]);
  await page.goto('/ada/-/settings');
  await section.getByText('No volumes.').waitFor();
});
