/**
 * `npm run bench:clone -- backend`: clones and pushes over HTTP against `git http-backend` behind nginx and fcgiwrap, the
 * usual way to serve git without a product. Rounds alternate, and the CPU time of all processes is measured on both sides.
 * The peer has no accounts, branch rules or push records, and no syncs beside git's own.
 */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { openHttpBackend } from './nginx.ts';
import { openAccount } from './process.ts';
import { type Bench, makeRepository, type Shape } from './repository.ts';
import { alternate, type Side, show } from './sides.ts';

export async function compareWithBackend(
  bench: Bench,
  { small, large }: { small: Shape; large: Shape },
): Promise<void> {
  const { workspace, folder, server } = bench;
  await using backend = await openHttpBackend(folder);
  await using ours = await openAccount('ours', server.child.pid as number);
  await using theirs = await openAccount('theirs', backend.pid);
  const sidesOf = (name: string): [Side, Side] => [
    { account: ours, url: bench.remote(name), samples: [] },
    { account: theirs, url: `${backend.base}/${name}.git`, samples: [] },
  ];
  const clone = async (url: string) => {
    await workspace.git('.', ...['clone', '-q', '--bare', url, 'clone']);
    await rm(join(folder, 'clone'), { recursive: true });
  };
  const serve = async (name: string, shape: Shape) => {
    await makeRepository(join(folder, `${name}.git`), shape);
    await bench.create(name);
    await workspace.git(`${name}.git`, 'push', '-q', bench.remote(name), 'main');
  };

  await serve('few', small);
  const few = sidesOf('few');
  await alternate(few, { rounds: 40 }, clone);
  show('small clone', few[0].samples, few[1].samples);

  await workspace.git('.', 'clone', '-q', 'few.git', 'work');
  await workspace.git('work', 'config', 'user.name', 'Ada');
  await workspace.git('work', 'config', 'user.email', 'ada@example.com');
  const pushed = sidesOf('few');
  // In a round, both get the same commit.
  let made = Number.NaN;
  await alternate(pushed, { rounds: 40 }, async (url, round) => {
    if (made !== round) await workspace.commit('work', { 'a.txt': `${round}` });
    made = round;
    await workspace.git('work', 'push', '-q', url, 'HEAD:main');
  });
  show('small push', pushed[0].samples, pushed[1].samples);

  await serve('most', large);
  const most = sidesOf('most');
  await alternate(most, { rounds: 5, warmUp: 1 }, clone);
  show('large clone', most[0].samples, most[1].samples);
}
