/** Mermaid diagrams in Markdown are drawn in a sandboxed frame, or shown as source. */
import type { Browser, FrameLocator, Page } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { expectUsable, openBrowser, setTheme, visit } from '../../support/browser.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';

let browser: Browser;
let app: TestApp;
let ada: Client;
let repository: string;

beforeEach((ctx) => needs(ctx, 'chromium'));
beforeAll(async () => {
  if (!has('chromium')) return;
  browser = await openBrowser();
  app = await startApp();
  ada = await app.user('ada');
  const { body } = await ada.post('/auth/v1/repository/ada', { name: 'code' });
  repository = body.id;
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
});

const commit = (files: Record<string, string>) =>
  ada.gql(
    'mutation ($input: CreateCommitInput!) { createCommit(input: $input) { commit { sha } } }',
    {
      input: {
        id: repository,
        branch: 'main',
        message: 'Draw',
        changes: Object.entries(files).map(([path, content]) => ({ path, content })),
      },
    },
  );

const fence = (source: string) => `\`\`\`mermaid\n${source}\n\`\`\`\n`;
const frames = (page: Page) => page.locator('iframe[title=Diagram]');
const contentOf = (page: Page, at = 0): FrameLocator => frames(page).nth(at).contentFrame();

/** Records the URLs of all requests of a page. */
function requests(page: Page): string[] {
  const asked: string[] = [];
  page.context().on('request', (request) => asked.push(request.url()));
  return asked;
}

test('a diagram follows the theme of the page, and its source can be opened', async () => {
  await commit({
    'README.md': `# Plain\n\n\`\`\`ts\nconst a = 1;\n\`\`\`\n`,
    'drawn.md': `# Drawn\n\n${fence('flowchart LR\n  Push --> Job')}`,
    'drawn.ipynb': JSON.stringify({
      nbformat: 4,
      metadata: {},
      cells: [{ cell_type: 'markdown', source: fence('sequenceDiagram\n  Ada->>Bob: Hello') }],
    }),
  });
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  const asked = requests(page);
  await page.goto('/ada/code');
  await page.locator('.markdown pre span[style*="color"]').first().waitFor();
  expect(asked.filter((url) => /mermaid|diagram/.test(url))).toEqual([]);

  const opened = page.waitForResponse('**/assets/diagram.html');
  await page.goto('/ada/code/file/drawn.md');
  expect(await (await opened).headerValue('content-security-policy')).toMatch(
    /^sandbox allow-scripts; default-src 'none'; script-src 'self'; /,
  );
  const box = contentOf(page).locator('.node rect').first();
  await box.waitFor();
  expect(await frames(page).getAttribute('sandbox')).toBe('allow-scripts');
  const size = await frames(page).boundingBox();
  expect(size?.height).toBeGreaterThan(30);
  expect(size?.height).toBeLessThan(300);
  await page.getByText('flowchart LR').waitFor({ state: 'hidden' });
  await page.getByText('Show source').click();
  await page.getByText('flowchart LR').waitFor();
  await expectUsable(page);

  const fill = () => box.evaluate((shape) => getComputedStyle(shape).fill);
  const light = await fill();
  await setTheme(page, 'dark');
  await expect.poll(fill).not.toBe(light);
  const dark = await fill();
  // The theme menu changes it without a reload.
  await page.getByRole('button', { name: 'ada: menu' }).click();
  await page.getByRole('menuitemradio', { name: 'Light' }).click();
  await expect.poll(fill).toBe(light);
  expect(dark).not.toBe(light);

  await page.goto('/ada/code/file/drawn.ipynb');
  await contentOf(page).getByText('Hello').waitFor();
  visitor.expectQuiet();
});

test('an invalid diagram is shown as source, with the reason', async () => {
  await commit({
    'wrong.md': `# Wrong\n\n${fence('flowchart LR\n  A --> --> B')}\n\n${fence('no such diagram')}`,
    'long.md': `# Long\n\n${fence(`flowchart LR\n  A --> B\n%% ${'x'.repeat(50_000)}`)}`,
    'edges.md': fence(`flowchart LR\n${'  A --> B\n'.repeat(600)}`),
  });
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/ada/code/file/wrong.md');
  await page
    .getByText('The diagram is not drawn: Parse error on line 2', { exact: true })
    .waitFor();
  await page.getByText('The diagram is not drawn: No diagram type detected').waitFor();
  await page.getByText('A --> --> B').waitFor();
  await page.getByText('no such diagram', { exact: true }).waitFor();
  expect(await frames(page).count()).toBe(0);
  await expectUsable(page);

  await page.goto('/ada/code/file/edges.md');
  await page.getByText('The diagram is not drawn: Edge limit exceeded').waitFor();
  const asked = requests(page);
  await page.goto('/ada/code/file/long.md');
  await page.getByText('it has more than 50,000 characters').waitFor();
  expect(asked.filter((url) => url.includes('diagram.html'))).toEqual([]);
  visitor.expectQuiet();
});

test('a frame that never answers is replaced by the source, and the page stays usable', async () => {
  await commit({ 'hung.md': fence('flowchart LR\n  A --> B') });
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.route('**/assets/mermaid*.js', (route) =>
    route.fulfill({ contentType: 'text/javascript', body: 'for (;;);' }),
  );
  await page.clock.install();
  await page.goto('/ada/code/file/hung.md');
  await frames(page).waitFor({ state: 'attached' });
  await page.clock.fastForward(20_000);
  await page.getByText('The diagram is not drawn: drawing took too long').waitFor();
  await page.getByText('A --> B').waitFor();
  expect(await frames(page).count()).toBe(0);
});

test('a hostile diagram can reach neither the page around it nor another host', async () => {
  const attacks = [
    '%%{init: {"securityLevel": "loose", "flowchart": {"htmlLabels": true}}}%%\nflowchart LR\n  A["<img src=x onerror=\'parent.hit=1;top.hit=1;hit=1\'>first"] --> B',
    'flowchart LR\n  A[second] --> B\n  click A call parent.postMessage()\n  click B href "javascript:top.hit=1"',
    'flowchart LR\n  A[third] --> B\n  click A href "https://example.com/away" _top',
    'flowchart LR\n  A[fourth] --> B\n  click A href "https://example.com/away" _self',
    '%%{init: {"themeCSS": "* { background: url(https://example.com/track.png) } @import url(https://example.com/a.css);"}}%%\nflowchart LR\n  A[fifth] --> B',
    "flowchart LR\n  A[\"sixth <a href='https://example.com/away' target='_self'>press</a> <iframe src='https://example.com/'></iframe> <form action='/logout' method='post'><button>go</button></form>\"] --> B",
    'flowchart LR\n  A@{ img: "https://example.com/track.png", label: "seventh", w: 60, h: 60 } --> B',
    '---\nconfig:\n  securityLevel: loose\n  maxTextSize: 99999999\n  dompurifyConfig: {ADD_TAGS: [script], ADD_ATTR: [onload]}\n---\nflowchart LR\n  A["eighth <script>top.hit=1</script><svg onload=\'top.hit=1\'></svg>"] --> B',
  ];
  await commit({ 'hostile.md': attacks.map(fence).join('\n\n') });
  await using visitor = await visit(browser, app, { as: ada });
  const { page, context } = visitor;
  const asked = requests(page);
  // Requests that the content security policy blocks do not reach this handler.
  const sent: string[] = [];
  await context.route(
    (url) => url.origin !== app.base,
    (route) => {
      sent.push(route.request().url());
      return route.abort();
    },
  );
  page.on('dialog', (dialog) => {
    sent.push(`dialog ${dialog.message()}`);
    return dialog.dismiss();
  });
  await page.goto('/ada/code/file/hostile.md');
  const diagrams = page.locator('[data-diagram]');
  await expect.poll(() => diagrams.count()).toBe(attacks.length);
  for (const diagram of await diagrams.all()) {
    await diagram.scrollIntoViewIfNeeded();
    // Each diagram is either drawn or refused.
    await diagram
      .locator('details')
      .or(diagram.getByText('The diagram is not drawn'))
      .first()
      .waitFor();
  }
  expect(await frames(page).count()).toBeGreaterThan(attacks.length / 2);
  for (const frame of await frames(page).all())
    for (const part of await frame.contentFrame().locator('.node, a, button, label').all())
      await part.dispatchEvent('click');
  const hits = await Promise.all(
    page.frames().map((frame) => frame.evaluate(() => 'hit' in window)),
  );
  expect(hits).not.toContain(true);
  expect(sent).toEqual([]);
  expect(asked.filter((url) => url.includes('logout'))).toEqual([]);
  expect(context.pages().length).toBe(1);
  expect(page.url()).toBe(`${app.base}/ada/code/file/hostile.md`);
  // A frame with an opaque origin has no cookies and no storage.
  const stolen = await page.frames()[1]?.evaluate(() => {
    try {
      return document.cookie;
    } catch (error) {
      return String(error);
    }
  });
  expect(stolen).toMatch(/SecurityError/);
});
