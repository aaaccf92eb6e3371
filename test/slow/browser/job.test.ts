import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { expectUsable, openBrowser, PATIENCE_MS, setTheme, visit } from '../../support/browser.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { job, submit, until } from '../../support/submit.ts';

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

const run = (name: string, command: string, more: object = {}) =>
  submit(ada, { namespace: 'ada', name, repo: 'ada/code', command, ...more });

const ESC = '\u001b';

test('the page of a running job shows its status, its log in colour, and its artifacts', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  const colours = `printf '${ESC}[32mgreen${ESC}[0m <b>not bold</b>\\n'`;
  const command = `${colours}; sleep 4; mkdir -p out/deep; echo x > out/deep/file.txt`;
  await run('watched', command, { outputPath: 'out' });
  await page.goto('/ada/-/jobs/watched');
  await page.locator('.ansi-green-fg', { hasText: 'green' }).waitFor();
  await page.getByRole('log').getByText('<b>not bold</b>').waitFor();
  await page.locator('main [data-status=SUCCEEDED]').first().waitFor();
  await page.getByText('deep', { exact: true }).click();
  const file = page.getByRole('link', { name: /file\.txt/ });
  expect((await (await fetch((await file.getAttribute('href')) as string)).text()).trim()).toBe(
    'x',
  );
  expect(await page.title()).toBe('watched · succeeded · Loam');
  expect(await page.locator('#icon').getAttribute('href')).toMatch(/^data:image\/svg/);
  await expectUsable(page);
  visitor.expectQuiet();
  // The page has the tabs of the job's repository.
  await page.getByRole('link', { name: 'Large files' }).click();
  await page.getByRole('heading', { level: 1, name: /^ada\// }).waitFor();
});

test('the page shows what a job may do and prove', async () => {
  await run('trusted', 'true', {
    permissions: { repo: 'WRITE', jobs: 'READ' },
    idTokens: [
      { variable: 'AWS_WEB_IDENTITY_TOKEN', audience: 'sts.amazonaws.com' },
      { variable: 'VAULT', audience: 'https://vault.example.com/a/long/path/that/is/wrapped' },
    ],
  });
  await until(ada, 'ada', 'trusted', 'SUCCEEDED');
  await using visitor = await visit(browser, app, { as: ada, width: 400, colorScheme: 'dark' });
  const { page } = visitor;
  await page.goto('/ada/-/jobs/trusted');
  await page.getByText('Repository: write, Jobs: read').waitFor();
  await page.getByText('sts.amazonaws.com').waitFor();
  await expectUsable(page);
  visitor.expectQuiet();
});

test('URLs in a log are links, and artifacts have previews', async () => {
  const svg = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>';
  const left = `mkdir out; echo '<b>hello</b>' > out/a.txt; echo '${svg}' > out/b.svg; head -c 100 /dev/zero > out/c.bin`;
  const said = 'echo "See (https://example.com/a_(b)?c=1#d), or javascript://x."';
  await run('linked', `${said}; ${left}`, { outputPath: 'out' });
  await until(ada, 'ada', 'linked', 'SUCCEEDED');
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/-/jobs/linked');
  const log = page.getByRole('log');
  const link = log.getByRole('link', { name: 'https://example.com/a_(b)?c=1#d', exact: true });
  await link.waitFor();
  expect(await link.getAttribute('href')).toBe('https://example.com/a_(b)?c=1#d');
  expect(await link.getAttribute('rel')).toBe('nofollow noreferrer noopener');
  expect(await log.locator('a[href^="javascript"]').count()).toBe(0);

  const open = async (name: string) => {
    await page.getByRole('button', { name: `Preview ${name}` }).click();
    return page.getByRole('region', { name: `Preview of ${name}` });
  };
  await (await open('a.txt')).getByText('<b>hello</b>').waitFor();
  const picture = (await open('b.svg')).getByRole('img', { name: 'b.svg', exact: true });
  await expect.poll(() => picture.evaluate((img: HTMLImageElement) => img.naturalWidth)).toBe(9);
  await (await open('c.bin')).getByText('This file is not text.').waitFor();
  await expectUsable(page);
  visitor.expectQuiet();
});

test('a long log can be searched, and each of its lines can be linked', async () => {
  await run('long', 'i=0; while [ $i -lt 30000 ]; do i=$((i+1)); echo "line number $i"; done');
  await until(ada, 'ada', 'long', 'SUCCEEDED');
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/-/jobs/long');
  await page.getByText('line number 30000', { exact: true }).waitFor();
  // Only visible lines are in the document.
  expect(await page.locator('[data-seq]').count()).toBeLessThan(200);
  // The log stays at its end when the window is resized.
  for (const height of [1_300, 600]) {
    await page.setViewportSize({ width: 1_280, height });
    await expect
      .poll(() =>
        page
          .getByRole('log')
          .evaluate((log) => log.scrollHeight - log.scrollTop - log.clientHeight),
      )
      .toBeLessThan(2);
    expect(await page.getByRole('button', { name: 'Jump to end' }).count()).toBe(0);
  }
  // For a full-page screenshot the browser scrolls the page to its top.
  await page.screenshot({ fullPage: true });
  await expect
    .poll(() => page.getByText('line number 30000', { exact: true }).isVisible())
    .toBe(true);
  expect(await page.getByRole('button', { name: 'Jump to end' }).count()).toBe(0);

  await page.getByLabel('Search the log').fill('number 123');
  await page.getByText(/^1 of 100\+$/).waitFor();
  await page.getByText('line number 123', { exact: true }).first().waitFor();
  await page.getByLabel('Search the log').press('Enter');
  await page.getByText(/^2 of 100\+$/).waitFor();
  await page.locator('mark', { hasText: 'number 123' }).nth(1).waitFor();

  await page.getByLabel('Search the log').fill('');
  await page.goto('/ada/-/jobs/long#L15000');
  await page.locator('[data-seq="15000"]').waitFor();
  await page.getByRole('button', { name: 'Jump to end' }).click();
  await page.getByText('line number 30000', { exact: true }).waitFor();
  visitor.expectQuiet();
});

test('a log with wrapped lines opens at its end', async () => {
  await run(
    'wide',
    'i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo "line $i of $(pwd) $(date) wraps on a narrow screen"; done',
  );
  await until(ada, 'ada', 'wide', 'SUCCEEDED');
  await using visitor = await visit(browser, app, { as: ada, width: 375 });
  await visitor.page.goto('/ada/-/jobs/wide');
  const log = visitor.page.getByRole('log');
  await log.getByText('line 60 of').waitFor();
  await expect
    .poll(() => log.evaluate((e) => e.scrollHeight - e.scrollTop - e.clientHeight))
    .toBeLessThan(2);
  visitor.expectQuiet();
});

test('a log that grows by thousands of lines per second never renders an empty viewport', async () => {
  const step = 'for (let i = 0; i < 50; i++) console.log("step", ++n, "of the training")';
  await run('quick', `exec node -e 'let n = 0; setInterval(() => { ${step} }, 10)'`);
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  // The log element must fit into the window; otherwise the rendered lines could end before the element does.
  await page.setViewportSize({ width: 1_280, height: 1_200 });
  await page.goto('/ada/-/jobs/quick');
  await page.locator('[data-seq]').first().waitFor();
  const { drawn, empty, last } = await page.getByRole('log').evaluate(async (log) => {
    // The first lines do not fill the viewport, which grows with them.
    while (Number(log.dataset.logLines) < 100) await new Promise(requestAnimationFrame);
    const { bottom } = log.getBoundingClientRect();
    let drawn = 0;
    let empty = 0;
    let last = log.dataset.logLines;
    while (drawn < 20) {
      await new Promise(requestAnimationFrame);
      // In a task after the frame, its lines have their layout.
      await new Promise((resolve) => setTimeout(resolve));
      if (log.dataset.logLines === last) continue;
      last = log.dataset.logLines;
      drawn++;
      const rows = [...log.querySelectorAll('[data-seq]')].map((row) =>
        row.getBoundingClientRect(),
      );
      if (!rows.some((row) => row.top < bottom - 30 && row.bottom > bottom - 30)) empty++;
    }
    return { drawn, empty, last };
  });
  expect({ drawn, empty }).toEqual({ drawn: 20, empty: 0 });
  expect(Number(last)).toBeGreaterThan(500);
  visitor.expectQuiet();
  await ada.gql('mutation { cancelJob(input: {namespace: "ada", name: "quick"}) { job { id } } }');
});

test('a held job says how to look into it, and is released', async () => {
  await run('held', 'echo last line; exit 7', { holdOnFailureMinutes: 30 });
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/-/jobs/held');
  const notice = page.locator('[data-hold]');
  await notice.getByText('Failed with exit code 7. The sandbox is held for 30 min.').waitFor();
  await notice.getByText('loam shell ada/held').waitFor();
  await page.getByText('30 min after a failure', { exact: true }).waitFor();
  await expectUsable(page);
  await page.getByRole('button', { name: 'Release' }).click();
  await page.locator('main [data-status=FAILED]').first().waitFor();
  await page.getByText('Failed with exit code 7', { exact: true }).waitFor();
  await page.getByText(/30 min after a failure, held for/).waitFor();
  expect(await page.getByRole('button', { name: 'Release' }).count()).toBe(0);
  visitor.expectQuiet();
});

test('a 10 MB line, endless colour codes and a script in a line do not break the page', async () => {
  const lines = [
    'head -c 10000000 /dev/zero | tr "\\0" x; echo',
    `printf '${ESC}[38;5;%.0s' $(seq 1 20000); echo`,
    `for i in 1 2 3 4 5; do printf '${ESC}[3%dm#' $(seq 1 4000); echo; done`,
    `echo '${ESC}]8;;javascript:window.hit=1${ESC}\\<img src=x onerror="window.hit = 1">'`,
  ];
  await run('hostile', lines.join('; '));
  await until(ada, 'ada', 'hostile', 'SUCCEEDED');
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/-/jobs/hostile');
  await page.getByText('<img src=x onerror=').first().waitFor();
  await page
    .getByText(/more characters: see the download/)
    .first()
    .waitFor();
  expect(await page.evaluate(() => 'hit' in window)).toBe(false);
  visitor.expectQuiet();
});

test('the page recovers from a server restart without lost or duplicate lines', async () => {
  await run('steady', 'i=0; while [ $i -lt 150 ]; do i=$((i+1)); echo "tick $i"; sleep 0.1; done');
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/-/jobs/steady');
  await page
    .getByText(/^tick \d+$/)
    .first()
    .waitFor();
  await app.restart();
  await page.getByText('tick 150', { exact: true }).waitFor();
  await page.locator('main [data-status=SUCCEEDED]').first().waitFor();
  const ticks = Array.from({ length: 150 }, (_, index) => `tick ${index + 1}`);
  await expect
    .poll(async () => (await readThrough(page)).filter((text) => text.startsWith('tick')), {
      timeout: PATIENCE_MS,
    })
    .toEqual(ticks);
});

test('a page keeps its content while the server is unreachable, and retries', async () => {
  await run('patient', 'sleep 300');
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/-/jobs/patient');
  await page.locator('main [data-status=RUNNING]').first().waitFor();
  await page.route('**/graphql', (route) => route.abort());
  const alert = page.getByRole('alert').filter({ hasText: 'The server cannot be reached' });
  await alert.waitFor();
  await expect.poll(() => page.getByRole('log').isVisible()).toBe(true);
  await page.unroute('**/graphql');
  await alert.waitFor({ state: 'detached' });
  await page.locator('main [data-status=RUNNING]').first().waitFor();
});

test('a link clicked while the server is unreachable opens when the server answers', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada');
  await page.getByRole('link', { name: 'Usage', exact: true }).waitFor();
  await page.context().route('**/*', (route) => route.abort());
  await page.getByRole('link', { name: 'Usage', exact: true }).click();
  await page.getByRole('heading', { name: 'The server cannot be reached' }).waitFor();
  await page.context().unroute('**/*');
  await page.getByLabel('From', { exact: true }).waitFor();
  expect(new URL(page.url()).pathname).toBe('/ada/-/usage');
});

test('a hidden tab ends its log subscription, and catches up when it is visible again', async () => {
  await run('aside', 'i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo "tick $i"; sleep 0.02; done');
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/-/jobs/aside');
  const { rechecks } = app.app.services;
  // Playwright reports every page as visible.
  const look = (state: 'hidden' | 'visible') =>
    page.evaluate((value) => {
      Object.defineProperty(document, 'visibilityState', { value, configurable: true });
      document.dispatchEvent(new Event('visibilitychange'));
    }, state);
  const newest = async () =>
    Number(await page.locator('[data-log-lines]').getAttribute('data-log-lines'));
  await expect.poll(newest).toBeGreaterThan(10);
  // The first lines come from a query; later lines come from the subscription.
  const first = await newest();
  await expect.poll(newest).toBeGreaterThan(first + 20);
  const followed = rechecks.streams;
  await look('hidden');
  await expect.poll(() => rechecks.streams, { timeout: PATIENCE_MS }).toBe(followed - 1);
  const kept = await newest();
  await expect
    .poll(async () => {
      const { job } = await ada.gql(
        '{ job(namespace: "ada", name: "aside") { log(last: 1) { lastSeq } } }',
      );
      return job.log.lastSeq;
    })
    .toBeGreaterThan(kept + 50);
  await look('visible');
  await expect.poll(newest).toBeGreaterThan(kept + 50);
  const back = await newest();
  await expect.poll(newest).toBeGreaterThan(back + 20);
  const read = (await readThrough(page)).filter((text) => text.startsWith('tick'));
  expect(read).toEqual(read.map((_, index) => `tick ${index + 1}`));
  visitor.expectQuiet();
});

/** Scrolls through the whole log and returns the text of each entry, in order. */
async function readThrough(page: Page): Promise<string[]> {
  const rows = await page.getByRole('log').evaluate(async (log) => {
    const seen: [seq: number, text: string][] = [];
    for (let top = 0; top < log.scrollHeight; top += log.clientHeight / 2) {
      log.scrollTop = top;
      for (let frame = 0; frame < 3; frame++) await new Promise(requestAnimationFrame);
      for (const row of log.querySelectorAll<HTMLElement>('[data-seq]'))
        seen.push([Number(row.dataset.seq), row.lastElementChild?.textContent ?? '']);
    }
    return seen;
  });
  return [...new Map(rows)].sort(([a], [b]) => a - b).map(([, text]) => text);
}

test('a job is cancelled, rerun and deleted', async () => {
  // The process runs for some seconds after the cancellation.
  await run('brief', "trap 'sleep 4; exit 1' TERM; while :; do sleep 0.1; done");
  await until(ada, 'ada', 'brief', 'RUNNING');
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/-/jobs/brief');
  await page.getByRole('button', { name: 'Cancel', exact: true }).click();
  await page.getByRole('button', { name: 'Cancel job' }).click();
  await page.locator('main [data-status=CANCELLED]').first().waitFor();
  // The attempt has the runtime of its job, although its process ended later.
  await expect
    .poll(async () => {
      const asked =
        'query { job(namespace: "ada", name: "brief") { attempts { nodes { outcome } } } }';
      return (await ada.gql(asked)).job.attempts.nodes;
    })
    .toEqual([{ outcome: 'EXITED' }]);
  await page.reload();
  await page.locator('[data-attempt]').getByText('Attempt 1 ended').waitFor();
  const total = await page.locator('[data-runtime]').textContent();
  await page.locator('[data-attempt]').getByText(`, ${total}`).waitFor();
  await page.getByRole('link', { name: 'Run again' }).click();
  await page.getByLabel('Name', { exact: true }).waitFor();
  expect(await page.getByLabel('Name', { exact: true }).inputValue()).toBe('brief-2');
  await page.getByRole('button', { name: 'Create job' }).click();
  await page.waitForURL('**/ada/-/jobs/brief-2');
  await page.getByRole('button', { name: 'Cancel', exact: true }).click();
  await page.getByRole('button', { name: 'Cancel job' }).click();
  await page.getByRole('button', { name: 'Delete', exact: true }).click();
  expect(await page.getByRole('button', { name: 'Delete job' }).isDisabled()).toBe(true);
  await page.keyboard.type('brief-2');
  await page.getByRole('button', { name: 'Delete job' }).click();
  await page.waitForURL('**/ada/-/jobs');
  visitor.expectQuiet();
});

test('"Run again" starts with the settings of the job, and keeps unchanged variables', async () => {
  await run('first', 'echo "$WHAT"', {
    env: [{ name: 'WHAT', value: 'kept' }],
    memoryGb: 7,
    retries: 2,
  });
  await until(ada, 'ada', 'first', 'SUCCEEDED');
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/-/jobs/first');
  await page.getByRole('link', { name: 'Run again' }).click();
  await page.getByLabel('Memory in GB').waitFor();
  expect(await page.getByLabel('Memory in GB').inputValue()).toBe('7');
  expect(await page.getByLabel('Command').inputValue()).toBe('echo "$WHAT"');
  await expectUsable(page);
  // With a changed command the variable would be empty, because the dashboard does not know its value.
  await page.getByLabel('Command').fill('echo "$WHAT" changed');
  await page.getByRole('button', { name: 'Create job' }).click();
  await page.getByText('Enter the value of WHAT').waitFor();
  await page.getByLabel('Command').fill('echo "$WHAT"');
  await page.getByRole('button', { name: 'Create job' }).click();
  await page.waitForURL('**/ada/-/jobs/first-2');
  await page.getByRole('log').getByText('kept', { exact: true }).waitFor();
  expect(await job(ada, 'ada', 'first-2')).toMatchObject({ memoryGb: 7, retries: 2 });
  visitor.expectQuiet();
});

test('a failed job shows the reason, the billed time, and its usage against its limits', async () => {
  const { id } = await run('broken', 'echo no; exit 3', { memoryGb: 4 });
  await until(ada, 'ada', 'broken', 'FAILED');
  const { db } = app.app.services;
  const { attempts } = await db.job.update({
    where: { id },
    // The page must show the runtime from the API, not the time between start and end.
    data: { runtimeSeconds: 90 },
    select: { attempts: { select: { id: true } } },
  });
  const attemptId = attempts[0]?.id as string;
  const usage = {
    times: [new Date(Date.now() - 5_000), new Date()],
    gpuPercent: [0, 0],
    cpuPercent: [20, 40],
    memoryBytes: [2 ** 20, 50 * 2 ** 20],
    diskBytes: [2 ** 20, 2 ** 20],
  };
  await db.attemptUsage.upsert({
    where: { attemptId },
    create: { attemptId, ...usage },
    update: usage,
  });
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/-/jobs/broken');
  await page
    .getByRole('region', { name: 'Why the job failed' })
    .getByText('Failed with exit code 3')
    .waitFor();
  await page.getByText('ran 1 min 30 s', { exact: true }).waitFor();
  await page.locator('[data-log-status=FAILED].text-bad').waitFor();
  // Visible without a click, in a fitting unit, and with a line for the limit.
  const memory = page.getByRole('img', {
    name: /^Memory: last 50\.0 MiB, peak 50\.0 MiB, limit /,
  });
  await memory.locator('canvas').waitFor();
  expect(Number(await memory.getAttribute('data-limit'))).toBeGreaterThan(0);
  // In the colours of the theme, also after a theme change.
  const drawn = () =>
    memory.locator('canvas').evaluate((canvas: HTMLCanvasElement) => canvas.toDataURL());
  const light = await drawn();
  await setTheme(page, 'dark');
  await expect.poll(drawn).not.toBe(light);
  const dark = await drawn();
  await page.reload();
  await memory.locator('canvas').waitFor();
  await expect.poll(drawn).toBe(dark);
  await setTheme(page, 'light');
  await page.getByRole('link', { name: 'Jobs', exact: true }).click();
  await page.locator('[data-job=broken] [data-progress]').getByText('exit code 3').waitFor();
  await page.locator('[data-job=broken]').getByText('1 min 30 s', { exact: true }).waitFor();
  // One measurement is shown as text: there is no line to draw.
  const single = {
    times: [new Date()],
    gpuPercent: [0],
    cpuPercent: [20],
    memoryBytes: [2 ** 20],
    diskBytes: [2 ** 20],
  };
  await db.attemptUsage.update({ where: { attemptId }, data: single });
  await page.goto('/ada/-/jobs/broken');
  await page.getByText('Memory: last 1.0 MiB, peak 1.0 MiB, limit ').waitFor();
  await page.locator('figure [role=img]').first().waitFor({ state: 'attached' });
  expect(await page.locator('figure canvas').count()).toBe(0);
  visitor.expectQuiet();
});
