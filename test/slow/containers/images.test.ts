/** Images of jobs: their names, the list of allowed images, and pulls of a real engine from a registry in this process. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, onTestFinished, type TestContext, test } from 'vitest';
import {
  formatImageReference,
  parseAllowedImages,
  parseImageReference,
} from '../../../src/base/image-reference.ts';
import { createLog } from '../../../src/base/log.ts';
import { findCredentials } from '../../../src/runners/docker/credentials.ts';
import { connect } from '../../../src/runners/docker/engine.ts';
import { type ImagesOptions, openImages } from '../../../src/runners/docker/images.ts';
import { Unstartable } from '../../../src/runners/runner.ts';
import { DOCKER } from '../../support/docker.ts';
import { eventually } from '../../support/eventually.ts';
import { startApp } from '../../support/harness.ts';
import { type ImageRegistry, imageRegistry } from '../../support/image-registry.ts';
import { needs } from '../../support/needs.ts';
import { cancel, job, lines, submit, until } from '../../support/submit.ts';

const never = new AbortController().signal;
const DIGEST = `sha256:${'a'.repeat(64)}`;
const full = (name = '') => {
  const reference = parseImageReference(name);
  return reference && formatImageReference(reference);
};

test.for([
  ['debian', 'docker.io/library/debian:latest'],
  ['debian:12', 'docker.io/library/debian:12'],
  ['library/debian', 'docker.io/library/debian:latest'],
  ['docker.io/debian', 'docker.io/library/debian:latest'],
  ['index.docker.io/library/debian:latest', 'docker.io/library/debian:latest'],
  ['team/app', 'docker.io/team/app:latest'],
  ['localhost/app', 'localhost/app:latest'],
  ['localhost:5000/app:1', 'localhost:5000/app:1'],
  ['GHCR.io/team/app', 'ghcr.io/team/app:latest'],
  ['[::1]:5000/app', '[::1]:5000/app:latest'],
  ['abcdef012345', 'docker.io/library/abcdef012345:latest'],
  // With a digest the engine ignores the tag.
  [`debian:12@${DIGEST}`, `docker.io/library/debian@${DIGEST}`],
])('%s is %s', ([name, expected]) => {
  expect(full(name)).toBe(expected);
});

test.for([
  '',
  ' debian',
  'Debian',
  'debian:',
  'debian@',
  'debian:12:13',
  'debian@sha256:abc',
  `debian@${DIGEST}@${DIGEST}`,
  'a'.repeat(64),
  'ghcr.io./team/app',
  'user@ghcr.io/app',
  'https://ghcr.io/app',
  'team//app',
  '../app',
  'ghcr.io/app?x=1',
  'ghcr.io/%61pp',
  `a/${'b'.repeat(255)}`,
])('%j is not a valid image name', (name) => {
  expect(full(name)).toBe(null);
});

test('a list of allowed images matches every spelling of a name', () => {
  const allows = (list: string, name: string) => {
    const allowed = parseAllowedImages(list.split(','));
    const reference = parseImageReference(name);
    if (!reference || 'wrong' in allowed) throw new Error(`${list}, ${name}`);
    return allowed(reference);
  };
  for (const [list, yes, no] of [
    [
      'debian',
      ['debian', 'debian:12', `debian@${DIGEST}`, 'docker.io/library/debian'],
      ['debiant'],
    ],
    ['debian:12', ['index.docker.io/debian:12'], ['debian', 'debian:13', `debian:12@${DIGEST}`]],
    ['debian:1*', ['debian:12', 'debian:1'], ['debian:2']],
    [`debian@${DIGEST}`, [`debian:9@${DIGEST}`], ['debian', `debian@${DIGEST.replace(/a$/, 'b')}`]],
    ['*', ['debian', 'node:26'], ['team/app', 'ghcr.io/debian']],
    ['**', ['debian', 'ghcr.io/a/b/c:1', `127.0.0.1:5000/x@${DIGEST}`], []],
    ['team/*', ['team/app', 'docker.io/team/app:1'], ['team/app/more', 'ghcr.io/team/app']],
    [
      'ghcr.io/team/**',
      ['ghcr.io/team/app', 'GHCR.io/team/a/b:1'],
      ['ghcr.io/teams/a', 'ghcr.io:443/team/a'],
    ],
    [
      '*.example.com/**',
      ['a.example.com/x/y'],
      ['example.com/x', 'aexample.com/x', 'a.example.com.evil.org/x'],
    ],
    ['127.0.0.1:5000/app', ['127.0.0.1:5000/app:1'], ['127.0.0.1:50001/app', '127.0.0.1/app']],
    ['debian, alpine'.replace(' ', ''), ['alpine'], ['node']],
  ] as const) {
    for (const name of yes) expect(allows(list, name), `${list} allows ${name}`).toBe(true);
    for (const name of no) expect(allows(list, name), `${list} refuses ${name}`).toBe(false);
  }
  expect(parseAllowedImages(['debian', 'a b'])).toEqual({ wrong: 'a b' });
});

async function configFolder(config?: object | string): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'loam-docker-config-'));
  onTestFinished(() => rm(folder, { recursive: true }));
  const text = typeof config === 'string' ? config : JSON.stringify(config);
  if (config !== undefined) await writeFile(join(folder, 'config.json'), text);
  return folder;
}

test('credentials are read from the configuration of Docker, with hosts in any form', async () => {
  const auth = Buffer.from('me:pass:word').toString('base64');
  const password = { username: 'me', password: 'pass:word' };
  const folder = await configFolder({
    auths: {
      'https://index.docker.io/v1/': { auth },
      'ghcr.io': { auth },
      'https://old.example.com/v2/': { auth },
      'empty.example.com': {},
      'token.example.com': { identitytoken: 'it' },
    },
  });
  for (const [registry, expected] of [
    ['docker.io', { ...password, serveraddress: 'https://index.docker.io/v1/' }],
    ['ghcr.io', { ...password, serveraddress: 'ghcr.io' }],
    ['old.example.com', { ...password, serveraddress: 'old.example.com' }],
    ['token.example.com', { identitytoken: 'it', serveraddress: 'token.example.com' }],
    ['empty.example.com', undefined],
    ['else.example.com', undefined],
    ['cr.io', undefined],
  ] as const)
    expect(await findCredentials(folder, registry), registry).toEqual(expected);
  expect(await findCredentials(await configFolder(), 'ghcr.io')).toBe(undefined);
  await expect(findCredentials(await configFolder('{"auths": s3cret'), 'ghcr.io')).rejects.toThrow(
    /config\.json is not a JSON object$/,
  );
});

test('credential helpers are run, for one registry or for all', async () => {
  const folder = await configFolder({
    credHelpers: { 'one.example.com': 'one', 'broken.example.com': 'broken' },
    credsStore: 'all',
    auths: { 'plain.example.com': { auth: Buffer.from('a:b').toString('base64') } },
  });
  for (const [name, script] of [
    [
      'one',
      `read host; echo "{\\"ServerURL\\":\\"$host\\",\\"Username\\":\\"u\\",\\"Secret\\":\\"for $host\\"}"`,
    ],
    [
      'all',
      `read host; case $host in all.*) echo '{"Username":"<token>","Secret":"it"}';; *) echo credentials not found in native keychain; exit 1;; esac`,
    ],
    ['broken', 'echo s3cret; exit 3'],
  ] as const)
    await writeFile(join(folder, `docker-credential-${name}`), `#!/bin/sh\n${script}\n`, {
      mode: 0o755,
    });
  const before = process.env.PATH;
  process.env.PATH = `${folder}:${before}`;
  onTestFinished(() => {
    process.env.PATH = before;
  });
  for (const [registry, expected] of [
    ['one.example.com', { username: 'u', password: 'for one.example.com' }],
    ['all.example.com', { identitytoken: 'it' }],
    ['plain.example.com', { username: 'a', password: 'b' }],
  ] as const)
    expect(await findCredentials(folder, registry)).toEqual({
      ...expected,
      serveraddress: registry,
    });
  await expect(findCredentials(folder, 'broken.example.com')).rejects.toThrow(
    /^docker-credential-broken failed \(3\)$/,
  );
});

describe('pulls', () => {
  const engine = connect(DOCKER);

  type Setup = Partial<Omit<ImagesOptions, 'configFolder'>>;

  /** A registry, an `Images` object, and a function that adds images which the engine does not have. */
  async function setUp(ctx: TestContext, options: Setup = {}) {
    needs(ctx, 'docker');
    const registry = await imageRegistry();
    const names: string[] = [];
    onTestFinished(async () => {
      await registry[Symbol.asyncDispose]();
      for (const name of names)
        await engine.docker
          .getImage(name)
          .remove({ force: true })
          .catch((error) => {
            if (error.statusCode !== 404) throw error;
          });
    });
    const images = openImages(engine, {
      allowed: () => true,
      fallback: 'debian',
      configFolder: await configFolder(),
      log: createLog('silent'),
      reportMs: 20,
      ...options,
      policy: { pauseMs: 10, ...options.policy },
    });
    const add = async (repository: string, tag = 'latest', image = {}) => {
      const name = `${registry.host}/${repository}:${tag}`;
      names.push(name);
      const digest = await registry.add(repository, tag, image);
      return { name, digest };
    };
    return { registry, images, add };
  }

  const manifests = ({ requests }: ImageRegistry) =>
    requests.filter((one) => one.startsWith('GET') && one.includes('/manifests/')).length;

  test('an image is pulled once for all waiting jobs, with progress, and not again later', async (ctx) => {
    const { registry, images, add } = await setUp(ctx);
    const { name, digest } = await add('team/app', '1', {
      config: { User: 'app', Volumes: { '/data': {} } },
    });
    registry.layers = { bytesPerSecond: 800_000 };
    const said: string[] = [];
    const all = await Promise.all(
      [0, 1, 2].map((i) => images.ensure(name, (text) => i === 0 && said.push(text), never)),
    );
    expect(all[0]).toEqual({
      id: expect.stringMatching(/^sha256:/),
      user: 'app',
      volumes: ['/data'],
      bytes: expect.any(Number),
    });
    expect(new Set(all.map(({ id }) => id)).size).toBe(1);
    expect(manifests(registry)).toBe(1);
    expect(said[0]).toBe(`pulling ${name}`);
    const percents = said.slice(1).map((text) => Number(/: (\d+) %$/.exec(text)?.[1]));
    expect(percents.length).toBeGreaterThan(2);
    expect(percents).toEqual(percents.toSorted((a, b) => a - b));
    expect(percents.at(-1)).toBeLessThanOrEqual(100);

    const asked = registry.requests.length;
    expect(await images.ensure(name, () => {}, never)).toEqual(all[0]);
    expect(registry.requests.length).toBe(asked);
    const byDigest = await images.ensure(`${registry.host}/team/app@${digest}`, () => {}, never);
    expect(byDigest).toEqual(all[0]);
  });

  test('a cancelled job stops waiting, and the pull ends with the last waiting job', async (ctx) => {
    const { registry, images, add } = await setUp(ctx);
    const { name } = await add('team/app');
    registry.layers = 'hold';
    const [first, second] = [new AbortController(), new AbortController()];
    const pulls = [first, second].map((c) => images.ensure(name, () => {}, c.signal));
    for (const pull of pulls) pull.catch(() => {});
    const layer = () => registry.requests.findLast((one) => one.includes('/blobs/'));
    await eventually(() => expect(layer()).toBeDefined());
    first.abort(new Error('cancelled'));
    await expect(pulls[0]).rejects.toThrow('cancelled');
    second.abort(new Error('cancelled too'));
    await expect(pulls[1]).rejects.toThrow('cancelled too');
    // The engine has ended the pull: another one starts from the beginning, and succeeds.
    registry.layers = undefined;
    expect(await images.ensure(name, () => {}, never)).toMatchObject({ user: '' });
  });

  test.for(['Basic', 'Bearer'] as const)(
    'a registry that requires a login by %s',
    async (scheme, ctx) => {
      const login = { scheme, username: 'me', password: 'päss' };
      const { registry, images, add } = await setUp(ctx);
      registry.login = login;
      const { name } = await add('team/app');
      await expect(images.ensure(name, () => {}, never)).rejects.toThrow(
        new Unstartable(
          `The image "${name}" cannot be pulled: the registry has no such image, or this server may not read it`,
        ),
      );
      const auth = Buffer.from(`${login.username}:${login.password}`).toString('base64');
      const known = openImages(engine, {
        // By logging in, the operator allows a registry that is not on the internet.
        allowed: null,
        fallback: 'debian',
        configFolder: await configFolder({ auths: { [registry.host]: { auth } } }),
        log: createLog('silent'),
      });
      expect(await known.ensure(name, () => {}, never)).toMatchObject({ user: '' });
    },
  );

  test('a wrong name fails at once, and temporary failures are retried', async (ctx) => {
    const policy = { silenceMs: 300, tries: 3 };
    const { registry, images: impatient, add } = await setUp(ctx, { policy });
    // A registry on a busy machine may be silent for longer than that.
    const images = openImages(engine, {
      allowed: () => true,
      fallback: 'debian',
      configFolder: await configFolder(),
      log: createLog('silent'),
      policy: { tries: 3, pauseMs: 10 },
    });
    const { name } = await add('team/app');
    const why = async (image: string, { ensure } = images) => {
      const error = await ensure(image, () => {}, never).catch((e) => e);
      expect(error).toBeInstanceOf(Unstartable);
      return String(error.message).replace(`The image "${image}" cannot be pulled: `, '');
    };
    expect(await why(`${registry.host}/team/none:1`)).toBe('the registry has no such image');
    expect(manifests(registry)).toBe(1);
    expect(await why('Not a name')).toBe('"Not a name" is not a valid name of a container image');

    registry.mute = true;
    // Three tries at the default limit of silence, 120 seconds, would take longer than the test may.
    expect(await why(name, impatient)).toBe('the registry does not answer');
    registry.mute = false;
    registry.failing = 503;
    expect(await why(name)).toBe('the registry cannot be reached, or interrupts the transfer');
    registry.failing = 429;
    expect(await why(name)).toBe("this server has reached the registry's rate limit");
    registry.failing = undefined;
    registry.layers = 'hold';
    expect(await why(name, impatient)).toBe('the registry does not answer');
    registry.layers = undefined;
    expect(await images.ensure(name, () => {}, never)).toMatchObject({ user: '' });
  });

  test('a pull continues when the registry is available again', async (ctx) => {
    const { registry, images, add } = await setUp(ctx, { policy: { tries: 30, pauseMs: 50 } });
    const { name } = await add('team/app');
    registry.failing = 503;
    const pull = images.ensure(name, () => {}, never);
    pull.catch(() => {});
    await eventually(() => expect(registry.requests.length).toBeGreaterThan(2));
    registry.failing = undefined;
    expect(await pull).toMatchObject({ user: '' });
  });

  test('the progress of a job shows that of its pull, which ends when the job is cancelled', async (ctx) => {
    const { registry, add } = await setUp(ctx);
    const { name } = await add('team/app', '1');
    registry.layers = { bytesPerSecond: 100_000 };
    const allowed = parseAllowedImages([`${registry.host}/**`]);
    if ('wrong' in allowed) throw new Error(allowed.wrong);
    await using app = await startApp({
      config: { runner: 'auto', docker: DOCKER, images: allowed },
    });
    await submit(app.admin, { namespace: 'admin', name: 'far', command: 'true', image: name });
    await eventually(async () =>
      expect((await job(app.admin, 'admin', 'far')).progress).toMatch(/^pulling .*: \d+ %$/),
    );
    expect((await cancel(app.admin, 'admin', 'far')).errors).toBeUndefined();
    await eventually(() => expect(registry.sending).toBe(0));
    await submit(app.admin, {
      namespace: 'admin',
      name: 'other',
      command: 'true',
      image: 'debian',
    });
    expect(await until(app.admin, 'admin', 'other', 'FAILED')).toMatchObject({ exitCode: 125 });
    expect(await lines(app.admin, 'admin', 'other')).toEqual([
      'The image "debian" is not among the images that this server allows (LOAM_IMAGES)',
    ]);
  });

  test('the list of images applies to every spelling, and without a list private registries are refused', async (ctx) => {
    const allowed = parseAllowedImages(['**/team/app:1']);
    if ('wrong' in allowed) throw new Error(allowed.wrong);
    const { registry, images, add } = await setUp(ctx, { allowed });
    const { name, digest } = await add('team/app', '1');
    await add('team/app', '2');
    const repository = name.replace(/:1$/, '');
    for (const other of [
      repository,
      `${repository}:2`,
      `${name}@${digest}`,
      `${repository}@${digest}`,
    ])
      await expect(
        images.ensure(other, () => {}, never),
        other,
      ).rejects.toThrow(/LOAM_IMAGES/);
    expect(registry.requests).toEqual([]);
    const { id } = await images.ensure(name, () => {}, never);
    // The engine itself would resolve each of these to the image that it has by now.
    for (const other of [id, id.slice(7), id.slice(7, 19)])
      await expect(
        images.ensure(other, () => {}, never),
        other,
      ).rejects.toThrow(Unstartable);

    const open = await setUp(ctx, { allowed: null });
    const { name: inside } = await open.add('team/app');
    for (const image of [inside, inside.replace('127.0.0.1', 'localhost')])
      await expect(open.images.ensure(image, () => {}, never)).rejects.toThrow(
        /not on the internet/,
      );
    expect(open.registry.requests).toEqual([]);
  });

  test('the default image may come from a private registry', async (ctx) => {
    const { registry, add } = await setUp(ctx);
    const { name } = await add('team/app');
    const chosen = openImages(engine, {
      allowed: null,
      fallback: name,
      configFolder: await configFolder(),
      log: createLog('silent'),
    });
    await expect(chosen.ensure(name, () => {}, never)).rejects.toThrow(/not on the internet/);
    expect(registry.requests).toEqual([]);
    expect(await chosen.ensure(null, () => {}, never)).toMatchObject({ user: '' });
  });
});
