/** Summaries, outputs and results of tests on the pages of a job, a run and a repository; all are written by jobs, so they may be hostile. */
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import {
  expectContrast,
  expectUsable,
  openBrowser,
  setTheme,
  visit,
} from '../../support/browser.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { submit, until, variables } from '../../support/submit.ts';

let browser: Browser;
let app: TestApp;
let ada: Client;

const HOSTILE = '<img src=x onerror="window.hit=1">';
const LONG = 'a.very.long.name.of.a.test.'.repeat(15);

beforeEach((ctx) => needs(ctx, 'chromium'));
beforeAll(async () => {
  if (!has('chromium')) return;
  browser = await openBrowser();
  app = await startApp({ config: { runner: 'process' } });
  ada = await app.user('ada', 'unlimited');
  await ada.post('/auth/v1/repository/ada', { name: 'code', auto_init: true });
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
});

function escapeXml(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('"', '&quot;');
}

type Case = { name: string; inside?: string; suite?: string; className?: string };

function toXml(cases: readonly Case[]): string {
  const elements = cases.map(
    ({ name, inside = '', className = '' }) =>
      `<testcase name="${escapeXml(name)}" classname="${escapeXml(className)}" time="1.25">${inside}</testcase>`,
  );
  return `<testsuite name="suite">${elements.join('')}</testsuite>`;
}

/** A job that leaves these files, and ends with the exit code. */
async function leave(
  name: string,
  files: { XML?: string; SUMMARY?: string; OUTPUTS?: string },
  more: Record<string, unknown> = {},
): Promise<void> {
  await submit(ada, {
    ...{ namespace: 'ada', repo: 'ada/code', name, env: variables(files), testReports: ['r.xml'] },
    command: `[ -z "$XML" ] || printf '%s' "$XML" > r.xml
      [ -z "$SUMMARY" ] || printf '%s' "$SUMMARY" > "$JOB_SUMMARY"
      [ -z "$OUTPUTS" ] || printf '%s' "$OUTPUTS" > "$JOB_OUTPUTS"`,
    ...more,
  });
  await until(ada, 'ada', name, 'SUCCEEDED');
}

test('the page of a job shows its tests, failed ones first, and filters them', async () => {
  const failure = `<failure message="${escapeXml(HOSTILE)}">${escapeXml(`${HOSTILE}\n${LONG}`)}</failure>
    <system-out>printed ${escapeXml(HOSTILE)}</system-out>`;
  await leave('tested', {
    XML: toXml([
      ...Array.from({ length: 60 }, (_, index) => ({ name: `passes ${index + 1}` })),
      { name: HOSTILE, className: HOSTILE, inside: failure },
      { name: 'waits', inside: '<skipped message="later"/>' },
      { name: LONG, className: LONG, inside: '<error/>' },
    ]),
  });
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/-/jobs/tested');
  const tests = page.getByRole('region', { name: 'Tests', exact: true });
  const rows = tests.getByRole('listitem');
  const settings = page.getByRole('region', { name: 'Settings', exact: true });
  await settings.getByText('r.xml', { exact: true }).waitFor();
  await tests.getByText('63 tests: 2 failed, 1 skipped', { exact: true }).waitFor();
  await expect.poll(() => rows.count()).toBe(20);
  const first = await rows.evaluateAll((all) => all.slice(0, 4).map((row) => row.textContent));
  expect(first[0]).toContain(`failed${HOSTILE} ${HOSTILE}`);
  expect(first[1]).toContain(`failed${LONG}`);
  expect(first[2]).toContain('skippedwaits');
  expect(first[3]).toContain('passedpasses 1');
  await rows.first().getByText('Details', { exact: true }).click();
  await tests.getByText(`printed ${HOSTILE}`, { exact: true }).waitFor();
  expect(await page.locator('img[src=x], [onerror]').count()).toBe(0);
  expect(await page.evaluate(() => 'hit' in window)).toBe(false);
  await expectUsable(page);
  await page.setViewportSize({ width: 360, height: 800 });
  await expectUsable(page);
  await setTheme(page, 'dark');
  await expectContrast(page);

  await tests.getByRole('button', { name: 'Next', exact: true }).click();
  await tests.getByText('21 to 40 of 63', { exact: true }).waitFor();
  await tests.getByLabel('Result').selectOption('SKIPPED');
  await expect.poll(() => rows.count()).toBe(1);
  await tests.getByText('later', { exact: true }).waitFor();
  await tests.getByLabel('Result').selectOption('PASSED');
  await tests.getByText('1 to 20 of 60', { exact: true }).waitFor();
  visitor.expectQuiet();
});

test('a report without the chosen tests, or with files that cannot be read, says so', async () => {
  await leave('unread', { XML: '<html/>' }, { testReports: ['r.xml', 'missing.xml'] });
  await leave('passed', { XML: toXml([{ name: 'passes' }]) });
  await using visitor = await visit(browser, app, { as: ada, width: 360 });
  const { page } = visitor;
  await page.goto('/ada/-/jobs/unread');
  const tests = page.getByRole('region', { name: 'Tests', exact: true });
  await tests.getByText('missing.xml was not read: nothing exists at this path').waitFor();
  await tests.getByText('0 tests: 0 failed', { exact: true }).waitFor();
  await expectUsable(page);
  await page.goto('/ada/-/jobs/passed');
  await tests.getByText('passes', { exact: true }).waitFor();
  await tests.getByLabel('Result').selectOption('FAILED');
  await tests.getByText('No failed tests', { exact: true }).waitFor();
  await expectUsable(page);
  visitor.expectQuiet();
});

const PNG =
  'iVBORw0KGgoAAAANSUhEUgAAAAoAAAAKCAIAAAACUFjqAAAAEklEQVR4nGP438CAB+GTG8HSAP+MlZ2RrjBvAAAAAElFTkSuQmCC';

const SUMMARY = `# Accuracy: 93.1 %

| Class | Correct |
| --- | ---: |
| cats | 91 % |

![matrix](plots/matrix.png) ![gone](plots/gone.png) ![pixel](https://elsewhere.test/pixel.png)

[model](model.txt), [elsewhere](https://elsewhere.test/page), [script](javascript:window.hit=1), [data](data:text/html,x)

<script>window.hit = 1</script>${HOSTILE}<iframe src="https://elsewhere.test/frame"></iframe>
<form action="https://elsewhere.test/form"><button>Sign in</button></form>
<style>body { display: none }</style><p style="position: fixed">fixed</p>
<a href="https://elsewhere.test/opener" target="_blank" rel="opener">opener</a>
<video src="https://elsewhere.test/video" poster="https://elsewhere.test/poster"></video>

${'unbroken'.repeat(100)}
`;

test('a summary shows Markdown and artifacts, and loads and runs nothing else', async () => {
  await leave(
    'summarized',
    { SUMMARY, OUTPUTS: `VERSION=1.2.3\nHOSTILE=${HOSTILE}\nLONG=${'x'.repeat(500)}\n` },
    {
      outputPath: 'out',
      command: `mkdir -p out/plots; printf '%s' ${PNG} | base64 -d > out/plots/matrix.png; echo x > out/model.txt
        printf '%s' "$SUMMARY" > "$JOB_SUMMARY"; printf '%s' "$OUTPUTS" > "$JOB_OUTPUTS"`,
      testReports: [],
    },
  );
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  const requests: string[] = [];
  page.on('request', (request) => requests.push(request.url()));
  await page.goto('/ada/-/jobs/summarized');
  const summary = page.getByRole('region', { name: 'Summary of summarized', exact: true });
  await summary.getByRole('heading', { name: 'Accuracy: 93.1 %', exact: true }).waitFor();
  await summary.getByRole('cell', { name: '91 %', exact: true }).waitFor();
  const image = summary.getByRole('img', { name: 'matrix', exact: true });
  await image.waitFor();
  await expect
    .poll(() => image.evaluate((element) => (element as HTMLImageElement).naturalWidth))
    .toBe(10);
  await summary.getByText('gone', { exact: true }).waitFor();
  const model = summary.getByRole('link', { name: 'model', exact: true });
  expect(new URL((await model.getAttribute('href')) ?? '').origin).toBe(app.base);
  for (const [name, href] of [
    ['elsewhere', 'https://elsewhere.test/page'],
    ['pixel', 'https://elsewhere.test/pixel.png'],
    ['opener', 'https://elsewhere.test/opener'],
  ] as const) {
    const link = summary.getByRole('link', { name, exact: true });
    expect(await link.getAttribute('href')).toBe(href);
    expect(await link.getAttribute('rel')).toBe('nofollow noreferrer noopener');
    expect(await link.getAttribute('target')).toBe(null);
  }
  const unsafe =
    'script, iframe, form, style, video, [style*=position], [onerror], [href^=javascript], [href^=data]';
  expect(await summary.locator(unsafe).count()).toBe(0);
  expect(await summary.locator('img').count()).toBe(1);
  const settings = page.getByRole('region', { name: 'Settings', exact: true });
  await settings.getByText('VERSION=1.2.3', { exact: true }).waitFor();
  await settings.getByText(`HOSTILE=${HOSTILE}`, { exact: true }).waitFor();
  await expectUsable(page);
  await page.setViewportSize({ width: 360, height: 800 });
  await expectUsable(page);
  await setTheme(page, 'dark');
  await expectContrast(page);
  expect(await page.evaluate(() => 'hit' in window)).toBe(false);
  expect(requests.filter((url) => url.includes('elsewhere.test'))).toEqual([]);
  visitor.expectQuiet();
});

test('the page Tests of a repository shows the tests that failed on a branch', async () => {
  const { body } = await ada.post('/auth/v1/repository/ada', {
    name: 'flaky',
    auto_init: false,
  });
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/flaky/tests');
  await page.getByRole('heading', { name: 'No tests yet', exact: true }).waitFor();
  await expectUsable(page);

  for (const branch of ['main', 'dev'])
    await ada.gql(
      'mutation ($input: CreateCommitInput!) { createCommit(input: $input) { commit { sha } } }',
      {
        input: {
          ...{ id: body.id, branch, message: 'Begin' },
          changes: [{ path: 'README.md', content: branch }],
        },
      },
    );
  const on = (branch: string) => ({ repo: 'ada/flaky', branch });
  const fails = { name: 'fails', inside: '<failure/>' };
  const both = (inside?: string) => [
    { name: HOSTILE, className: LONG, ...(inside !== undefined && { inside }) },
  ];
  await leave('first', { XML: toXml([...both('<failure/>'), fails]) }, on('main'));
  await leave('second', { XML: toXml([...both(), fails]) }, on('main'));
  await page.reload();
  const section = page.getByRole('region', { name: 'Failed tests', exact: true });
  await section.getByText('In the last 2 reports of main, newest first').waitFor();
  const rows = section.getByRole('listitem');
  expect(await rows.count()).toBe(2);
  expect(await rows.first().textContent()).toContain(`${HOSTILE} Flaky`);
  expect(await rows.nth(1).textContent()).not.toContain('Flaky');
  const results = rows.first().getByRole('link');
  expect(
    await results.evaluateAll((all) => all.map((link) => link.getAttribute('aria-label'))),
  ).toEqual(['passed in second, attempt 1', 'failed in first, attempt 1']);
  expect(await page.evaluate(() => 'hit' in window)).toBe(false);
  await expectUsable(page);
  await page.setViewportSize({ width: 360, height: 800 });
  await expectUsable(page);
  await setTheme(page, 'dark');
  await expectContrast(page);

  const picker = page.getByLabel('Branch', { exact: true });
  await picker.selectOption('dev');
  await section.getByRole('heading', { name: 'No test reports on dev', exact: true }).waitFor();
  expect(new URL(page.url()).search).toBe('?ref=dev');
  await leave('third', { XML: toXml([{ name: 'passes' }]) }, on('dev'));
  await page.reload();
  await section.getByRole('heading', { name: 'No failed tests on dev', exact: true }).waitFor();
  expect(await picker.inputValue()).toBe('dev');
  await expectUsable(page);
  await page.setViewportSize({ width: 1280, height: 800 });
  await picker.selectOption('main');
  await rows.first().getByRole('link', { name: 'failed in first, attempt 1' }).click();
  await page.waitForURL('**/ada/-/jobs/first');
  visitor.expectQuiet();
});

test('the page of a run has counts of tests and summaries, and tests of a matrix are told apart', async () => {
  const { body } = await ada.post('/auth/v1/repository/ada', { name: 'matrix' });
  const xml = toXml([{ name: 'fails', className: 'api', inside: '<failure/>' }]);
  const content = `jobs:
  unit:
    on: { push: true }
    matrix: { seed: [1, 2] }
    env: { XML: '${xml}' }
    command: printf '%s' "$XML" > r.xml; echo "**Seed $SEED**" > "$JOB_SUMMARY"
    test_reports: r.xml
`;
  await ada.gql(
    'mutation ($input: CreateCommitInput!) { createCommit(input: $input) { commit { sha } } }',
    {
      input: {
        ...{ id: body.id, branch: 'main', message: 'Add jobs' },
        changes: [{ path: '.loam/jobs.yml', content }],
      },
    },
  );
  for (const name of ['unit-1-1', 'unit-1-2']) await until(ada, 'ada', name, 'SUCCEEDED');
  await using visitor = await visit(browser, app, { as: ada, width: 360 });
  const { page } = visitor;
  await page.goto('/ada/matrix/runs/1');
  for (const seed of [1, 2]) {
    const summary = page.getByRole('region', { name: `Summary of unit-1-${seed}`, exact: true });
    await summary.getByText(`Seed ${seed}`, { exact: true }).waitFor();
  }
  const counts = page.getByRole('region', { name: 'Tests', exact: true });
  expect(await counts.getByText('1 test: 1 failed', { exact: true }).count()).toBe(2);
  await expectUsable(page);
  await page.goto('/ada/matrix/tests');
  for (const seed of [1, 2])
    await page.getByText(`unit, seed=${seed}, api`, { exact: true }).waitFor();
  await expectUsable(page);
  visitor.expectQuiet();
});
