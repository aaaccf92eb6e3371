/** The TypeScript library in pages, which import it from the server. */
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import type { Browser, JSHandle, Page } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import type * as Library from '../../../src/cli/sdk/loam.ts';
import { openBrowser, visit } from '../../support/browser.ts';
import { fakeRunner } from '../../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';

/** Unlike an address of this machine, a name without TLS is no secure context, where browsers lack parts of `crypto`. */
const OTHER_HOST = 'page.example';

let browser: Browser;
let app: TestApp;
let ada: Client;

beforeEach((ctx) => needs(ctx, 'chromium'));
beforeAll(async () => {
  if (!has('chromium')) return;
  browser = await openBrowser(`--host-resolver-rules=MAP ${OTHER_HOST} 127.0.0.1`);
  app = await startApp({ overrides: { runner: fakeRunner({ images: true }) } });
  ada = await app.user('ada');
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
});

/** Imports the library. The text is not transformed for Node, unlike a function. */
function importLibrary(page: Page): Promise<JSHandle<typeof Library>> {
  return page.evaluateHandle(`import('${app.base}/sdk/loam.js')`);
}

/** Runs a job to its end, as a program of the page would. */
async function runJob(page: Page, name: string) {
  return (await importLibrary(page)).evaluate(
    async ({ Client }, [url, token, name]) => {
      const client = new Client({ url, token });
      const command = 'echo one;echo two;echo 0.5 > out/loss.txt';
      const job = await client.run(command, { image: 'busybox', name, outputPath: 'out' });
      const lines: string[] = [];
      for await (const event of job.logs()) if (event.kind === 'line') lines.push(event.message);
      const { status } = await job.result();
      const files: string[] = [];
      for await (const { path, downloadUrl } of job.artifacts.list())
        files.push(`${path}: ${await (await fetch(downloadUrl)).text()}`);
      const excess = { image: 'busybox', gpu: 'T4:9' };
      const refused = await client.run('true', excess).catch((error) => error);
      return { lines, status, files, refused: refused.field };
    },
    [app.base, ada.token, name] as const,
  );
}

const DONE = {
  lines: ['one', 'two'],
  status: 'SUCCEEDED',
  files: ['loss.txt: 0.5\n'],
  refused: 'gpuCount',
};

test('a page of the server runs a job, follows its log and reads its artifacts', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  await visitor.page.goto('/');
  expect(await runJob(visitor.page, 'same-origin')).toEqual(DONE);
  visitor.expectQuiet();
});

test('a page of another origin, without TLS, does the same', async () => {
  const other = createServer((_, res) => {
    res
      .setHeader('content-type', 'text/html')
      .end('<!doctype html><link rel="icon" href="data:,">');
  });
  await once(other.listen(0, '127.0.0.1'), 'listening');
  try {
    const { port } = other.address() as AddressInfo;
    await using visitor = await visit(browser, app);
    const { page } = visitor;
    await page.goto(`http://${OTHER_HOST}:${port}/`);
    expect(await page.evaluate(() => isSecureContext)).toBe(false);
    expect(await runJob(page, 'cross-origin')).toEqual(DONE);
    visitor.expectQuiet();
  } finally {
    other.closeAllConnections();
    other.close();
  }
});

test('the example of the reference runs in a page', async () => {
  const docs = await readFile(join(import.meta.dirname, '../../../docs/typescript.md'), 'utf8');
  const [, example] = /```js\n(const { Client }.*?)```/s.exec(docs) ?? [];
  await ada.gql(
    `mutation { createJob(input: {namespace: "ada", name: "held", command: "hold", image: "busybox", gpu: NONE}) { job { id } } }`,
  );
  await using visitor = await visit(browser, app, { as: ada });
  await visitor.page.goto('/ada/-/jobs/held');
  await visitor.page.getByText('Running').first().waitFor();
  const said = visitor.page.waitForEvent('console');
  const given = `const [url, token] = ${JSON.stringify([app.base, ada.token])};`;
  await visitor.page.evaluate(`(async () => { ${given} ${example} })()`);
  expect((await said).text()).toMatch(/^held /);
  visitor.expectQuiet();
});

test('the session of the dashboard is not used', async () => {
  await using visitor = await visit(browser, app, { as: ada });
  await visitor.page.goto('/');
  const library = await importLibrary(visitor.page);
  const answer = await library.evaluate(
    ({ Client }, url) => new Client({ url }).graphql('{ viewer { username } }'),
    app.base,
  );
  expect(answer).toEqual({ viewer: null });
});
