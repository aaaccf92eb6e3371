/**
 * `npm run bench:dashboard [tabs] [seconds] [parts]`: the costs of the pages in Debian's Chromium.
 *
 * - The bytes and the first paint of a first load, against `/login`, a page without a script.
 * - A log of a million lines: the time from navigation to the last line on screen, and the memory of the page.
 * - The same page while a job prints 5,000 lines/s: frames per second, the longest frame, and the memory afterwards.
 * - Ten charts of a running job that prints a point of each ten times a second, after 1,000 points: frames per second against those of
 *   an empty page, and tasks of more than 50 ms.
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
const CHARTS = 10;
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
const parts: Record<string, () => Promise<void>> = {
  firstLoads,
  million,
  growing,
  charts,
  manyTabs,
};
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

async function charts(): Promise<void> {
  const print = `"::metric::" + Array.from({ length: ${CHARTS} }, (_, m) => "m" + m + "=" + Math.sin(i / (m + 10))).join(" ") + "\\n"`;
  await run('charts', printer(10, print, 1_000));
  const page = await signedIn.newPage();
  // As high as all charts.
  await page.setViewportSize({ width: 1280, height: 2400 });
  const empty = await measureFrames(page);
  await page.goto('/admin/-/jobs/charts');
  for (let chart = 0; chart < CHARTS; chart++)
    await page.locator(`[data-metric="m${chart}"] canvas`).waitFor();
  const live = await measureFrames(page);
  await cancel('charts');
  const rate = ({ frames }: { frames: number[] }) => Math.round(1_000 / mean(frames));
  console.log(
    `${CHARTS} charts with 10 points a second each: ${rate(live)} frames a second (goal 50) against ${rate(empty)} of an empty page, the longest ${ms(Math.max(...live.frames))}, p99 ${ms(quantile(live.frames, 0.99))}; ${live.longTasks.length} tasks of more than 50 ms in ${SECONDS} s, together ${ms(live.longTasks.reduce((sum, one) => sum + one, 0))}; the main thread uses ${ms(live.cpu)} of CPU a second, that of an empty page ${ms(empty.cpu)}`,
  );
  await page.close();
}

type Frames = {
  /** The times between frames. */
  frames: number[];
  longTasks: number[];
  /** Milliseconds of CPU that the main thread uses in a second, which do not depend on what else the machine does. */
  cpu: number;
};

async function measureFrames(page: Page): Promise<Frames> {
  const session = await page.context().newCDPSession(page);
  await session.send('Performance.enable', { timeDomain: 'threadTicks' });
  const cpuSeconds = async () => {
    const { metrics } = await session.send('Performance.getMetrics');
    return metrics.find(({ name }) => name === 'TaskDuration')?.value ?? Number.NaN;
  };
  const before = await cpuSeconds();
  const measured = await page.evaluate(async (seconds) => {
    const longTasks: number[] = [];
    const observer = new PerformanceObserver((list) => {
      longTasks.push(...list.getEntries().map(({ duration }) => duration));
    });
    observer.observe({ type: 'longtask' });
    const times: number[] = [];
    const end = performance.now() + seconds * 1_000;
    while (performance.now() < end)
      times.push(await new Promise<number>((resolve) => requestAnimationFrame(resolve)));
    observer.disconnect();
    const frames = times.slice(1).map((time, index) => time - (times[index] as number));
    return { frames, longTasks };
  }, SECONDS);
  const cpu = (((await cpuSeconds()) - before) * 1_000) / SECONDS;
  await session.detach();
  return { ...measured, cpu };
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

const LINE = '"at " + Date.now() + " step " + i + " of the training: loss 0.4173\\n"';

/**
 * Checks more often than lines are due, so that the rate is even.
 * @param line an expression in which `i` is the number of the line
 * @param atOnce lines that it prints at its start
 */
function printer(rate: number, line = LINE, atOnce = 0): string {
  return `exec node -e '
    const begun = Date.now();
    let i = 0;
    setInterval(() => {
      for (; begun + (i - ${atOnce}) * ${1_000 / rate} <= Date.now(); i++) process.stdout.write(${line});
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
