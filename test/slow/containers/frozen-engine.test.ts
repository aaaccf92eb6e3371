/** An engine that stops in the middle of a response: frozen, cut off or killed. */
import { PassThrough } from 'node:stream';
import { buffer, text } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import { beforeEach, expect, onTestFinished, test } from 'vitest';
import { readArtifacts } from '../../../src/runners/docker/artifacts.ts';
import { connect } from '../../../src/runners/docker/engine.ts';
import { openImageUsers } from '../../../src/runners/docker/image-users.ts';
import { followLog } from '../../../src/runners/docker/logs.ts';
import { readChunks } from '../../../src/runners/docker/streams.ts';
import { RunnerUnavailable } from '../../../src/runners/runner.ts';
import { DEFAULT_UIDS } from '../../../src/runners/supervisor/accounts.ts';
import { BUSYBOX, DOCKER, docker, dockerRunner } from '../../support/docker.ts';
import { type EngineProxy, engineProxy } from '../../support/engine-proxy.ts';
import { eventually } from '../../support/eventually.ts';
import { needs } from '../../support/needs.ts';
import { attemptSpec } from '../../support/runner.contract.ts';

const never = new AbortController().signal;
const reach = ({ host }: EngineProxy) => connect({ ...DOCKER, host });

beforeEach((ctx) => needs(ctx, 'docker', 'root'));

/** An image with a user name, so that the image's /etc/passwd must be read through the engine. */
async function imageOfUser(): Promise<string> {
  const container = await ended('echo app:x:4321:4322::/:/bin/sh >> /etc/passwd');
  const name = `loam-test/of-user-${container.slice(0, 12)}`;
  await docker('commit', '--change', 'USER app', container, name);
  onTestFinished(async () => void (await docker('rmi', name)));
  return name;
}

/** Creates an ended container that is removed after the test. */
async function ended(command: string): Promise<string> {
  const container = await docker('create', '--label', 'loam-test', BUSYBOX, 'sh', '-c', command);
  onTestFinished(async () => void (await docker('rm', '--force', container)));
  await docker('start', '--attach', container);
  return container;
}

test('cancelling a job while the users of its image are read leaves no container', async () => {
  const image = await imageOfUser();
  await using proxy = await engineProxy(DOCKER.host);
  await using made = await dockerRunner({ docker: { ...DOCKER, host: proxy.host } });
  proxy.held = /\/archive\?/;
  const abort = new AbortController();
  const spec = attemptSpec('true', { image });
  const prepared = made.runner.prepare(spec, abort.signal);
  prepared.catch(() => {});
  await eventually(() => expect(proxy.holding).toBe(1));
  abort.abort(new Error('cancelled'));
  await expect(prepared).rejects.toThrow('cancelled');
  expect(await docker('ps', '--all', '--quiet', '--filter', `ancestor=${image}`)).toBe('');
  await eventually(() => expect(proxy.holding).toBe(0));
  await made.runner.remove({ attempt: spec.id });
});

test.for(['frozen', 'killed'] as const)(
  'an engine that is %s while the users of an image are read counts as unavailable',
  async (how) => {
    const { Id, Config } = JSON.parse(await docker('inspect', await imageOfUser()))[0];
    const image = { id: Id, user: Config.User, volumes: [], bytes: 0 };
    await using proxy = await engineProxy(DOCKER.host);
    const labels = { 'loam-test': '' };
    const silentMs = how === 'frozen' ? 200 : 60_000;
    const options = { root: false, reserved: DEFAULT_UIDS, labels };
    const users = openImageUsers(reach(proxy), { ...options, silentMs });
    proxy.held = /\/archive\?/;
    const owner = users.resolveUser(image, null, never);
    owner.catch(() => {});
    await eventually(() => expect(proxy.holding).toBe(1));
    if (how === 'killed') proxy.breakOff();
    await expect(owner).rejects.toThrow(RunnerUnavailable);
    proxy.held = undefined;
    // A busy engine may be silent for longer.
    const patient = openImageUsers(reach(proxy), { ...options, silentMs: 60_000 });
    expect(await patient.resolveUser(image, null, never)).toEqual({
      uid: 4321,
      gid: 4322,
      isOfImage: true,
    });
    expect(await docker('ps', '--all', '--quiet', '--filter', `ancestor=${Id}`)).toBe('');
  },
);

test.for(['frozen', 'killed'] as const)(
  'an engine that is %s while it sends artifacts counts as unavailable',
  async (how) => {
    const container = await ended('echo made > /made');
    await using proxy = await engineProxy(DOCKER.host);
    const source = {
      engine: reach(proxy),
      container,
      attemptDir: '',
      owner: { uid: 0, gid: 0 },
      remote: true,
    };
    proxy.held = /\/archive\?/;
    const silentMs = how === 'frozen' ? 200 : 60_000;
    const artifacts = await readArtifacts(source, '/made', { silentMs });
    const read = artifacts && buffer(artifacts);
    read?.catch(() => {});
    await eventually(() => expect(proxy.holding).toBe(1));
    if (how === 'killed') proxy.breakOff();
    await expect(read).rejects.toThrow(RunnerUnavailable);
    await eventually(() => expect(proxy.holding).toBe(0));
    proxy.held = undefined;
    // A busy engine may be silent for longer than `silentMs`.
    const again = await readArtifacts(source, '/made', { silentMs: 60_000 });
    expect(again && (await text(again))).toContain('made\n');
  },
);

test('a slow reader is not mistaken for a silent engine', async () => {
  const source = new PassThrough();
  let silent = 0;
  const found = readChunks(source, 20, () => silent++);
  source.write('one');
  await found.next();
  // Longer than the silence timeout, but the time of the reader does not count.
  await delay(100);
  expect(silent).toBe(0);
  const next = found.next();
  await eventually(() => expect(silent).toBeGreaterThan(2));
  source.end('two');
  expect(String((await next).value)).toBe('two');
  expect((await found.next()).done).toBe(true);
});

test.for(['frozen while its container ended', 'unavailable between two checks'] as const)(
  'the log of an engine that was %s is requested again and is complete',
  async (how) => {
    const container = await ended('seq 3');
    await using proxy = await engineProxy(DOCKER.host);
    proxy.held = /\/logs\?/;
    const answers = [
      async () => false,
      how === 'unavailable between two checks'
        ? () => Promise.reject(new RunnerUnavailable('away'))
        : async () => true,
    ];
    const hasEnded = async () => (await (answers.shift() ?? (async () => true))()) as boolean;
    const lines: string[] = [];
    const following = (async () => {
      const source = {
        engine: reach(proxy),
        container,
        hasEnded,
        quietMs: 100,
        caps: { bytes: 1_000, lines: 10 },
      };
      for await (const batch of followLog(source, null, never))
        lines.push(...batch.lines.map(({ message }) => message));
    })();
    await eventually(() => expect(proxy.holding).toBe(1));
    proxy.held = undefined;
    await following;
    expect(lines).toEqual(['1', '2', '3']);
    await eventually(() => expect(proxy.holding).toBe(0));
  },
);
