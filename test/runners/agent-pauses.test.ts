/** Agents that lose their server at the same moment come back at different times. */
import { execFileSync } from 'node:child_process';
import { afterEach, expect, test, vi } from 'vitest';
import { buildBootstrap } from '../../src/runners/agent/bootstrap.ts';
import { AgentClient } from '../../src/runners/agent/client.ts';

afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
});

test('requests of an agent', async () => {
  vi.useFakeTimers();
  const answers = (failures: number) => {
    const fetch = vi.fn(async () => {
      if (fetch.mock.calls.length <= failures) throw new Error('no connection');
      return new Response();
    });
    return fetch;
  };
  const elapsed = async (random: number) => {
    vi.spyOn(Math, 'random').mockReturnValue(random);
    vi.stubGlobal('fetch', answers(8));
    const options = { url: 'http://worker', token: '', nonce: '', leaseMs: 3_600_000 };
    const begunAt = Date.now();
    const answered = new AgentClient(options).request('control', { timeoutMs: null });
    await vi.runAllTimersAsync();
    await answered;
    return Date.now() - begunAt;
  };
  // 100 ms, doubling to 5 s.
  expect([await elapsed(1), await elapsed(0.5), await elapsed(0)]).toEqual([16_300, 8_150, 0]);
});

/** Skips the pauses, prints them, and lets the lease end at the eighth failure. */
const WITHOUT_WAITING = `
  const pauses = [];
  globalThis.setTimeout = (act, ms) => { pauses.push(ms); setImmediate(act); };
  let checks = 0;
  Date.now = () => (++checks > 8 ? 2 : 0) * 3_600_000;
  globalThis.fetch = async () => { throw new Error('no connection'); };
  console.error = () => {};
  process.on('exit', () => console.log(JSON.stringify(pauses)));
`;

test('the start of an agent whose worker does not answer', () => {
  const script = buildBootstrap({ url: 'http://worker', attempt: 'att_1', expressions: {} });
  const pausesOfAgent = (): number[] => {
    try {
      execFileSync(process.execPath, ['--input-type=module'], {
        input: script.replace(/^(import[^\n]*\n)+/, `$&${WITHOUT_WAITING}`),
        stdio: ['pipe', 'pipe', 'inherit'],
      });
    } catch (error) {
      return JSON.parse((error as { stdout: Buffer }).stdout.toString());
    }
    throw new Error('the agent has found a server');
  };
  const [one, other] = [pausesOfAgent(), pausesOfAgent()];
  expect(one).toHaveLength(7);
  expect(other).toHaveLength(7);
  expect(one).not.toEqual(other);
  const limits = [100, 200, 400, 800, 1_600, 3_200, 5_000];
  expect(one.every((ms, i) => ms >= 0 && ms <= (limits[i] ?? 0))).toBe(true);
});
