/**
 * Jobs that try to escape: in each sandbox, under a server that runs as root and one that does not. The table in
 * docs/jobs.md lists what a job can reach in each.
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, describe, expect, type TestContext, test } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { type Machine, SECRET, startForbiddenTargets } from '../../support/hostile/machine.ts';
import { type ConfinedRunner, openConfinedRunner } from '../../support/hostile/user.ts';
import type { Who } from '../../support/hostile/who.ts';
import { needs } from '../../support/needs.ts';
import { listCommandLines } from '../../support/processes.ts';

type Sandbox = 'bubblewrap' | 'unshare' | 'none';
type Row = { who: Who; sandbox: Sandbox };

const rows: Row[] = (['root', 'an ordinary user'] as const).flatMap((who) =>
  (['bubblewrap', 'unshare', 'none'] as const).map((sandbox) => ({ who, sandbox })),
);

function require(ctx: TestContext, { who, sandbox }: Row): void {
  if (who === 'root') needs(ctx, 'root');
  else needs(ctx, 'shared-checkout');
  if (sandbox !== 'none') needs(ctx, sandbox, 'slirp4netns');
}

/** For example `kernel/ns_last_pid`; not every kernel has it. */
const OPEN_SETTINGS =
  spawnSync('find', ['/proc/sys', '-type', 'f', '-perm', '-o=w'], { encoding: 'utf8' }).stdout !==
  '';

/** Targets, each with a command that succeeds when the job has reached it. */
function targets(around: Machine, data: string): Record<string, string> {
  const says = (command: string) => `${command} | grep -q ${SECRET}`;
  // In Perl, which is part of every Debian; a job with curl would need less code.
  const connect = (address: string) =>
    says(
      `perl -MSocket -e 'alarm 5; my ($f, $a) = (${address}); socket(S, $f, SOCK_STREAM, 0); connect(S, $a) or die; print <S>'`,
    );
  const tcp = (host: string, port: number) =>
    connect(`AF_INET, pack_sockaddr_in(${port}, inet_aton("${host}"))`);
  const unix = (path: string) => connect(`AF_UNIX, pack_sockaddr_un("${path}")`);
  const asNamespaceRoot = (script: string) => `unshare -Urm sh -c '${script}'`;
  const anyOf = (step: string) =>
    `for f in ${data}/attempts/att_*; do ${step} && exit 0; done; exit 1`;
  const belowAnyMount = (step: string) =>
    `cut -d ' ' -f 5 /proc/self/mountinfo | while read -r at; do ${step} && echo ${SECRET}; done | grep -q ${SECRET}`;
  const ofTheShim = (step: string) =>
    `tr '\\0' ' ' < /proc/$PPID/cmdline | grep -q '^[^ ]*node .*process/shim.ts' && ${step}`;
  return {
    'the keys': says(`cat ${data}/secret-key`),
    'the keys, as root of a namespace': says(
      asNamespaceRoot(`umount -l ${data}; cat ${data}/secret-key`),
    ),
    'the keys, by a hard link': says(`ln ${data}/secret-key $TMPDIR/key && cat $TMPDIR/key`),
    'the keys, below any mount': belowAnyMount(`grep -q ${SECRET} "$at/${data}/secret-key"`),
    'other folders of the machine': belowAnyMount('test -e "$at/var/lib"'),
    'the names of repositories': `ls ${data}/repositories`,
    'the socket of PostgreSQL': unix(around.socket),
    'abstract sockets': unix(`\\0${around.abstract}`),
    loopback: tcp('127.0.0.1', around.loopback),
    ...(around.lan && { 'the LAN': tcp(around.lan.host, around.lan.port) }),
    'a file that whoever started the server left open': 'cat /proc/self/fd/21',
    'files of root': 'cat /etc/shadow',
    'private keys of the machine': 'ls /etc/ssl/private',
    'settings of the kernel': 'echo x > /proc/sys/kernel/core_pattern',
    ...(OPEN_SETTINGS && {
      'settings of the kernel that are open to all': 'find /proc/sys -type f -writable | grep -q .',
    }),
    'settings of the kernel, as root of a namespace': asNamespaceRoot(
      'mount -o remount,rw /proc/sys; umount /proc/sys; echo x > /proc/sys/kernel/core_pattern',
    ),
    'its own log': anyOf('echo x >> $f/log'),
    'the folder of its attempt': anyOf('touch $f/new'),
    'a signal to the shim': ofTheShim('kill -0 $PPID'),
    'the environment of the shim': ofTheShim('cat /proc/$PPID/environ'),
    'the root folder of the shim': ofTheShim(`ls /proc/$PPID/root${data}/secret-key`),
    'variables of the server': 'env | grep -q ^LOAM_',
    'devices of its own': 'mknod $TMPDIR/disk b 7 0',
    'more capabilities': "! grep -q 'CapEff:.0*$' /proc/self/status",
    'programs that change the user': '! grep -q "NoNewPrivs:.1" /proc/self/status',
  };
}

/** Escapes that cannot be prevented; all others must fail. */
const REACHED: Record<Who, Record<Sandbox, string[]>> = {
  root: {
    bubblewrap: [],
    unshare: [],
    none: [
      ...['other folders of the machine', 'abstract sockets', 'loopback', 'the LAN'],
      ...['settings of the kernel that are open to all', 'variables of the server'],
    ],
  },
  'an ordinary user': {
    bubblewrap: [],
    unshare: [],
    none: [
      ...['the keys', 'the keys, as root of a namespace', 'the keys, by a hard link'],
      ...['the keys, below any mount', 'other folders of the machine'],
      ...['the names of repositories', 'the socket of PostgreSQL'],
      ...['abstract sockets', 'loopback', 'the LAN'],
      'settings of the kernel that are open to all',
      ...['its own log', 'the folder of its attempt'],
      ...['a signal to the shim', 'the environment of the shim', 'the root folder of the shim'],
      'variables of the server',
    ],
  },
};

describe.each(rows)('$sandbox, server runs as $who', (row) => {
  const { who, sandbox } = row;
  let opened: Promise<ConfinedRunner> | undefined;
  /** One server for all tests of the row, opened by the first test that is not skipped. */
  const open = (ctx: TestContext): Promise<ConfinedRunner> => {
    require(ctx, row);
    const network = sandbox === 'none' ? undefined : 'internet';
    // Control groups would end daemons too; here the sandbox has to.
    // Node closes the first sixteen descriptors itself, and only bash can open higher ones.
    const wrapper = ['bash', '-c', 'exec 21< /etc/hosts; exec "$@"', 'bash'];
    opened ??= openConfinedRunner(who, { sandbox, network, cgroups: 'off' }, { wrapper });
    return opened;
  };
  afterAll(async () => (await opened)?.[Symbol.asyncDispose]());

  test('a job reaches only what it may, and its environment has no effect on the sandbox programs', async (ctx) => {
    needs(ctx, 'perl');
    const server = await open(ctx);
    await using around = await startForbiddenTargets(server.data, who);
    const list = targets(around, server.data);
    const env = {
      LD_PRELOAD: '/work/none.so',
      PATH: '/work:/usr/sbin:/usr/bin:/sbin:/bin',
      ENV: '/work/env',
      OPTIND: 'abc',
      PPID: '1',
      QUOTES: `'"$(touch /tmp/loam-was-run)\`\\\n'`,
    };
    const command = [
      'unset LD_PRELOAD; exec 2>/dev/null; echo "$QUOTES"; echo "$ENV$PATH"; ls /tmp/loam-was-run',
      ...Object.entries(list).map(
        ([name, attempt]) => `if (${attempt}) >/dev/null; then echo '${name}'; fi`,
      ),
    ].join('\n');
    const before = readFileSync('/proc/sys/kernel/core_pattern', 'utf8');
    const { lines, outcome } = await server.run({ command, env });
    expect(outcome).toMatchObject({ kind: 'exited' });
    // None of the sandbox's own programs loaded the library, or each would report it.
    const own = [...env.QUOTES.split('\n'), env.ENV + env.PATH];
    const reached = REACHED[who][sandbox].filter((name) => name in list);
    // Where the job reached its own log, it wrote a line without text.
    const said = lines.filter((line) => line && !line.startsWith('ERROR: ld.so'));
    expect(said).toEqual([...own, ...reached]);
    expect(readFileSync('/proc/sys/kernel/core_pattern', 'utf8')).toBe(before);
    if (sandbox === 'none') expect(server.warning).toMatch(/UNCONFINED/);
    else expect([server.warning, around.connections()]).toEqual(['', 0]);
  });

  test('daemons end with the job, however they try to escape supervision', async (ctx) => {
    const server = await open(ctx);
    const tag = `30${rows.indexOf(row)}.${process.pid}`;
    const daemon = `setsid sh -c '(trap "" TERM HUP; exec </dev/null >/dev/null 2>&1; env -i sleep ${tag} & env -i setsid sleep ${tag} &) &' &`;
    // Each process starts the next and exits, so that none exists for longer than a moment.
    const chain = `f() { : loam-chain; sleep 0.01; f ${tag} & }; trap "" TERM; for n in 1 2 3 4 5 6 7 8; do f & done;`;
    const gone = () => eventually(() => expect(listCommandLines(tag)).toEqual([]));
    const ended = await server.run({ command: `${daemon} sleep 0.3; echo done` });
    expect(ended).toMatchObject({ outcome: { exitCode: 0 }, lines: ['done'] });
    await gone();
    const crash = { command: `${daemon} echo up; sleep 600`, stop: 'CRASH' } as const;
    expect((await server.run({ ...crash, alone: sandbox !== 'none' })).outcome).toEqual({
      kind: 'lost',
    });
    await gone();
    for (const [stop, command, exitCode] of [
      ['TERM', `${daemon} echo up; sleep 600`, 143],
      ['KILL', `${daemon} ${chain} echo up; sleep 600`, 137],
    ] as const) {
      const { outcome } = await server.run({ command, stop });
      expect(outcome, stop).toMatchObject({ kind: 'exited', exitCode });
      await gone();
    }
  });

  test('artifacts contain only files of the job, whatever it links to', async (ctx) => {
    const server = await open(ctx);
    const { data } = server;
    const command = [
      'mkdir -p out/sub && cd out && echo mine > file && ln file twin',
      `ln -s ${data}/secret-key link; ln -s ${data} folder; ln -s ../../secret-key up`,
      `ln ${data}/secret-key hard; mkfifo fifo; mknod device b 7 0; ln -s /proc/self/root proc`,
      `mv sub old; ln -s ${data} sub; echo done`,
    ].join('\n');
    const links = ['out/link', 'out/folder', 'out/sub', 'out/proc', 'out/device'];
    const { artifacts } = await server.run({ command, outputs: ['out', ...links] });
    // As an ordinary user without a sandbox, the job can link to files that it can read anyway.
    const readable = who !== 'root' && sandbox === 'none';
    const names = readable ? ['file', 'hard', 'twin'] : ['file', 'twin'];
    expect(artifacts).toEqual([names, null, null, null, null, null]);
  });
});

describe.each(rows.filter(({ sandbox }) => sandbox !== 'none'))(
  '$sandbox, by a server that is $who, with its data folder below /opt',
  (row) => {
    test('the data folder is hidden from jobs', async (ctx) => {
      require(ctx, row);
      needs(ctx, 'root');
      const place = await mkdtemp('/opt/loam-hostile-');
      try {
        await writeFile(join(place, 'private'), SECRET, { mode: 0o600 });
        await mkdir(join(place, 'data'), { mode: 0o755 });
        execFileSync('chmod', ['755', place]);
        await using server = await openConfinedRunner(
          row.who,
          { sandbox: row.sandbox },
          { parent: join(place, 'data') },
        );
        await using _ = await startForbiddenTargets(server.data, row.who);
        const hidden = server.data;
        const nested = `unshare -Urm sh -c 'umount -l ${hidden}; cat ${hidden}/secret-key'`;
        const command = `ls ${hidden}; cat ${hidden}/secret-key; ${nested}; cat ${place}/private; echo end`;
        const { lines } = await server.run({ command: `exec 2>/dev/null; ${command}` });
        expect(lines).toEqual(['end']);
      } finally {
        await rm(place, { recursive: true, force: true });
      }
    });
  },
);
