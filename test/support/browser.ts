/**
 * Drives the dashboard in Debian's Chromium with Playwright, against the real server.
 *
 *   const browser = await openBrowser();           // once per file; afterAll(() => browser.close())
 *   await using visitor = await visit(browser, app, { as: alice });
 *   await visitor.page.goto('/alice');
 *   visitor.expectQuiet();                         // the browser reported no error and no warning
 */
import { fileURLToPath } from 'node:url';
import AxeBuilder from '@axe-core/playwright';
import { type Browser, type BrowserContext, chromium, type Page } from 'playwright-core';
import { expect } from 'vitest';
import type { Client, Loam } from './harness.ts';

/** Starts Chromium of Debian's package. */
const CHROMIUM = fileURLToPath(new URL('chromium.pl', import.meta.url));

/** Generous, for a busy machine; a wait ends as soon as its condition holds. */
export const PATIENCE_MS = 60_000;

/** @param args further options of the command line */
export function openBrowser(...args: string[]): Promise<Browser> {
  return chromium.launch({
    executablePath: CHROMIUM,
    args: [
      '--no-sandbox',
      '--disable-gpu',
      '--disable-quic',
      '--disable-dev-shm-usage',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
      '--no-first-run',
      ...args,
    ],
  });
}

export type Visitor = AsyncDisposable & {
  page: Page;
  context: BrowserContext;
  /** Problems so far: script errors, warnings, refused requests. */
  readonly complaints: string[];
  expectQuiet(): void;
};

export type Visit = {
  /** The signed-in user; unset: nobody is signed in. */
  as?: Client;
  width?: number;
  colorScheme?: 'light' | 'dark';
};

export async function visit(
  browser: Browser,
  { base }: Pick<Loam, 'base'>,
  { as, width = 1280, colorScheme = 'light' }: Visit = {},
): Promise<Visitor> {
  const context = await browser.newContext({
    baseURL: base,
    viewport: { width, height: 900 },
    colorScheme,
    reducedMotion: 'reduce',
  });
  context.setDefaultTimeout(PATIENCE_MS);
  if (as) await context.addCookies([await sessionOf(base, as)]);
  const complaints: string[] = [];
  context.on('console', (message) => {
    if (['error', 'warning'].includes(message.type()))
      complaints.push(`${message.page()?.url()}: ${message.text()}`);
  });
  context.on('weberror', (error) =>
    complaints.push(`${error.page()?.url()}: ${error.error().stack}`),
  );
  context.on('response', (response) => {
    if (response.status() >= 400) complaints.push(`${response.status()} ${response.url()}`);
  });
  return {
    page: await context.newPage(),
    context,
    complaints,
    expectQuiet: () => expect(complaints).toEqual([]),
    [Symbol.asyncDispose]: () => context.close(),
  };
}

/** The cookie of a new session, as the sign-in page sets it. */
async function sessionOf(base: string, { token }: Client) {
  const answer = await fetch(`${base}/login`, {
    method: 'POST',
    redirect: 'manual',
    headers: { origin: base },
    body: new URLSearchParams({ token: token as string }),
  });
  expect(answer.status).toBe(303);
  const [pair = ''] = (answer.headers.getSetCookie()[0] ?? '').split(';');
  const at = pair.indexOf('=');
  const [name, value] = [pair.slice(0, at), pair.slice(at + 1)];
  return { name, value, url: base, httpOnly: true, sameSite: 'Lax' as const };
}

/** Switches the theme and waits for the end of its colour transitions, which axe would report as low contrast. */
export async function setTheme(page: Page, colorScheme: 'light' | 'dark'): Promise<void> {
  await page.emulateMedia({ colorScheme });
  await page.evaluate(async (scheme) => {
    const frame = () => new Promise(requestAnimationFrame);
    while (!matchMedia(`(prefers-color-scheme: ${scheme})`).matches) await frame();
    await frame();
    await frame();
    // The icon of a running job turns without end.
    const ending = document
      .getAnimations()
      .filter(({ effect }) => effect?.getComputedTiming().endTime !== Number.POSITIVE_INFINITY);
    await Promise.allSettled(ending.map(({ finished }) => finished));
  }, colorScheme);
}

/** Legacy mode skips cross-origin frames, which the dashboard does not have, and avoids a blank page per check. */
const axe = (page: Page) => new AxeBuilder({ page }).setLegacyMode();

/** Axe finds no violation of WCAG 2.2 AA, and the page is no wider than its window. */
export async function expectUsable(page: Page): Promise<void> {
  await expectNone(
    page,
    axe(page).withTags(['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']),
  );
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  expect(overflow, `${page.url()} is wider than its window`).toBeLessThanOrEqual(0);
}

/** The checks of `expectUsable` that depend on colours. */
export function expectContrast(page: Page): Promise<void> {
  return expectNone(page, axe(page).withRules(['color-contrast', 'link-in-text-block']));
}

async function expectNone(page: Page, checks: AxeBuilder): Promise<void> {
  const { violations } = await checks.analyze();
  const found = violations.map(({ id, nodes }) => `${id}: ${nodes.map((n) => n.html).join(' ')}`);
  expect(found, page.url()).toEqual([]);
}
