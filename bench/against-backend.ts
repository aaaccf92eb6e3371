/**
 * `npm run bench:clone -- backend`: clones and pushes over HTTP against `git http-backend` behind nginx and fcgiwrap, the
 * usual way to serve git by hand: in alternating rounds, with the CPU of all processes on both sides. Theirs has no
 * accounts, no rules, no record and syncs what git syncs by itself.
 */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { openNginxBackend } from './nginx-backend.ts';
import { type Account, openAccount } from './process.ts';
import { type Bench, makeRepository, median, type Shape, time } from './repository.ts';

const WARM_UP = 20;

type Sample = { ms: number; cpu: number };

/** Prints both medians and their ratios. */
function show(what: string, ours: readonly Sample[], theirs: readonly Sample[]): void {
  const of = (samples: readonly Sample[], key: keyof Sample) =>
    median(samples.map((one) => one[key]));
  const sum = (samples: readonly Sample[]) =>
    samples.reduce((all, { cpu }) => all + cpu, 0) / samples.length;
  const [ms, theirMs] = [of(ours, 'ms'), of(theirs, 'ms')];
  const [cpu, theirCpu] = [sum(ours) * 1_000, sum(theirs) * 1_000];
  console.log(
    `${what}: ${ms.toFixed(0)} ms against ${theirMs.toFixed(0)}, ${(ms / theirMs).toFixed(2)}x; ` +
      `CPU ${cpu.toFixed(1)} ms against ${theirCpu.toFixed(1)}, ${(cpu / theirCpu).toFixed(2)}x`,
  );
}

type Side = { account: Account; url: string; samples: Sample[] };

/** `rounds` of both, one after the other, after a warm-up that is not counted. */
async function alternate(
  sides: readonly [Side, Side],
  { rounds, warmUp = WARM_UP }: { rounds: number; warmUp?: number },
  work: (url: string, round: number) => Promise<unknown>,
): Promise<void> {
  for (let round = -warmUp; round < rounds; round++)
    for (const { account, url, samples } of sides) {
      const before = await account.seconds();
      const ms = await time(() => work(url, round));
      // What goes on behind the answer is paid for, too.
      await new Promise((resolve) => setTimeout(resolve, round < 0 ? 0 : 150));
      if (round >= 0) samples.push({ ms, cpu: (await account.seconds()) - before });
    }
}

export async function compareWithBackend(
  bench: Bench,
  { small, large }: { small: Shape; large: Shape },
): Promise<void> {
  const { workspace, folder, server } = bench;
  await using backend = await openNginxBackend(folder);
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
  // Both get the same commit in a round.
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
