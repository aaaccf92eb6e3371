/** The shell on the page of a running job. */
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { expectUsable, openBrowser, setTheme, visit } from '../../support/browser.ts';
import { eventually } from '../../support/eventually.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { shellSocket, untilShell } from '../../support/shell-socket.ts';
import { cancel, lines, submit, until } from '../../support/submit.ts';

/** With LOAM_TEST_PICTURES=<folder>, pictures of the page are kept there. */
const folder = process.env.LOAM_TEST_PICTURES;

let browser: Browser;
let app: TestApp;
let ada: Client;
let bob: Client;

beforeEach((ctx) => needs(ctx, 'chromium'));
beforeAll(async () => {
  if (!has('chromium')) return;
  browser = await openBrowser();
  app = await startApp({ config: { runner: 'process' } });
  [ada, bob] = await Promise.all([app.user('ada'), app.user('bob')]);
  await ada.repository('ada/code', { visibility: 'PUBLIC' });
  await ada.setMembers('ada', { bob: 'WRITE' });
  await running('held');
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
});

async function running(name: string) {
  const command = 'echo begun; exec sleep 600';
  await submit(ada, { namespace: 'ada', repo: 'ada/code', name, command });
  await until(ada, 'ada', name, 'RUNNING');
  await eventually(async () => expect(await lines(ada, 'ada', name)).toContain('begun'));
  await untilShell(ada, `ada/${name}`);
}

const frameOf = (page: Page) => page.locator('iframe[title^="Shell in"]').contentFrame();
const shown = async (page: Page) => {
  // Out of sight, the terminal draws nothing.
  await page.locator('iframe[title^="Shell in"]').scrollIntoViewIfNeeded();
  return (await frameOf(page).locator('.xterm-rows > div').allTextContents())
    .map((line) => line.replaceAll('\u00a0', ' ').trimEnd())
    .join('\n');
};
const state = (page: Page) => page.locator('[data-shell]').getAttribute('data-shell');

async function open(page: Page, job: string) {
  await page.goto(`/ada/-/jobs/${job}`);
  await page.getByRole('button', { name: 'Open a shell' }).click();
  await page.getByText('Connected').waitFor();
  await eventually(async () => expect(await shown(page)).toMatch(/[$#] *$/m));
}

async function type(page: Page, line: string) {
  await page.keyboard.type(line);
  await page.keyboard.press('Enter');
}

test('a shell takes keys and shows output, follows the size of the page, and ends', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  const document = page.waitForResponse('**/assets/terminal.html');
  const opened = page.waitForEvent('websocket');
  await open(page, 'held');
  expect(await (await document).headerValue('content-security-policy')).toMatch(
    /^sandbox allow-scripts; default-src 'none'; script-src 'self'; /,
  );
  expect((await opened).url()).toBe(`${app.base.replace('http', 'ws')}/-/shells/ada/held`);
  await type(page, 'echo $((6 * 7)) "$TERM"; stty size');
  await eventually(async () => expect(await shown(page)).toMatch(/^42 xterm-256color\n\d+ \d+$/m));
  const [, rows, columns] = /^(\d+) (\d+)$/m.exec(await shown(page)) ?? [];
  expect(Number(rows)).toBeGreaterThan(15);
  expect(Number(columns)).toBeGreaterThan(60);

  await page.setViewportSize({ width: 420, height: 900 });
  await eventually(async () => {
    await type(page, 'clear; stty size');
    await eventually(async () => expect(await shown(page)).toMatch(/^\d+ \d+$/m));
    const [, , narrow] = /^(\d+) (\d+)$/m.exec(await shown(page)) ?? [];
    expect(Number(narrow)).toBeLessThan(Number(columns) - 20);
  });
  await page.setViewportSize({ width: 1280, height: 900 });

  await type(page, "printf '\\033[31mred \\033[1;32mgreen\\033[0m ünïcödé 🎉\\n'; ls -la /");
  await eventually(async () => expect(await shown(page)).toContain('ünïcödé'));
  for (const [width, theme] of [
    [1280, 'light'],
    [1280, 'dark'],
    [420, 'dark'],
    [420, 'light'],
  ] as const) {
    await page.setViewportSize({ width, height: 900 });
    await setTheme(page, theme);
    await expectUsable(page);
    await page.locator('[data-shell] [role=status]').scrollIntoViewIfNeeded();
    if (folder) await page.screenshot({ path: `${folder}/shell-${width}-${theme}.png` });
  }
  await page.setViewportSize({ width: 1280, height: 900 });

  // Tab is a key of the shell; another key leaves it.
  await frameOf(page).locator('.xterm').click();
  await page.keyboard.press('Control+Shift+X');
  await page.locator('button:focus', { hasText: 'Disconnect' }).waitFor();
  await frameOf(page).locator('.xterm').click();
  await type(page, 'exit 3');
  await page.getByText('The shell has ended with exit code 3.').waitFor();
  if (folder) await page.screenshot({ path: `${folder}/shell-ended.png` });
  await page.getByRole('button', { name: 'Reconnect' }).click();
  await page.getByText('Connected').waitFor();
  await eventually(async () => expect(await shown(page)).toMatch(/[$#] *$/m));
  await type(page, 'echo again');
  await eventually(async () => expect(await shown(page)).toMatch(/^again$/m));
  visitor.expectQuiet();
});

test('a flood of output neither fills the memory of the page nor stops the keys', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await open(page, 'held');
  await type(page, 'yes "$(seq 1 20 | tr -d "\\n")"');
  await eventually(async () => expect(await shown(page)).toMatch(/^1234567/m));
  await page.keyboard.press('Control+C');
  await type(page, 'clear; echo calm');
  await eventually(async () => expect(await shown(page)).toMatch(/^calm$/m));
  await type(page, 'head -c 30000000 /dev/zero | tr "\\0" "x"; clear; echo whole');
  await eventually(async () => expect(await shown(page)).toMatch(/^whole$/m));
  visitor.expectQuiet();
});

test('a job that ends, and one whose shells are not for the viewer', async () => {
  await running('short');
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await open(page, 'short');
  await cancel(ada, 'ada', 'short');
  await eventually(async () => expect(await state(page)).toMatch(/ended|lost/));
  visitor.expectQuiet();

  await using other = await visit(browser, app, { as: bob });
  await other.page.goto('/ada/-/jobs/held');
  await other.page.getByText('begun', { exact: true }).waitFor();
  expect(await other.page.getByRole('heading', { name: 'Shell' }).count()).toBe(0);
  other.expectQuiet();

  // Between the button and the shell, the right is withdrawn.
  await ada.setMembers('ada', { bob: 'ADMIN' });
  await using late = await visit(browser, app, { as: bob });
  await late.page.goto('/ada/-/jobs/held');
  const button = late.page.getByRole('button', { name: 'Open a shell' });
  await button.waitFor();
  // Otherwise the next poll of the page would take the button away.
  await late.page.route(/\/graphql/, () => {});
  await ada.setMembers('ada', { bob: 'WRITE' });
  await button.click();
  await late.page.getByText("open shells in others' jobs").waitFor();
  expect(await state(late.page)).toBe('refused');
  await late.page.getByRole('button', { name: 'Reconnect' }).scrollIntoViewIfNeeded();
  if (folder) await late.page.screenshot({ path: `${folder}/shell-refused.png` });
});

test('open shells are listed, and are ended from the page', async () => {
  using shell = await shellSocket(ada, 'ada/held');
  const command =
    'echo up; tail -f /var/log/a-very-long-name-of-a-log-file-of-the-job.log; sleep 600';
  shell.exec({ command });
  await eventually(() => expect(`${shell.stdout}`).toContain('up\n'));
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await open(page, 'held');
  const list = page.getByRole('region', { name: 'Open shells' });
  const rows = list.getByRole('listitem');
  await eventually(async () => expect(await rows.count()).toBe(2));
  expect(await rows.first().textContent()).toContain(`ada runs ${command}`);
  expect(await rows.last().textContent()).toMatch(/ada opened a shell.*in a browser/);
  for (const [width, theme] of [
    [1280, 'light'],
    [1280, 'dark'],
    [420, 'light'],
  ] as const) {
    await page.setViewportSize({ width, height: 900 });
    await setTheme(page, theme);
    await expectUsable(page);
    await list.scrollIntoViewIfNeeded();
    if (folder) await page.screenshot({ path: `${folder}/open-shells-${width}-${theme}.png` });
  }
  await page.setViewportSize({ width: 1280, height: 900 });
  await rows.first().getByRole('button', { name: 'End the shell of ada' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByRole('heading', { name: 'End the shell of ada?' }).waitFor();
  await dialog.getByRole('button', { name: 'End' }).click();
  await page.getByText('The shell of ada ends within six seconds.').waitFor();
  await shell.closed;
  expect(shell.stderr).toContain('loam: The shell was ended by ada');
  await eventually(async () => expect(await rows.count()).toBe(1));
  await rows.first().getByRole('button', { name: 'End the shell of ada' }).click();
  await dialog.getByRole('button', { name: 'End' }).click();
  await page.getByText('The shell has ended with exit code 255.').waitFor();
  await eventually(async () =>
    expect(await shown(page)).toContain('loam: The shell was ended by ada'),
  );
  await eventually(async () => expect(await list.count()).toBe(0));
  visitor.expectQuiet();
});

test('a shell ends with the reason when the right is withdrawn', async () => {
  await ada.setMembers('ada', { bob: 'ADMIN' });
  await using visitor = await visit(browser, app, { as: bob });
  const { page } = visitor;
  await open(page, 'held');
  await ada.setMembers('ada', { bob: 'WRITE' });
  await page.getByText(/^Disconnected: .*open shells in others' jobs/).waitFor();
});
