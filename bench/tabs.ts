/**
 * Tabs in one window of Debian's Chromium, of which only one is visible. Playwright makes every page visible, so that each
 * would be drawn; therefore this module talks to the browser directly.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { Cookie } from 'playwright-core';

export type Tab = {
  /** Evaluates an expression in the page, and waits if its value is a promise. */
  evaluate(expression: string): Promise<unknown>;
  /** Waits until an expression is true, also while the page is loading. */
  until(expression: string): Promise<void>;
};

type Evaluated = { result: { value: unknown }; exceptionDetails?: { text: string } };

export type Window = AsyncDisposable & {
  open(url: string, options: { inSight: boolean }): Promise<Tab>;
};

export async function openWindow(cookies: readonly Cookie[], base: string): Promise<Window> {
  await using cleanup = new AsyncDisposableStack();
  const folder = await mkdtemp(join(tmpdir(), 'loam-tabs-'));
  cleanup.defer(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }));
  const browser = spawn(
    '/usr/bin/chromium',
    [
      ...['--headless=new', '--no-sandbox', '--disable-gpu', '--disable-background-networking'],
      ...['--no-first-run', '--remote-debugging-port=0', `--user-data-dir=${folder}`],
      'about:blank',
    ],
    { stdio: ['ignore', 'ignore', 'pipe'] },
  );
  cleanup.defer(() => ended(browser));
  const socket = new WebSocket(await addressOf(browser));
  await once(socket, 'open');

  let last = 0;
  type Answer = { id?: number; result: Record<string, unknown>; error?: { message: string } };
  const waiting = new Map<number, (answer: Answer) => void>();
  socket.onmessage = ({ data }) => {
    const answer = JSON.parse(String(data)) as Answer;
    waiting.get(answer.id ?? 0)?.(answer);
    waiting.delete(answer.id ?? 0);
  };
  async function send(method: string, params: object, sessionId?: string) {
    const id = ++last;
    const answered = new Promise<Answer>((resolve) => waiting.set(id, resolve));
    socket.send(JSON.stringify({ id, method, params, sessionId }));
    const { result, error } = await answered;
    if (error) throw new Error(`${method}: ${error.message}`);
    return result;
  }

  await send('Storage.setCookies', {
    cookies: cookies.map(({ name, value }) => ({ name, value, url: base })),
  });
  const kept = cleanup.move();
  return {
    async open(url, { inSight }) {
      const { targetId } = await send('Target.createTarget', { url, background: !inSight });
      const { sessionId } = await send('Target.attachToTarget', { targetId, flatten: true });
      const evaluate = async (expression: string) => {
        const params = { expression, awaitPromise: true, returnByValue: true };
        const answer = await send('Runtime.evaluate', params, sessionId as string);
        const { result, exceptionDetails: thrown } = answer as Evaluated;
        if (thrown) throw new Error(`${url}: ${thrown.text}`);
        return result.value;
      };
      return {
        evaluate,
        async until(expression) {
          // Evaluation fails while a new document replaces the old one.
          while (!(await evaluate(expression).catch(() => false))) await delay(25);
        },
      };
    },
    [Symbol.asyncDispose]: () => kept.disposeAsync(),
  };
}

async function addressOf(browser: ChildProcess): Promise<string> {
  let said = '';
  for await (const chunk of browser.stderr ?? []) {
    said += chunk;
    const [, address] = /listening on (ws:\S+)/.exec(said) ?? [];
    if (address) {
      browser.stderr?.resume();
      return address;
    }
  }
  throw new Error(`Chromium ended: ${said}`);
}

async function ended(browser: ChildProcess): Promise<void> {
  browser.kill();
  if (browser.exitCode === null && browser.signalCode === null) await once(browser, 'exit');
}
