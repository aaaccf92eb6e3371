/** Debian's Jupyter in a job, in the browser: cells run over a WebSocket. */
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { openBrowser, visit } from '../../support/browser.ts';
import { eventually } from '../../support/eventually.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { LoamUser } from '../../support/loam-command.ts';
import { has, needs } from '../../support/needs.ts';
import { freePort } from '../../support/ports.ts';
import { lines, submit, until } from '../../support/submit.ts';

const NEEDED = ['chromium', 'jupyter', 'perl'] as const;
const TOKEN = 'the-token';

let browser: Browser;
let app: TestApp;
let ada: Client;
let port: number;

beforeEach((ctx) => needs(ctx, ...NEEDED));
beforeAll(async () => {
  if (!NEEDED.every(has)) return;
  browser = await openBrowser();
  app = await startApp({
    config: { runner: 'process', appsDomain: { name: 'apps.localhost' } },
  });
  ada = await app.user('ada');
  await ada.repository('ada/code');
  port = await freePort();
  const cell = { cell_type: 'code', metadata: {}, execution_count: null, outputs: [] };
  const notebook = {
    cells: [{ ...cell, source: ['print(6 * 7, "by the job")'] }],
    metadata: { kernelspec: { name: 'python3', display_name: 'Python 3', language: 'python' } },
    nbformat: 4,
    nbformat_minor: 4,
  };
  await submit(ada, {
    namespace: 'ada',
    repo: 'ada/code',
    name: 'notebook',
    command: `echo '${JSON.stringify(notebook)}' > first.ipynb
exec jupyter-notebook --no-browser --ip 127.0.0.1 --port ${port} --NotebookApp.token=${TOKEN} --NotebookApp.allow_remote_access=True 2>&1`,
    cpu: 2,
    memoryGb: 2,
  });
  await until(ada, 'ada', 'notebook', 'RUNNING');
  await eventually(async () =>
    expect((await lines(ada, 'ada', 'notebook')).join('\n')).toMatch(/is running at/),
  );
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
});

async function runCell(page: Page): Promise<void> {
  await page.getByTitle('Kernel Idle').waitFor();
  await page.locator('.code_cell').first().click();
  await page.keyboard.press('Control+Enter');
  await page.getByText('42 by the job').waitFor();
}

test('a notebook runs a cell through a forwarded port', async () => {
  await using user = await LoamUser.open(ada);
  const here = await freePort();
  const forwarding = user.start(['forward', 'ada/notebook', `${here}:${port}`]);
  await eventually(() => expect(forwarding.stdout).toContain(`127.0.0.1:${here} `));
  await using visitor = await visit(browser, app);
  const { page } = visitor;
  const opened = page.waitForEvent('websocket');
  await page.goto(`http://127.0.0.1:${here}/notebooks/first.ipynb?token=${TOKEN}`);
  await opened;
  await runCell(page);
});

test('a notebook runs a cell on a host of its own', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page, context } = visitor;
  await page.goto('/ada/-/jobs/notebook');
  await page.getByLabel('Port', { exact: true }).fill(String(port));
  const [tab] = await Promise.all([
    context.waitForEvent('page'),
    page.getByRole('button', { name: 'Open a port' }).click(),
  ]);
  await tab.getByText('Password or token').first().waitFor();
  const { origin } = new URL(tab.url());
  expect(origin).toMatch(/^http:\/\/\d+--\w{26}\.apps\.localhost:\d+$/);
  const opened = tab.waitForEvent('websocket');
  await tab.goto(`${origin}/notebooks/first.ipynb?token=${TOKEN}`);
  expect((await opened).url()).toMatch(`${origin.replace('http', 'ws')}/`);
  await runCell(tab);
});
