/** The log toolbar, links to lines, notifications about finished jobs, and optimistic updates. */
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { expectUsable, openBrowser, visit } from '../../support/browser.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { cancel, submit, until } from '../../support/submit.ts';

let browser: Browser;
let app: TestApp;
let ada: Client;

beforeEach((ctx) => needs(ctx, 'chromium'));
beforeAll(async () => {
  if (!has('chromium')) return;
  browser = await openBrowser();
  app = await startApp({ config: { runner: 'process' } });
  ada = await app.user('ada');
  await ada.post('/auth/v1/repository/ada', { name: 'code' });
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
});

const run = (name: string, command: string) =>
  submit(ada, { namespace: 'ada', name, repo: 'ada/code', command });

test('a log shows times, wraps lines, fills the screen, can be downloaded, and links its lines', async () => {
  const wide = 'printf "wide %s\\n" "$(head -c 900 /dev/zero | tr "\\0" w)"';
  await run('lines', `i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo "line $i"; done; ${wide}`);
  await until(ada, 'ada', 'lines', 'SUCCEEDED');
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/-/jobs/lines');
  const log = page.getByRole('log');
  await log.getByText('line 40', { exact: true }).waitFor();

  const time = log.locator('[data-seq="40"] time');
  expect(await time.count()).toBe(0);
  await page.getByRole('button', { name: /^Times: / }).click();
  await expect.poll(() => time.textContent()).toMatch(/^\d\d:\d\d:\d\d\.\d{3}$/);
  await page.getByRole('button', { name: /^Times: / }).click();
  await expect.poll(() => time.textContent()).toMatch(/^\s*\d+\.\d{3}s$/);

  const isWide = () => log.evaluate((box) => box.scrollWidth > box.clientWidth);
  const wraps = page.getByRole('button', { name: 'Wrap long lines' });
  const before = await isWide();
  const pressed = await wraps.getAttribute('aria-pressed');
  expect(before).toBe(pressed === 'false');
  await wraps.click();
  await expect.poll(isWide).toBe(!before);
  // After horizontal scrolling, the line number is still visible.
  await log.evaluate((box) => box.scrollTo({ left: box.scrollWidth }));
  const box = await log.boundingBox();
  const number = await log.getByRole('link', { name: 'Line 43', exact: true }).boundingBox();
  expect(number?.x).toBeCloseTo(box?.x ?? 0, -1);
  // The display options are kept for the next log.
  await page.reload();
  await expect.poll(() => time.textContent()).toMatch(/s$/);
  expect(await wraps.getAttribute('aria-pressed')).not.toBe(pressed);

  await page.getByRole('button', { name: 'Full screen' }).click();
  await expect.poll(() => page.evaluate(() => document.fullscreenElement?.tagName)).toBe('SECTION');
  await page.getByRole('button', { name: 'Full screen' }).click();
  await expect.poll(() => page.evaluate(() => document.fullscreenElement)).toBe(null);

  await log.getByRole('link', { name: 'Line 30', exact: true }).click();
  await log.getByRole('link', { name: 'Line 33', exact: true }).click({ modifiers: ['Shift'] });
  await expect.poll(() => new URL(page.url()).hash).toBe('#L30-L33');
  const other = await visitor.context.newPage();
  await other.goto(page.url());
  await other.locator('[data-seq="33"].bg-warn-soft').waitFor();
  expect(await other.locator('[data-seq].bg-warn-soft').count()).toBe(4);
  await expectUsable(other);

  const arrives = page.waitForEvent('download');
  await page.getByRole('button', { name: 'Download the log' }).click();
  const download = await arrives;
  expect(download.url()).toContain('/log.txt?');
  visitor.expectQuiet();
});

test('a line of a followed log can be clicked, however fast new lines arrive', async () => {
  await run('fast', 'i=0; while [ ! -e end ]; do i=$((i+1)); echo "line $i"; sleep 0.02; done');
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/-/jobs/fast');
  const log = page.getByRole('log');
  const lines = async () => Number(await log.getAttribute('data-log-lines'));
  await expect.poll(lines).toBeGreaterThan(60);
  const box = (await log.boundingBox()) ?? { x: 0, y: 0, height: 0 };
  await page.mouse.move(box.x + 20, box.y + box.height / 2);
  await page.mouse.down();
  const before = await lines();
  await expect.poll(lines).toBeGreaterThan(before + 5);
  await page.mouse.up();
  await expect.poll(() => new URL(page.url()).hash).toMatch(/^#L\d+$/);
  await ada.gql('mutation { cancelJob(input: { namespace: "ada", name: "fast" }) { job { id } } }');
  visitor.expectQuiet();
});

test('the user is notified when a watched job ends, and the tab icon shows its status', async () => {
  await run('told', 'until [ -e end ]; do sleep 0.1; done');
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  // Headless Chromium shows no notifications, so a fake records them.
  await page.addInitScript(() => {
    const told: string[] = [];
    class Noted {
      static permission = 'default';
      static async requestPermission() {
        Noted.permission = 'granted';
        return 'granted';
      }
      constructor(title: string) {
        told.push(title);
      }
    }
    Object.assign(window, { told, Notification: Noted });
  });
  await page.goto('/ada/-/jobs/told');
  await page.locator('main [data-status=RUNNING]').first().waitFor();
  await expect.poll(() => page.title()).toBe('told · running · Loam');
  const icon = await page.locator('#icon').getAttribute('href');
  await page.getByRole('button', { name: 'Notify me when it finishes' }).click();
  await page.getByRole('button', { name: 'You will be notified' }).waitFor();
  await page
    .getByText(/vCPUs:|No measurements yet/)
    .first()
    .waitFor();
  await cancel(ada, 'ada', 'told');
  await expect
    .poll(() => page.evaluate(() => (window as unknown as { told: string[] }).told))
    .toEqual(['told: cancelled']);
  await expect.poll(() => page.title()).toBe('told · cancelled · Loam');
  expect(await page.locator('#icon').getAttribute('href')).not.toBe(icon);
  visitor.expectQuiet();
});

test('a checkbox updates optimistically, reverts on an error, and shows the request id', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/code/settings');
  const box = page.getByRole('checkbox', { name: 'Secret scanning' });
  await box.waitFor();
  const before = await box.isChecked();
  const answer = Promise.withResolvers<void>();
  let refuse = false;
  await page.route('**/graphql', async (route) => {
    if (!route.request().postData()?.includes('updateRepository')) return route.continue();
    if (!refuse) {
      await answer.promise;
      return route.continue();
    }
    const error = { message: 'Not now', extensions: { code: 'CONFLICT' } };
    return route.fulfill({
      status: 200,
      headers: { 'content-type': 'application/json', 'x-request-id': 'of-this-request' },
      body: JSON.stringify({ errors: [error] }),
    });
  });
  await box.click();
  expect(await box.isChecked()).toBe(!before);
  answer.resolve();
  await expect
    .poll(
      async () =>
        (await ada.gql('{ repository(namespace: "ada", name: "code") { secretScanning } }'))
          .repository.secretScanning,
    )
    .toBe(!before);
  expect(await box.isChecked()).toBe(!before);
  refuse = true;
  await box.click();
  await page.getByText('Not now').waitFor();
  await page.getByText('of-this-request').waitFor();
  await expect.poll(() => box.isChecked()).toBe(!before);
});
