/** The volumes of attempts, tested on every runner that has them. */
import { cp, mkdir, readdir, readFile, stat, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeEach, expect, test } from 'vitest';
import {
  type AttemptSpec,
  type Runner,
  Unstartable,
  type VolumeMount,
} from '../../src/runners/runner.ts';
import { type Need, needs } from './needs.ts';
import { attemptSpec, type RunnerUnderTest, runToEnd } from './runner.contract.ts';
import { type TestVolumes, testVolumes } from './volumes.ts';

const NAMESPACE = 'ns_01ksh9vkgxee09a1xnsm5sf4d8';

export const mount = (volume: string, to: string, readOnly = true): VolumeMount => ({
  volume,
  to,
  readOnly,
  folder: volume === 'own' ? NAMESPACE : null,
});

/** Why the attempt cannot start. */
async function reasonOf(runner: Runner, spec: AttemptSpec): Promise<string> {
  try {
    const { outcome } = await runToEnd(runner, spec);
    return outcome.kind === 'unstartable' ? outcome.reason : `it has ${outcome.kind}`;
  } catch (error) {
    if (!(error instanceof Unstartable)) throw error;
    return error.message;
  }
}

type Options = {
  open(volumes: TestVolumes): Promise<RunnerUnderTest>;
  /** Whether volumes are mounted, so that they can be anywhere and are read-only when wanted. */
  mounts: boolean;
  /** Whether they are links in the folders of the job; by default when they are not mounted. */
  links?: boolean;
  image?: string;
};

export function volumesContract(
  { open, mounts, links = !mounts, image }: Options,
  ...wanted: Need[]
): void {
  beforeEach((ctx) => needs(ctx, ...wanted));
  const withMounts = (command: string, ...list: VolumeMount[]) =>
    attemptSpec(command, { mounts: list, ...(image && { image }) });

  test('volumes have the files of the machine, and what is written stays there', async () => {
    await using volumes = await testVolumes();
    await using made = await open(volumes);
    const { lines, outcome, handle } = await runToEnd(
      made.runner,
      withMounts(
        'cat in/set/a.txt; echo result > out/b.txt; echo mine > "$HOME/cache/c.txt"; cat out/b.txt',
        mount('data', '/work/in/set'),
        mount('scratch', '/work/out', false),
        mount('own', '/home/job/cache', false),
      ),
    );
    expect([lines, outcome]).toMatchObject([['all of it', 'result'], { exitCode: 0 }]);
    expect(await readFile(join(volumes.root, 'scratch/b.txt'), 'utf8')).toBe('result\n');
    expect(await readFile(join(volumes.root, 'own', NAMESPACE, 'c.txt'), 'utf8')).toBe('mine\n');
    expect((await stat(join(volumes.root, 'own', NAMESPACE))).mode & 0o777).toBe(0o777);
    await made.runner.remove(handle);
    expect(await readFile(join(volumes.root, 'data/a.txt'), 'utf8')).toBe('all of it\n');
    expect(await readFile(join(volumes.root, 'scratch/b.txt'), 'utf8')).toBe('result\n');
  });

  test('a folder that the checkout mounts can only be read, where it can be mounted', async () => {
    await using volumes = await testVolumes();
    await using made = await open(volumes);
    const from = join(volumes.root, 'data');
    let isMounted = false;
    const checkout: AttemptSpec['checkout'] = async (dir, _signal, _home, mountFolder) => {
      isMounted = mountFolder !== undefined;
      const folder = { volume: 'ada/dataset', from, to: '/work/in/set', readOnly: true };
      await mkdir(join(dir, 'in'), { recursive: true });
      if (mountFolder) mountFolder(folder);
      else await cp(from, join(dir, 'in/set'), { recursive: true });
    };
    const command = 'cat in/set/a.txt; (echo x > in/set/b.txt) 2>/dev/null || echo refused';
    const { lines } = await runToEnd(made.runner, { ...withMounts(command), checkout });
    expect(lines).toEqual(['all of it', ...(isMounted ? ['refused'] : [])]);
    expect(await readdir(from)).toEqual(['a.txt']);
    if (!mounts) expect(isMounted).toBe(false);
  });

  test('an attempt with a volume that the machine lacks is refused', async () => {
    await using volumes = await testVolumes();
    await using made = await open(volumes);
    for (const name of ['missing', 'unknown']) {
      const reason = await reasonOf(made.runner, withMounts('true', mount(name, '/work/x')));
      expect(reason).toContain(`volume ${name}`);
      expect(reason).not.toContain(volumes.root);
    }
  });

  test('a volume is never mounted through what the checkout has at its place', async () => {
    await using volumes = await testVolumes();
    await using made = await open(volumes);
    const outside = join(volumes.root, 'outside');
    await mkdir(outside);
    const checkout = async (dir: string) => {
      await mkdir(join(dir, 'full'), { recursive: true });
      await symlink(outside, join(dir, 'link'));
      await symlink('/oldroot', join(dir, 'old'));
      await writeFile(join(dir, 'file'), '');
      await writeFile(join(dir, 'full/mine'), '');
    };
    for (const to of ['link', 'link/below', 'old/tmp/below', 'file', 'file/below']) {
      const spec = { ...withMounts('true', mount('data', `/work/${to}`)), checkout };
      expect(await reasonOf(made.runner, spec), to).toContain(
        `The volume data cannot be mounted at /work/${to}: `,
      );
      await made.runner.remove({ attempt: spec.id });
    }
    await expect(stat(join(outside, 'below'))).rejects.toThrow('ENOENT');
    const full = { ...withMounts('ls full', mount('data', '/work/full')), checkout };
    if (links) expect(await reasonOf(made.runner, full)).toContain('/work/full');
    else expect((await runToEnd(made.runner, full)).lines).toEqual(['a.txt']);
  });

  if (!mounts)
    test('a volume elsewhere is refused with the reason', async () => {
      await using volumes = await testVolumes();
      await using made = await open(volumes);
      expect(await reasonOf(made.runner, withMounts('true', mount('data', '/data')))).toContain(
        'The volume data cannot be at /data: ',
      );
    });

  if (mounts)
    test('volumes can be anywhere, and read-only ones cannot be changed', async () => {
      await using volumes = await testVolumes();
      await using made = await open(volumes);
      const { lines } = await runToEnd(
        made.runner,
        withMounts(
          'cat /data/a.txt; for f in /data/x /srv/deep/scratch/x; do touch $f 2>/dev/null && echo wrote $f || echo refused $f; done',
          mount('data', '/data'),
          mount('scratch', '/srv/deep/scratch', true),
        ),
      );
      expect(lines).toEqual(['all of it', 'refused /data/x', 'refused /srv/deep/scratch/x']);
    });

  if (mounts)
    test('a job sees its own subfolder only', async () => {
      await using volumes = await testVolumes();
      await mkdir(join(volumes.root, 'own/ns_other'));
      await writeFile(join(volumes.root, 'own/ns_other/secret'), 'not yours');
      await using made = await open(volumes);
      const { lines } = await runToEnd(
        made.runner,
        withMounts(
          'ls -A /own; cat /own/../ns_other/secret /own/../own/ns_other/secret 2>/dev/null || echo no',
          mount('own', '/own', false),
        ),
      );
      expect(lines).toEqual(['no']);
    });
}
