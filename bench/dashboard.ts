/**
 * `npm run bench:dashboard [tabs] [seconds] [parts]`: the costs of the pages in Debian's Chromium.
 *
 * - The bytes and the first paint of a first load, against `/login`, a page without a script.
 * - A log of a million lines: the time from navigation to the last line on screen, and the memory of the page.
 * - The same page while a job prints 5,000 lines/s: frames per second, the longest frame, and the memory afterwards.
 * - Many tabs of a browser that follow a job: the time from printing a line until it is on screen in the visible tab.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { type BrowserContext, chromium, type Page } from 'playwright-core';
import { median, openBench, TOKEN } from './repository.ts';
import { openWindow } from './tabs.ts';

const TABS = Number(process.argv[2] ?? 50);
const SECONDS = Number(process.argv[3] ?? 20);
const LOADS = 5;
const LINES = 1_000_000;
const FAST = 5_000;
const PATIENCE_MS = 180_000;
/** A hidden tab draws no lines, but its log is complete. */
const HAS_LOG = "document.querySelector('[role=log]') !== null";

await using bench = await openBench();
const { base } = bench.server;
await bench.graphql(
  'mutation { createRepository(input: {namespace: "admin", name: "code"}) { repository { id } } }',
);
const browser = await chromium.launch({
  executablePath: '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--disable-background-networking'],
});
await using cleanup = new AsyncDisposableStack();
cleanup.defer(() => browser.close());

const signedIn = await newContext();
const cookies = await signedIn.cookies();
const parts: Record<string, () => Promise<void>> = { firstLoads, million, growing, manyTabs };
const wanted = process.argv[4]?.split(',') ?? Object.keys(parts);
for (const name of wanted) await parts[name]?.();

async function newContext(): Promise<BrowserContext> {
  const context = await browser.newContext({ baseURL: base });
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  await page.goto('/login');
  await page.fill('input[name=token]', TOKEN);
  await page.click('button');
  await page.waitForURL(`${base}/`);
  await page.close();
  return context;
}

/** Each page loads in a new browser with only the session cookie. The pages alternate. */
async function firstLoads(): Promise<void> {
  const paints: Record<string, number[]> = { '/': [], '/login': [] };
  const bytes: Record<string, number> = {};
  for (let load = 0; load < LOADS; load++)
    for (const [path, times] of Object.entries(paints)) {
      const context = await browser.newContext({ baseURL: base });
      if (path === '/') await context.addCookies(cookies);
      const page = await context.newPage();
      await page.goto(path);
      await page.getByRole('heading', { level: 1 }).waitFor();
      // The entry is added one frame after the heading.
      await page.waitForFunction(() => performance.getEntriesByName('first-contentful-paint')[0]);
      const measured = await page.evaluate(() => ({
        paint: performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? Number.NaN,
        bytes: [
          ...performance.getEntriesByType('navigation'),
          ...performance.getEntriesByType('resource'),
        ]
          .map((entry) => (entry as PerformanceResourceTiming).encodedBodySize)
          .reduce((sum, size) => sum + size, 0),
      }));
      times.push(measured.paint);
      bytes[path] = measured.bytes;
      await context.close();
    }
  const [app = 0, plain = 0] = [median(paints['/'] ?? []), median(paints['/login'] ?? [])];
  console.log(
    `first load: ${kb(bytes['/'])} packed (goal 180 KB); first paint ${ms(app)} against ${ms(plain)} of a page without a script: ${(app / plain).toFixed(1)}× (goal 1 s)`,
  );
}

async function million(): Promise<void> {
  const print = `i=0; while [ $i -lt ${LINES} ]; do i=$((i+1)); echo "line $i of a million, about as long as lines are"; done`;
  await run('million', print);
  await until('million', 'SUCCEEDED');
  const page = await signedIn.newPage();
  const begin = performance.now();
  await page.goto('/admin/-/jobs/million');
  await page.getByText(`line ${LINES} of a million`).waitFor();
  const took = performance.now() - begin;
  const heap = await heapOf(page);
  await page.goto('/admin/-/jobs/million#L1');
  const back = performance.now();
  await page.reload();
  await page.getByText('line 1 of a million', { exact: false }).first().waitFor();
  console.log(
    `a log of a million lines: its last line on screen after ${ms(took)}, its first after ${ms(performance.now() - back)}; ${mb(heap)} of heap`,
  );
  await page.close();
}

async function growing(): Promise<void> {
  await run('growing', printer(FAST));
  const page = await signedIn.newPage();
  await page.goto('/admin/-/jobs/growing');
  await page.locator('[data-seq]').first().waitFor();
  const { frames, empty } = await page.getByRole('log').evaluate(async (log, seconds) => {
    const times: number[] = [];
    let empty = 0;
    const end = performance.now() + seconds * 1_000;
    const { bottom } = log.getBoundingClientRect();
    while (performance.now() < end) {
      times.push(await new Promise<number>((resolve) => requestAnimationFrame(resolve)));
      // In a task after the frame, its lines are laid out.
      await new Promise((resolve) => setTimeout(resolve));
      const rows = [...log.querySelectorAll('[data-seq]')].map((row) =>
        row.getBoundingClientRect(),
      );
      if (!rows.some((row) => row.top < bottom - 30 && row.bottom > bottom - 30)) empty++;
    }
    const frames = times.slice(1).map((time, index) => time - (times[index] as number));
    return { frames, empty };
  }, SECONDS);
  const shown = Number(await page.locator('[data-log-lines]').getAttribute('data-log-lines'));
  const heap = await heapOf(page);
  await cancel('growing');
  console.log(
    `while ${FAST} lines a second come: ${Math.round(1_000 / mean(frames))} frames a second, the longest ${ms(Math.max(...frames))}, p99 ${ms(quantile(frames, 0.99))}, ${Math.round((empty / frames.length) * 100)}% of them without lines at the end; ${shown} lines after ${SECONDS} s, ${mb(heap)} of heap`,
  );
  await page.close();
}

/** In one window with one visible tab, as for a person. */
async function manyTabs(): Promise<void> {
  await run('followed', printer(10));
  await using window = await openWindow(cookies, base);
  const url = `${base}/admin/-/jobs/followed`;
  for (let tab = 1; tab < TABS; tab++) {
    const hidden = await window.open(url, { inSight: false });
    await hidden.until(HAS_LOG);
  }
  const tab = await window.open(url, { inSight: true });
  await tab.until(HAS_LOG);
  await tab.evaluate(`(${watchLines})()`);
  const arrived = await arrivals(SECONDS);
  const late = (await tab.evaluate('window.late')) as number[];
  await cancel('followed');
  console.log(
    `${TABS} tabs that follow a job: a line is on screen p50 ${ms(quantile(late, 0.5))}, p99 ${ms(quantile(late, 0.99))}, at most ${ms(Math.max(...late))} after it was printed (goal p99 250 ms); ${late.length} lines; a program that follows it meanwhile gets a line after p50 ${ms(quantile(arrived, 0.5))}, p99 ${ms(quantile(arrived, 0.99))}`,
  );
}

/** The share of the server: the delay of lines at a program that follows the job beside the pages. */
async function arrivals(seconds: number): Promise<number[]> {
  const late: number[] = [];
  const begun = Date.now();
  const over = AbortSignal.timeout(seconds * 1_000);
  const answer = await fetch(`${base}/admin/job/followed/logs?stream=true&tail=1`, {
    headers: { authorization: `Bearer ${TOKEN}`, accept: 'text/event-stream' },
    signal: over,
  });
  try {
    for await (const text of answer.body?.pipeThrough(new TextDecoderStream()) ?? [])
      for (const [, at] of text.matchAll(/at (\d{13}) /g))
        if (Number(at) > begun) late.push(Date.now() - Number(at));
  } catch (error) {
    if (!over.aborted) throw error;
  }
  return late;
}

/** Runs in the page. Each line has the time when it was printed, by the clock of the same machine; it counts once painted. */
function watchLines(): void {
  const late: number[] = [];
  Object.assign(window, { late });
  let newest = Date.now();
  new MutationObserver(() => {
    const found: number[] = [];
    for (const row of document.querySelectorAll('[data-seq]')) {
      const at = Number(/at (\d{13}) /.exec(row.textContent ?? '')?.[1]);
      if (at > newest) found.push(at);
    }
    newest = Math.max(newest, ...found);
    // A task that is scheduled in a frame runs after the frame was painted.
    requestAnimationFrame(() =>
      setTimeout(() => {
        const now = Date.now();
        late.push(...found.map((at) => now - at));
      }),
    );
  }).observe(document.body, { childList: true, subtree: true, characterData: true });
}

/** Checks more often than lines are due, so that the rate is even. */
function printer(rate: number): string {
  return `exec node -e '
    const begun = Date.now();
    let i = 0;
    setInterval(() => {
      for (; begun + i * ${1_000 / rate} <= Date.now(); i++)
        process.stdout.write("at " + Date.now() + " step " + i + " of the training: loss 0.4173\\n");
    }, 5)'`;
}

async function run(name: string, command: string): Promise<void> {
  await bench.graphql(
    `mutation { createJob(input: {namespace: "admin", name: ${JSON.stringify(name)}, repo: "admin/code", gpu: NONE, command: ${JSON.stringify(command)}}) { job { id } } }`,
  );
  if (name !== 'million') await until(name, 'RUNNING');
}

async function until(name: string, status: string): Promise<void> {
  for (;;) {
    const { job } = await bench.graphql(`{ job(namespace: "admin", name: "${name}") { status } }`);
    if (job.status === status) return;
    if (job.status !== 'QUEUED' && job.status !== 'RUNNING')
      throw new Error(`${name} is ${job.status}`);
    await delay(50);
  }
}

function cancel(name: string): Promise<unknown> {
  return bench.graphql(
    `mutation { cancelJob(input: {namespace: "admin", name: "${name}"}) { job { id } } }`,
  );
}

/** After a garbage collection. */
async function heapOf(page: Page): Promise<number> {
  const session = await page.context().newCDPSession(page);
  await session.send('HeapProfiler.collectGarbage');
  const { usedSize } = await session.send('Runtime.getHeapUsage');
  await session.detach();
  return usedSize;
}

function quantile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN;
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

function ms(value: number): string {
  return `${Math.round(value)} ms`;
}

function mb(bytes: number): string {
  return `${(bytes / 1e6).toFixed(0)} MB`;
}

function kb(bytes = Number.NaN): string {
  return `${(bytes / 1_000).toFixed(0)} KB`;
}
