/** What is free and what it costs, in the form of a new job, and where a waiting job would start sooner. */
import { writeFileSync } from 'node:fs';
import { mkdtempDisposable } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { CurrentCatalogue } from '../../../src/base/config/hardware-file.ts';
import { openBrowser, visit } from '../../support/browser.ts';
import { eventually } from '../../support/eventually.ts';
import { fakeRunner } from '../../support/fake-runner.ts';
import { startApp } from '../../support/harness.ts';
import { submit } from '../../support/submit.ts';

let browser: Browser;
beforeAll(async () => {
  browser = await openBrowser();
});
afterAll(() => browser.close());

test('the form and a waiting job show the catalogue, and the form takes the job over', async () => {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'loam-hardware-'));
  const file = join(folder.path, 'hardware.yml');
  writeFileSync(
    file,
    `currency: EUR
gpus:
  - { name: RTX-4090, memory_gb: 24, price_per_hour: "0.42" }
  - { name: H200, memory_gb: 141, price_per_hour: "3.10" }
regions: [lab]
cpus: { min: 1, max: 128 }
`,
  );
  const memoryBytes = 256 * 2 ** 30;
  const gpus = { 'RTX-4090': 1, H200: 8, 'A100-80GB/1g.10gb': 3 };
  const runner = fakeRunner({ images: true, machines: [{ id: 'a', cpus: 64, memoryBytes, gpus }] });
  const hardware = new CurrentCatalogue(file);
  await using app = await startApp({ config: { hardware }, overrides: { runner } });
  const ada = await app.user('ada', 'unlimited');
  for (const name of ['first', 'second'])
    await submit(ada, { namespace: 'ada', name, image: 'x', command: 'hold', gpu: 'RTX-4090' });
  await eventually(() => expect(runner.running()).toHaveLength(1));

  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/new/job');
  const gpu = page.getByLabel('GPU', { exact: true });
  await gpu.selectOption('RTX-4090');
  expect(await gpu.locator('option').allTextContents()).toEqual([
    'RTX-4090, 0 of 1 free, €0.42 an hour, 24 GB',
    'H200, 8 of 8 free, €3.10 an hour, 141 GB',
    'A100-80GB/1g.10gb, 3 of 3 free, €0.00 an hour',
    'None',
  ]);
  await page.getByText('1 job waiting.').waitFor();
  await gpu.selectOption('H200');
  await page.getByText('No job waits. A new job starts now.').waitFor();

  const own = { id: 'own', cpus: 8, memoryBytes, gpus: { B200: 1 }, slots: 4 };
  await app.organization('team', { ada: 'WRITE' });
  await app.pool.query(
    `insert into workers (id, runner, machines, heartbeat_at)
     select 'w', 'clusters', jsonb_build_array($1::jsonb || jsonb_build_object('namespaceId', id)), now() + interval '1 hour'
     from namespaces where name = 'team'`,
    [own],
  );
  // The availability is read at most every two seconds.
  await eventually(async () => {
    const { jobOptions } = await ada.gql('{ jobOptions(namespace: "team") { gpus { name } } }');
    expect(jobOptions.gpus).toContainEqual({ name: 'B200' });
  });
  await page.goto('/new/job');
  const namespace = page.getByLabel('Namespace', { exact: true });
  await namespace.selectOption('team');
  await gpu.selectOption('B200');
  await gpu.getByText('B200, 1 of 1 free, €0.00 an hour').waitFor({ state: 'attached' });
  await namespace.selectOption('ada');
  await gpu.getByText('B200, not offered here').waitFor({ state: 'attached' });
  await page.getByRole('button', { name: 'Create job' }).click();
  await page.getByText('Choose a GPU that is offered to ada').waitFor();

  await page.goto('/ada/-/jobs/second');
  const sooner = page.locator('[data-sooner]');
  await sooner.waitFor();
  expect(await sooner.locator('li').allTextContents()).toEqual([
    '1 × A100-80GB/1g.10gb in lab: now, €0.288 an hour',
    '1 × H200 in lab: now, €3.39 an hour',
  ]);
  await sooner.getByRole('link').click();
  await page.getByText('With the settings of second').waitFor();
  visitor.expectQuiet();
});
