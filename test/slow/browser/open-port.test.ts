/** *Open a port* on the page of a running job, and what a program on a host of its own can do in the browser. */
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { serveApp } from '../../support/app-visitor.ts';
import { expectUsable, openBrowser, setTheme, visit } from '../../support/browser.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { freePorts } from '../../support/ports.ts';
import { cancel } from '../../support/submit.ts';

/** With LOAM_TEST_PICTURES=<folder>, pictures of the page are kept there. */
const folder = process.env.LOAM_TEST_PICTURES;
const NEEDED = ['chromium', 'python3'] as const;

let browser: Browser;
let app: TestApp;
let ada: Client;
let bob: Client;
let port: number;
let other: number;
let id: string;

beforeEach((ctx) => needs(ctx, ...NEEDED));
beforeAll(async () => {
  if (!NEEDED.every(has)) return;
  browser = await openBrowser();
  app = await startApp({
    config: { runner: 'process', appsDomain: { name: 'apps.localhost' } },
  });
  [ada, bob] = await Promise.all([app.user('ada'), app.user('bob')]);
  await ada.repository('ada/code', { visibility: 'PUBLIC' });
  await ada.setMembers('ada', { bob: 'WRITE' });
  [port = 0, other = 0] = await freePorts(2);
  ({ id } = await serveApp(ada, 'served', port));
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
});

/** Presses the button on the page of the job. @returns the new tab */
async function openPort(page: Page, number: number): Promise<Page> {
  await page.getByLabel('Port', { exact: true }).fill(String(number));
  const [tab] = await Promise.all([
    page.context().waitForEvent('page'),
    page.getByRole('button', { name: 'Open a port' }).click(),
  ]);
  return tab;
}

test('a program opens in a tab of its own, and its WebSocket works', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page, context } = visitor;
  await page.goto('/ada/-/jobs/served');
  await page.getByRole('heading', { name: 'Ports' }).waitFor();
  for (const [width, theme] of [
    [1280, 'light'],
    [1280, 'dark'],
    [420, 'dark'],
    [420, 'light'],
  ] as const) {
    await page.setViewportSize({ width, height: 900 });
    await setTheme(page, theme);
    await expectUsable(page);
    await page.getByLabel('Command that forwards the port').scrollIntoViewIfNeeded();
    if (folder) await page.screenshot({ path: `${folder}/port-${width}-${theme}.png` });
  }
  await page.setViewportSize({ width: 1280, height: 900 });
  await page.getByText(`loam forward ada/served 8888`).waitFor();

  const tab = await openPort(page, port);
  await tab.waitForURL(/\.apps\.localhost:\d+\/$/);
  const { origin } = new URL(tab.url());
  await tab.goto(`${origin}/page`);
  await tab.getByText('echo: hello from the page').waitFor();
  expect(await tab.evaluate(() => [document.cookie, opener])).toEqual(['ws=1', null]);
  if (folder) await tab.screenshot({ path: `${folder}/port-app.png` });
  const cookies = (await context.cookies()).map(({ name, domain, httpOnly, sameSite }) => [
    name,
    domain,
    httpOnly,
    sameSite,
  ]);
  expect(cookies.sort()).toEqual([
    ['loam-app', new URL(origin).hostname, true, 'Lax'],
    ['loam-session', new URL(app.base).hostname, true, 'Lax'],
    // The program has asked for `Domain=localhost`.
    ['ws', new URL(origin).hostname, false, 'Lax'],
  ]);
  visitor.expectQuiet();

  // Neither Loam nor another program is reached from the page, nor shown in it.
  const refused = await tab.evaluate(
    async ([loam, elsewhere]) => {
      const read = async (url: string) =>
        fetch(url, { credentials: 'include' }).then(
          (answer) => answer.status,
          () => 'refused',
        );
      const socket = (url: string) =>
        new Promise((resolve) => {
          const one = new WebSocket(url);
          one.onopen = () => resolve('open');
          one.onerror = () => resolve('refused');
        });
      return [
        await read(`${loam}/graphql?query={viewer{username}}`),
        await read(`${elsewhere}/page`),
        await socket(`${loam}/-/shells/ada/served`.replace('http', 'ws')),
        await socket(`${elsewhere}/ws`.replace('http', 'ws')),
      ];
    },
    [app.base, origin.replace(`${port}--`, `${other}--`)] as const,
  );
  expect(refused).toEqual([expect.not.stringMatching('200'), 'refused', 'refused', 'refused']);
});

test('the pages of one program are not shown in those of another', async () => {
  await serveApp(ada, 'neighbour', other);
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/-/jobs/served');
  const tab = await openPort(page, port);
  await tab.waitForURL(/\.apps\.localhost:\d+\/$/);
  await page.goto('/ada/-/jobs/neighbour');
  const hostile = await openPort(page, other);
  await hostile.waitForURL(/\.apps\.localhost:\d+\/$/);
  await hostile.goto(`${new URL(hostile.url()).origin}/page`);
  const victim = new URL(tab.url()).origin;
  const framed = hostile.waitForResponse(`${victim}/page`);
  await hostile.evaluate((url) => {
    const frame = document.createElement('iframe');
    frame.src = url;
    document.body.append(frame);
  }, `${victim}/page`);
  expect((await framed).status()).toBe(403);
  const sent = hostile.waitForResponse(`${victim}/digest`);
  await hostile.evaluate((url) => {
    void fetch(url, { method: 'POST', mode: 'no-cors', credentials: 'include', body: 'x' });
  }, `${victim}/digest`);
  expect((await sent).status()).toBe(403);
  // A link is followed.
  await hostile.evaluate((url) => location.assign(url), `${victim}/page`);
  await hostile.getByText('echo: hello from the page').waitFor();
  await cancel(ada, 'ada', 'neighbour');
});

test('errors are pages that lead back to the job', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/-/jobs/served');
  const tab = await openPort(page, 1);
  await tab.getByText('Nothing listens on port 1 of the job').waitFor();
  await expectUsable(tab);
  if (folder) await tab.screenshot({ path: `${folder}/port-error.png` });
  await tab.getByRole('link', { name: 'Page of the job' }).click();
  await tab.waitForURL(`${app.base}/ada/-/jobs/served`);

  await using stranger = await visit(browser, app);
  await stranger.page.goto(
    `http://${port}--${id.slice(4)}.apps.localhost:${new URL(app.base).port}/`,
  );
  await stranger.page.getByText('You are not signed in here').waitFor();
});

test('who may not open a shell opens no port, and without the domain a command is shown', async () => {
  await using guest = await visit(browser, app, { as: bob });
  await guest.page.goto('/ada/-/jobs/served');
  await guest.page.getByText('begun', { exact: true }).waitFor();
  expect(await guest.page.getByRole('heading', { name: 'Ports' }).count()).toBe(0);

  const { appsDomain } = app.config;
  try {
    app.config.appsDomain = undefined;
    await using visitor = await visit(browser, app, { as: ada });
    const { page } = visitor;
    await page.goto('/ada/-/jobs/served');
    await page.getByLabel('Port', { exact: true }).fill('6006');
    await page.getByText('loam forward ada/served 6006').waitFor();
    expect(await page.getByRole('button', { name: 'Open a port' }).count()).toBe(0);
    if (folder) await page.screenshot({ path: `${folder}/port-command.png` });
    visitor.expectQuiet();
  } finally {
    app.config.appsDomain = appsDomain;
  }
});
