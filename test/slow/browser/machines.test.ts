/** The page Machines of the operator, and the machines of a namespace in its settings. */
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { joinMachine } from '../../../src/jobs/machines/machines.ts';
import {
  expectContrast,
  expectUsable,
  openBrowser,
  setTheme,
  visit,
} from '../../support/browser.ts';
import { fakeRunner } from '../../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { submit, until } from '../../support/submit.ts';

let app: TestApp;
let ada: Client;
let browser: Browser;
/** `LOAM_TEST_PICTURES=folder` stores pictures of the pages. */
const pictures = process.env.LOAM_TEST_PICTURES;

beforeEach((ctx) => needs(ctx, 'chromium'));
beforeAll(async () => {
  if (!has('chromium')) return;
  app = await startApp({ overrides: { runner: fakeRunner({ images: true }) } });
  ada = await app.user('ada');
  browser = await openBrowser();
});
afterAll(async () => {
  await browser?.close();
  await app?.[Symbol.asyncDispose]();
});

const FACTS = {
  hostname: 'gpu-box.lab.example',
  os: 'linux',
  arch: 'x64',
  node: '24.1.0',
  program: '1.0.0',
  cpus: 32,
  memoryBytes: 128 * 2 ** 30,
  gpus: [0, 1].map((index) => ({
    index,
    name: 'NVIDIA GeForce RTX 4090',
    uuid: `GPU-${index}`,
    memoryBytes: 24 * 2 ** 30,
  })),
  withImage: true,
  withoutImage: true,
  slots: 8,
  notes: [] as string[],
};

const joinAs = (token: string, name: string, facts: Partial<typeof FACTS> = {}) =>
  joinMachine(app.app.services as never, token, { name, facts: { ...FACTS, ...facts } });

async function takePicture(page: Page, name: string): Promise<void> {
  if (!pictures) return;
  await mkdir(pictures, { recursive: true });
  for (const [width, scheme] of [
    [1280, 'light'],
    [375, 'light'],
    [1280, 'dark'],
  ] as const) {
    await page.setViewportSize({ width, height: 900 });
    await setTheme(page, scheme);
    const path = join(pictures, `${name}-${width}-${scheme}.png`);
    await page.screenshot({ path, fullPage: true });
  }
  await page.setViewportSize({ width: 1280, height: 900 });
}

async function expectUsableEverywhere(page: Page): Promise<void> {
  for (const width of [1280, 375]) {
    await page.setViewportSize({ width, height: 900 });
    await setTheme(page, 'light');
    await expectUsable(page);
    await setTheme(page, 'dark');
    await expectContrast(page);
  }
  await page.setViewportSize({ width: 1280, height: 900 });
}

/** The token in the command of the dialog. */
async function addMachine(page: Page, name: string): Promise<string> {
  await page.getByRole('button', { name: 'Add a machine' }).first().click();
  await page.getByLabel('Name of the machine').fill(name);
  await page.getByRole('button', { name: 'Show the command' }).click();
  const command = await page.getByRole('region', { name: 'Command' }).innerText();
  expect(command).toContain(`curl -fsSL ${app.base}/worker/install.sh | sh -s -- --token `);
  expect(command).toContain(`--name ${name}`);
  return /loam_worker_\w+/.exec(command)?.[0] ?? '';
}

test('an operator adds, drains, resumes and removes machines', async () => {
  await using visitor = await visit(browser, app, { as: app.admin });
  const { page } = visitor;
  await page.goto('/settings/server/machines');
  await page.getByText('No machines yet').waitFor();
  await takePicture(page, 'empty');
  const token = await addMachine(page, 'box-1');
  await takePicture(page, 'command');
  await expectUsable(page);
  await joinAs(token, 'box-1');
  await page.getByRole('button', { name: 'I have copied it' }).click();
  // Without a reload.
  await page.getByRole('heading', { name: 'box-1' }).waitFor();

  await joinAs(token, 'old-box', {
    gpus: [],
    withImage: false,
    notes: ['Docker does not answer, so jobs with an image are refused: permission denied'],
  });
  await joinAs(token, 'silent');
  await app.pool.query(
    `update machines set last_seen_at = now() - interval '3 minutes' where name = 'silent'`,
  );
  await submit(ada, { namespace: 'ada', name: 'train', image: 'busybox', command: 'hold' });
  await until(ada, 'ada', 'train', 'RUNNING');
  await app.pool.query(
    `update job_attempts set machine = 'box-1', runner = 'joined', handle = handle || '{"gpuIndices": "1"}'`,
  );
  await app.pool.query(`update jobs set gpu = 't4'`);
  const history = Array.from({ length: 60 }, (_, minute) => ({
    at: Date.now() - (59 - minute) * 60_000,
    cpuPercent: 40 + 35 * Math.sin(minute / 6),
    memoryBytes: (20 + minute) * 2 ** 30,
    gpuPercent: minute < 20 ? 0 : 92 - (minute % 5),
    jobs: minute < 20 ? 0 : 1,
  }));
  await app.pool.query(`update machines set history = $1 where name = 'box-1'`, [
    JSON.stringify(history),
  ]);
  await page.goto('/ada/-/jobs/train');
  await page.getByRole('link', { name: 'box-1' }).click();
  await page.waitForURL('**/settings/server/machines#machine-box-1');
  await using user = await visit(browser, app, { as: ada });
  await user.page.goto('/ada/-/jobs/train');
  await user.page.getByText('on box-1').waitFor();
  expect(await user.page.getByRole('link', { name: 'box-1' }).count()).toBe(0);
  user.expectQuiet();
  await page
    .getByText('2 × RTX-4090 (NVIDIA GeForce RTX 4090, 24.0 GiB each): 1 free, 1: ada/train')
    .waitFor();
  await page.getByRole('img', { name: /^GPUs: \d+%, peak 92%$/ }).waitFor();
  await page.getByText('Docker does not answer').waitFor();
  await page.getByText('The catalogue of hardware lacks 1 model').first().click();
  const entries = page.getByRole('region', { name: 'Entries of the catalogue' });
  expect(await entries.innerText()).toMatch(
    /^- \{ name: RTX-4090, memory_gb: 24, price_per_hour: "0.00"/,
  );
  await takePicture(page, 'machines');
  await expectUsableEverywhere(page);

  await page.getByRole('button', { name: 'Drain box-1' }).click();
  await page.getByLabel('Deadline in minutes').fill('120');
  await takePicture(page, 'drain');
  await expectUsable(page);
  await page.getByRole('button', { name: 'Drain', exact: true }).click();
  await page.getByText('Jobs that still run are queued again').waitFor();
  await page.getByRole('button', { name: 'Resume box-1' }).click();
  await page.getByRole('button', { name: 'Drain box-1' }).waitFor();

  await page.getByRole('button', { name: 'Remove box-1' }).click();
  await page.getByRole('button', { name: 'Remove machine' }).click();
  await page.getByText('The machine runs 1 job').waitFor();
  await page.getByLabel('Remove it although it runs 1 job').check();
  await page.getByRole('button', { name: 'Remove machine' }).click();
  await page.getByRole('heading', { name: 'box-1', exact: true }).waitFor({ state: 'detached' });

  await page.getByRole('button', { name: 'Revoke box-1' }).click();
  await page.getByText('old-box, silent.').waitFor();
  await page.getByRole('button', { name: 'Revoke token' }).click();
  await page.getByText('No machines yet').waitFor();
  visitor.expectQuiet();
});

test('an admin adds a machine to a namespace, and members see it', async () => {
  const bob = await app.user('bob');
  await app.organization('lab', { ada: 'ADMIN', bob: 'READ' });
  await using visitor = await visit(browser, app, { as: ada });
  const { page } = visitor;
  await page.goto('/lab/-/settings');
  const token = await addMachine(page, 'lab-box');
  await joinAs(token, 'lab-box');
  await page.getByRole('button', { name: 'I have copied it' }).click();
  await page.getByRole('heading', { name: 'lab-box' }).waitFor();
  await page.getByText('machines: lab-box').waitFor();
  await takePicture(page, 'namespace');
  await expectUsableEverywhere(page);
  visitor.expectQuiet();

  await using member = await visit(browser, app, { as: bob });
  await member.page.goto('/lab/-/settings');
  await member.page.getByRole('heading', { name: 'lab-box' }).waitFor();
  expect(await member.page.getByRole('button', { name: /Drain|Remove|Add/ }).count()).toBe(0);
  await member.page.goto('/lab/-/activity');
  const event = member.page.locator('[data-event=MACHINE_JOINED]');
  await event.getByRole('link', { name: 'lab-box' }).click();
  await member.page.waitForURL('**/lab/-/settings#machine-lab-box');
  await member.page.locator('#machine-lab-box').getByRole('heading').waitFor();
  member.expectQuiet();
});
