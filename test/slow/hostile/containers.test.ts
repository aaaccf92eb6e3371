/** Jobs in containers that try to escape, or to exceed their limits. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { Outcome } from '../../../src/runners/runner.ts';
import { docker, dockerRunner } from '../../support/docker.ts';
import { has, needs } from '../../support/needs.ts';
import { attemptSpec, runToEnd } from '../../support/runner.contract.ts';

/** Settings that an image can have, with a setuid program of root. */
const IMAGE = `loam-test/hostile-${process.pid}`;
const DOCKERFILE = `FROM loam-test/debian
RUN cp /usr/bin/perl /usr/bin/rootperl && chmod 4755 /usr/bin/rootperl
ENV HOME=/evil loam_n=evil
VOLUME /data
WORKDIR /evil
USER root
HEALTHCHECK --interval=1s CMD touch /tmp/healthy
ENTRYPOINT ["/bin/false"]
CMD ["evil"]
`;

/** Numbers of x86-64 system calls that the engine's seccomp profile refuses, with harmless arguments. */
const CALLS = {
  keyctl: '250, 0, -3, 0',
  add_key: '248, 0, 0, 0, 0, 0',
  bpf: '321, 0, 0, 0',
  perf_event_open: '298, 0, 0, -1, -1, 0',
  userfaultfd: '323, 0',
  open_by_handle_at: '304, 0, 0, 0',
  kexec_load: '246, 0, 0, 0, 0',
  init_module: '175, 0, 0, 0',
  pivot_root: '155, 0, 0',
  setns: '308, 0, 0',
  unshare_user: '272, 0x10000000',
  unshare_net: '272, 0x40000000',
  mount: '165, 0, 0, 0, 0, 0',
  swapon: '167, 0, 0',
  reboot: '169, 0, 0, 0, 0',
  iopl: '172, 3',
};

describe('a job in a container', () => {
  beforeEach((ctx) => needs(ctx, 'docker', 'root'));

  beforeAll(async () => {
    if (!has('docker')) return;
    const child = spawn('docker', ['build', '--quiet', '--network', 'none', '--tag', IMAGE, '-'], {
      stdio: ['pipe', 'ignore', 'ignore'],
      env: { ...process.env, DOCKER_BUILDKIT: '0' },
    });
    child.stdin.end(DOCKERFILE);
    expect((await once(child, 'exit'))[0]).toBe(0);
  });
  afterAll(async () => {
    if (has('docker')) await docker('rmi', '--force', IMAGE);
  });

  const run = async (command: string, options: Parameters<typeof dockerRunner>[0] = {}) => {
    await using made = await dockerRunner({ network: { mode: 'none' }, ...options });
    const spec = attemptSpec(`exec 2>&1\n${command}`, { image: IMAGE, env: { GREETING: 'hello' } });
    return await runToEnd(made.runner, spec);
  };

  test.for([false, true])(
    'gets no privileges and cannot escape (images may run as root: %s)',
    async (root) => {
      const { lines } = await run(
        [
          'echo "uid $(id -u)"; grep -E "^(Cap|NoNewPrivs|Seccomp:)" /proc/self/status',
          // If the number has no name in the image, there is no name to compare with.
          `rootperl -e 'print "setuid ", ($> == $< ? "no" : "yes"), "\\n"'`,
          ...Object.entries(CALLS).map(
            ([name, args]) =>
              `perl -e 'print "${name} ", (syscall(${args}) == -1 && ($!{EPERM} || $!{ENOSYS}) ? "refused" : "allowed $!"), "\\n"'`,
          ),
          'for f in $(find /proc/sys /sys -type f -writable 2>/dev/null); do echo "writable $f"; done',
          'for f in /proc/kcore /proc/keys /proc/timer_list /proc/sched_debug; do [ -s $f ] && [ -n "$(head -c 1 $f 2>/dev/null | tr -d "\\0")" ] && echo "shown $f"; done',
          '[ -z "$(ls /sys/firmware)" ] || echo "shown /sys/firmware"; { echo x > /proc/sysrq-trigger; } 2>/dev/null && echo sysrq',
          'find / -xdev -type s; ls /dev | tr "\\n" " "; echo',
          'mknod /tmp/disk b 254 0 && echo mknod; chroot / true && echo chroot; touch /.loam/x && echo gate; rm -f /.loam/start && echo gate',
          'echo "processes $(ls /proc | grep -c "^[0-9]*$")"; kill -9 1',
          'echo end',
        ].join('\n'),
        { root },
      );
      const said = lines.filter(
        (line) => !/(Permission denied|not permitted|Read-only)/.test(line),
      );
      const [uid = '', ...rest] = said;
      expect(Number(uid.replace('uid ', '')) > 0).toBe(!root);
      expect(rest).toEqual([
        ...['Inh', 'Prm', 'Eff', 'Bnd', 'Amb'].map((set) => `Cap${set}:\t0000000000000000`),
        ...['NoNewPrivs:\t1', 'Seccomp:\t2', 'setuid no'],
        ...Object.keys(CALLS).map((name) => `${name} refused`),
        'fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero ',
        expect.stringMatching(/^processes \d$/),
        'end',
      ]);
    },
  );

  test('leaves no volume of its image', async () => {
    await using made = await dockerRunner({ network: { mode: 'none' }, root: true });
    const spec = attemptSpec('echo kept > /data/file; cat /data/file', { image: IMAGE });
    const { handle, lines } = await runToEnd(made.runner, spec);
    expect(lines).toEqual(['kept']);
    const format = '{{range .Mounts}}{{if eq .Type "volume"}}{{.Name}}{{end}}{{end}}';
    const volume = await docker('inspect', '--format', format, `loam-${spec.id}`);
    const volumes = () => docker('volume', 'ls', '--quiet', '--filter', `name=${volume}`);
    expect(await volumes()).toMatch(/^[0-9a-f]{64}$/);
    await made.runner.remove(handle);
    expect(await volumes()).toBe('');
  });

  test('runs as requested, whatever the image configures', async () => {
    const { lines, outcome } = await run(
      'echo "$0 $PWD $HOME $TMPDIR $GREETING $loam_n"; touch /work/a /tmp/b $HOME/c /data/d && echo written; sleep 2; ls /tmp; exit 3',
    );
    expect(lines).toEqual([
      '/bin/sh /work /home/job /tmp hello ',
      expect.stringMatching(/written|cannot touch '\/data\/d'/),
      'b',
    ]);
    expect(outcome).toMatchObject({ exitCode: 3 });
  });

  test.for([
    ['exit 0', 137],
    ['exit 999', 137],
  ] as const)(
    'runs as long as it runs, and ends as it ends, also when it says "%s" before',
    async ([said, exitCode]) => {
      const { outcome } = await run(`echo "${said}" >/.loam/end; sleep 3; kill -9 $PPID; sleep 30`);
      expect(outcome).toMatchObject({ kind: 'exited', exitCode });
      const { startedAt, endedAt } = outcome as Extract<Outcome, { kind: 'exited' }>;
      expect(endedAt.getTime() - startedAt.getTime()).toBeGreaterThan(2_900);
      expect(endedAt.getTime()).toBeLessThan(Date.now() + 1);
    },
  );

  test('has a limited number of processes', async () => {
    const count = `perl -e '$| = 1; $n++ while defined($pid = fork) && ($pid || (sleep(30), exit)); print "$n\\n"; kill "KILL", -getpgrp'`;
    const { lines } = await run(count, { limits: { processes: 40 } });
    expect(Number(lines[0])).toBeGreaterThan(20);
    expect(Number(lines[0])).toBeLessThan(40);
  });
});
