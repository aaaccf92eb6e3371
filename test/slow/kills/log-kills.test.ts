/**
 * Two kills of the server and a network that drops everything, while `loam run` and `loam logs -f` follow 100,000 lines:
 * each line comes once and in order, and the exit code is that of the job.
 */
import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { expect, test } from 'vitest';
import { openCuttableProxy } from '../../support/cut.ts';
import { eventually } from '../../support/eventually.ts';
import { startKillableServer } from '../../support/kills/killable-server.ts';
import { LoamUser } from '../../support/loam-command.ts';
import { needs } from '../../support/needs.ts';

const LINES = 100_000;
const PART = LINES / 4;
/** Lines of a part that have arrived when its fault occurs. */
const BEFORE = 2_000;
/** A client takes a connection for lost after 45 s of silence. */
const NOTICED_MS = 90_000;

test('loam run and loam logs show each line once', { timeout: 600_000 }, async (ctx) => {
  needs(ctx, 'bubblewrap');
  // Jobs ask the test for the next part.
  const server = await startKillableServer(ctx, { LOAM_JOB_NETWORK: 'host' });
  const { admin, port, token, cleanup } = server;
  const proxy = cleanup.use(openCuttableProxy());
  const env = { LOAM_URL: `http://${await proxy.before(port)}`, LOAM_TOKEN: token };
  await admin.post('/auth/v1/repository/admin', { name: 'code' });

  const waiting: Socket[] = [];
  const gate = createServer((socket) => waiting.push(socket.on('error', () => {})));
  gate.listen(0, '127.0.0.1');
  await once(gate, 'listening');
  cleanup.defer(() => void gate.close());
  const goOn = async () => {
    await eventually(() => expect(waiting).toHaveLength(1));
    waiting.pop()?.end('\n');
  };

  const user = cleanup.use(await LoamUser.open());
  const next = `read -r < /dev/tcp/127.0.0.1/${(gate.address() as AddressInfo).port}`;
  const script = [0, 1, 2, 3].map((part) => `seq ${part * PART + 1} ${(part + 1) * PART}`);
  const run = user.start(
    [
      ...['run', '--repo', 'admin/code', '--name', 'long', '--'],
      ...['bash', '-c', `${script.join(`; ${next}; `)}; exit 7`],
    ],
    { env },
  );
  await run.said(/Job admin\/long: /);
  const logs = user.start(['logs', '-f', 'admin/long'], { env });
  const both = [run, logs];
  const reached = (line: number) => {
    for (const { stdout } of both) expect(lastLine(stdout)).toBeGreaterThanOrEqual(line);
  };

  for (const part of [0, 1]) {
    await eventually(() => reached(part * PART + BEFORE));
    await server.kill();
    await server.start();
    await eventually(() => reached((part + 1) * PART));
    await goOn();
  }
  await eventually(() => reached(2 * PART + BEFORE));
  proxy.silence();
  await eventually(() => {
    for (const { stderr } of both) expect(stderr).toContain('the connection is silent');
  }, NOTICED_MS);
  await proxy.mend();
  await eventually(() => reached(3 * PART), NOTICED_MS);
  await goOn();

  const [ran, logged] = await Promise.all(both.map((command) => command.result()));
  const expected = Array.from({ length: LINES }, (_, at) => `${at + 1}\n`).join('');
  expect(ran?.stdout === expected).toBe(true);
  expect(logged?.stdout === expected).toBe(true);
  expect([ran?.code, logged?.code]).toEqual([7, 0]);
});

function lastLine(stdout: string): number {
  return Number(/(\d+)\n[^\n]*$/.exec(stdout.slice(-40))?.[1] ?? 0);
}
