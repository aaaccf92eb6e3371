/**
 * Jobs that try to exhaust a server that runs as an ordinary user, with and without control groups. The test bounds
 * each bomb itself, so that a limit that does not work fails a test and not the machine.
 */
import { mkdirSync, readdirSync, rmdirSync } from 'node:fs';
import { describe, expect, test, vi } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { type ConfinedRunner, openConfinedRunner } from '../../support/hostile/user.ts';
import { chownTo } from '../../support/hostile/who.ts';
import { needs } from '../../support/needs.ts';

const MiB = 2 ** 20;
/**
 * For an ordinary user without control groups the kernel also counts our own threads: the server, its starter of
 * programs and two shims have about 45.
 */
const LIMITS = { memoryBytes: 200 * MiB, processes: 200, diskBytes: 20 * MiB, files: 2_000 };

const noteOf = ({ outcome }: Awaited<ReturnType<ConfinedRunner['run']>>) =>
  outcome.kind === 'exited' ? outcome.note : undefined;

describe.each(['bubblewrap', 'none'] as const)('an ordinary user, sandboxed by %s', (sandbox) => {
  test('memory, processes, bytes, files and hidden files are bounded', async (ctx) => {
    needs(ctx, 'shared-checkout');
    if (sandbox === 'bubblewrap') needs(ctx, 'bubblewrap');
    const options = { sandbox, cgroups: 'off', network: 'host', limits: LIMITS } as const;
    const wrapper = ['prlimit', '--nproc=1000', '--'];
    await using made = await openConfinedRunner('an ordinary user', options, { wrapper });
    /**
     * The kernel counts exited processes of the user until the init of the machine has read their exit codes. Room for a
     * few is not enough: the threads of one more shim would use it, and the shell of the next job would exit with 2.
     */
    const untilForgotten = () =>
      vi.waitFor(
        async () => {
          const command = 'for n in $(seq 60); do sleep 0.1 & done; wait; echo here';
          const after = await made.run({ command });
          expect(after).toMatchObject({ lines: ['here'], outcome: { exitCode: 0 } });
        },
        { timeout: 60_000, interval: 200 },
      );
    // Exited processes of an earlier run.
    await untilForgotten();
    const each = '(head -c 90m /dev/zero | tail -c 90m | sleep 60) &';
    const memory = await made.run({ command: `${each} ${each} ${each} wait` });
    expect(memory.outcome).toMatchObject({ kind: 'exited', exitCode: 137 });
    expect(noteOf(memory)).toBe('The job ran out of memory and was ended. It may use 200 MB.');

    const many = await made.run({
      command: '(for n in $(seq 300); do sleep 60 & done; echo all) 2>&1',
    });
    expect(many.lines.join('\n')).toMatch(/fork/i);
    expect(many.lines).not.toContain('all');
    const bomb = await made.run({
      command: 'bomb() { bomb | bomb & }; bomb; echo up; sleep 60',
      stop: 'KILL',
    });
    expect(bomb.outcome).toMatchObject({ kind: 'exited' });
    await untilForgotten();

    const bytes = await made.run({ command: 'head -c 40000000 /dev/urandom > x; sleep 60' });
    expect(bytes.outcome).toMatchObject({ kind: 'exited', exitCode: 137 });
    expect(noteOf(bytes)).toMatch(/^The job was ended: it keeps \d+ MB on disk, /);

    const unlinked = 'exec 9> x; rm x; head -c 40000000 /dev/urandom >&9; sleep 60';
    expect(noteOf(await made.run({ command: unlinked }))).toMatch(
      /^The job was ended: it keeps \d+ MB on disk, /,
    );

    const hidden = 'mkdir d; cd d; seq 3000 | xargs touch; chmod 0 .; sleep 60';
    const files = await made.run({ command: hidden });
    expect(files.outcome).toMatchObject({ kind: 'exited', exitCode: 137 });
    expect(noteOf(files)).toMatch(/^The job was ended: it keeps \d+ files, /);
  });
});

/** Control groups delegated to an ordinary user, as `Delegate=yes` does; version 1 of the interface. */
function delegated() {
  const name = `loam-delegated-${process.pid}`;
  const folders = ['memory', 'pids', 'cpu', 'cpuacct'].map((at) => `/sys/fs/cgroup/${at}/${name}`);
  for (const folder of folders) {
    mkdirSync(folder);
    for (const file of ['', ...readdirSync(folder)])
      chownTo(`${folder}/${file}`, 'an ordinary user');
  }
  const join = folders.map((folder) => `echo $$ > ${folder}/cgroup.procs`).join(';');
  return {
    wrapper: ['sh', '-c', `${join}; exec "$@"`, 'sh'],
    // A shim that was kept for another job ends shortly after its server.
    async [Symbol.asyncDispose]() {
      for (const folder of folders) await eventually(() => rmdirSync(folder));
    },
  };
}

test.for(['bubblewrap', 'unshare'] as const)(
  'a job in %s cannot lift the limits of its own control group',
  async (sandbox, ctx) => {
    needs(ctx, 'root', 'shared-checkout', 'cgroups', sandbox);
    if (!readdirSync('/sys/fs/cgroup').includes('memory')) return ctx.skip('version 1 alone');
    await using groups = delegated();
    await using made = await openConfinedRunner(
      'an ordinary user',
      { sandbox, network: 'host', limits: { ...LIMITS, processes: 60, memoryBytes: 100 * MiB } },
      groups,
    );
    const lift = `
      mount -t cgroup -o memory none /tmp && mount -t cgroup -o pids none /work || exit
      for file in $(find /tmp /work -name "*limit_in_bytes" -o -name pids.max); do
        for n in 1 2; do echo 9000000000 > $file; echo max > $file; done
      done; echo tried`;
    const command = `unshare -UrmC sh -c '${lift}' 2>/dev/null
      head -c 200m /dev/zero | tail -c 200m | wc -c; (for n in $(seq 100); do sleep 1 & done; echo all) 2>&1`;
    const { lines, outcome } = await made.run({ command });
    expect(lines).toContain('tried');
    expect(lines.join('\n')).toMatch(/fork/i);
    expect(outcome).toMatchObject({ note: expect.stringMatching(/^The job ran out of memory/) });
  },
);
