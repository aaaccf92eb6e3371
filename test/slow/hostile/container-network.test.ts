/** What a job in a container can reach, on a machine with its own networks (`engine.ts`). */
import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { createLog } from '../../../src/base/log.ts';
import { connect } from '../../../src/runners/docker/engine.ts';
import { type NetworkOptions, openContainerNetwork } from '../../../src/runners/docker/network.ts';
import { RunnerUnavailable } from '../../../src/runners/runner.ts';
import { DOCKER, dockerRunner } from '../../support/docker.ts';
import { eventually } from '../../support/eventually.ts';
import * as far from '../../support/hostile/engine.ts';
import { importPerl, type OwnEngine, ownEngine } from '../../support/hostile/engine.ts';
import { INTERNET, LAN, METADATA, PORT } from '../../support/hostile/internet.ts';
import { type ConfinedRunner, openConfinedRunner } from '../../support/hostile/user.ts';
import { has, needs } from '../../support/needs.ts';
import { attemptSpec, runToEnd } from '../../support/runner.contract.ts';

const run = promisify(execFile);
const here = async () => ({ isLocal: true, isRemapped: false, runtime: 'runc' });
const log = createLog('silent');
const dockerOf = ({ host }: OwnEngine) => ({ ...DOCKER, host });

const PERL = 'loam-test/perl';
/** An image whose shell ignores the start barrier, and tries to reach blocked addresses until it reaches the internet. */
const IMPATIENT = 'loam-test/impatient';

/** Prints a line for each attempted connection: `tcp 192.0.2.1 yes`. */
const PROBE = `use Socket qw(:all); $| = 1;
sub told { my ($kind, $host, $ok) = @_; print "$kind $host ", ($ok ? "yes" : "no"), "\\n" }
sub limited { my ($code) = @_; my $ok = 0; eval { local $SIG{ALRM} = sub { die }; alarm 2; $ok = $code->(); alarm 0 }; alarm 0; $ok }
sub tcp { my ($host, $port) = @_; limited(sub {
  my ($error, $a) = getaddrinfo($host, $port, { socktype => SOCK_STREAM }); $a or die;
  socket(my $s, $a->{family}, SOCK_STREAM, 0); connect($s, $a->{addr}) }) }
sub udp { my ($host, $port, $text) = @_; limited(sub {
  socket(my $s, AF_INET, SOCK_DGRAM, 0); connect($s, pack_sockaddr_in($port, inet_aton($host))) or die;
  send($s, $text, 0) or die; recv($s, my $answer, 512, 0); length $answer }) }
sub icmp { my ($host, $wait) = @_; limited(sub {
  socket(my $s, AF_INET, SOCK_DGRAM, 1) or die; my $a = pack_sockaddr_in(0, inet_aton($host));
  send($s, pack("CCnnna8", 8, 0, 0, 0, 1, "loamloam"), 0, $a) or die;
  vec(my $ready = "", fileno($s), 1) = 1; select($ready, undef, undef, $wait) > 0 or die; recv($s, my $answer, 512, 0); length $answer }) }
`;

/** A DNS query for the address of a name: RFC 1035, section 4.1. */
const QUESTION = 'pack("n6(C/a*)3n2", 7, 256, 1, 0, 0, 0, "loam", "example", "", 1, 1)';

const perl = (code: string) => `perl -e '${PROBE}${code}'`;
const probes = (kind: 'tcp' | 'udp' | 'icmp', hosts: readonly string[]) =>
  hosts
    .map((host) => {
      const args = {
        tcp: `"${host}", ${PORT}`,
        udp: `"${host}", ${PORT}, "x"`, // Such a socket is not told of a refusal.
        icmp: `"${host}", ${host === INTERNET ? 2 : 0.2}`,
      };
      return `told("${kind}", "${host}", ${kind}(${args[kind]}));`;
    })
    .join('\n');

/** The IPv4 targets. */
const CLOSED = [
  ...[LAN, far.ROUTER, METADATA, far.PRIVATE, far.CARRIER, far.AZURE, far.RESOLVER, far.BRIDGE],
];
const no = (kind: string, hosts: readonly string[]) => hosts.map((host) => `${kind} ${host} no`);

const NEEDS = ['docker', 'root', 'unshare'] as const;

describe('on a machine with its own networks', () => {
  beforeEach((ctx) => needs(ctx, ...NEEDS));

  let engine: OwnEngine;
  /** In mode `internet`, run on the machine of the engine, with the given firewall program. */
  const jobsBy = new Map<string, ConfinedRunner>();
  /** With the program that is chosen if both exist. */
  let jobs: ConfinedRunner;
  /** Firewall programs that are slow while a file /mnt/slow exists. */
  let tools: string;

  beforeAll(async () => {
    if (!NEEDS.every(has)) return;
    engine = await ownEngine();
    tools = await mkdtemp(join(tmpdir(), 'loam-slow-'));
    const slow = '#!/bin/sh\n[ -e /mnt/slow ] && sleep 1\nexec /usr/bin/nsenter "$@"\n';
    await writeFile(join(tools, 'nsenter'), slow, { mode: 0o755 });
    await importPerl(engine, PERL);
    const impatient = `#!/usr/bin/perl
${PROBE}
# The variables of the job are in the script of its command only.
my $linger = 0;
for my $file ("/.loam/start.new", "/.loam/start") {
  open(my $script, "<", $file) or next;
  $linger = $1 if join("", <$script>) =~ /LINGER='?([0-9])/;
}
for (1 .. 400) {
  my @reached = grep { tcp($_, ${PORT}) } qw(${LAN} ${METADATA});
  print "reached @reached\\n" if @reached;
  if (tcp("${INTERNET}", ${PORT})) {
    select(undef, undef, undef, $linger);
    print "the internet, and nothing else\\n" unless @reached;
    exit 3;
  }
  select(undef, undef, undef, 0.01);
}
print "nothing\\n";`;
    await importPerl(
      engine,
      IMPATIENT,
      `rm bin/sh; cat > bin/sh <<'PERL'\n${impatient}\nPERL\nchmod 755 bin/sh`,
    );
    const without = join(tools, 'without-nft');
    await mkdir(without);
    await writeFile(join(without, 'nft'), '#!/bin/sh\nexit 127\n', { mode: 0o755 });
    for (const [program, path] of [
      ['nft', tools],
      ['iptables', `${without}:${tools}`],
    ] as const) {
      const started = await openConfinedRunner(
        'root',
        {
          docker: dockerOf(engine),
          images: { allowed: null, fallback: PERL, configFolder: '/nonexistent' },
        },
        { wrapper: engine.wrapper, path: `${path}:${process.env.PATH}` },
      );
      jobsBy.set(program, started);
    }
    jobs = byProgram('nft');
  });
  afterAll(async () => {
    for (const started of jobsBy.values()) await started[Symbol.asyncDispose]();
    await engine?.[Symbol.asyncDispose]();
    if (tools) await rm(tools, { recursive: true });
  });

  const byProgram = (program: string) => {
    const found = jobsBy.get(program);
    if (!found) throw new Error(`no jobs by ${program}`);
    return found;
  };
  const onMachine = (command: string) => {
    const [program = '', ...words] = [...engine.wrapper, '/bin/sh', '-c', command];
    return run(program, words);
  };

  test.for(['nft', 'iptables'] as const)(
    'a job reaches the internet and DNS, and nothing of the operator, by rules of %s',
    async (program, ctx) => {
      if (program === 'nft') needs(ctx, program);
      const jobs = byProgram(program);
      // Another user's containers beside ours: on the engine's own bridge, and on the bridge of jobs.
      const listen = `perl -MSocket -e 'socket(L, AF_INET, SOCK_STREAM, 0); bind(L, pack_sockaddr_in(${PORT}, INADDR_ANY)); listen(L, 9); while (accept(C, L)) { close C }'`;
      expect(jobs.warning).toBe('');
      const others: string[] = [];
      await engine.docker('network', 'create', `others-${program}`);
      for (const network of ['bridge', `others-${program}`]) {
        const id = await engine.docker('run', '-d', '--network', network, PERL, 'sh', '-c', listen);
        const format = '{{range .NetworkSettings.Networks}}{{.IPAddress}} {{.Gateway}}{{end}}';
        const seen = await engine.docker('inspect', '--format', format, id);
        others.push(...seen.split(' '));
      }
      expect(others.every((address) => /^198\.51\./.test(address))).toBe(true);
      const closed = [...CLOSED, ...others];
      const undo = [
        'ip route add 10.0.0.0/8 dev eth0',
        'ip addr add 10.9.9.1/24 dev eth0',
        'ip link set eth0 down',
        'mount -t proc proc /tmp',
        `perl -MSocket -e 'socket(S, AF_INET, SOCK_RAW, 1) or exit 1'`,
        `perl -MSocket -e 'socket(S, 17, SOCK_RAW, 768) or exit 1'`,
        // unshare(CLONE_NEWUSER | CLONE_NEWNET)
        `perl -e 'exit(syscall(272, 0x50000000) == 0 ? 0 : 1)'`,
      ];
      const { lines } = await jobs.run({
        command: [
          perl(`
${probes('tcp', ['loam.example', INTERNET, ...closed])}
${probes('udp', [INTERNET, ...closed])}
${probes('icmp', [INTERNET, ...closed])}
${probes('tcp', [far.INTERNET6, far.LAN6, `::ffff:${LAN}`])}
told("dns", "udp", udp("${far.RESOLVER}", 53, ${QUESTION}));
told("itself", "127.0.0.1", do { socket(my $l, AF_INET, SOCK_STREAM, 0); bind($l, pack_sockaddr_in(9, INADDR_LOOPBACK)); listen($l, 1);
  socket(my $s, AF_INET, SOCK_STREAM, 0); connect($s, getsockname($l)) });`),
          ...undo.map((line, i) => `${line} 2>/dev/null && echo "undone ${i}"`),
          perl(probes('tcp', [INTERNET, LAN])),
        ].join('\n'),
      });
      expect(lines).toEqual([
        ...['tcp loam.example yes', `tcp ${INTERNET} yes`, ...no('tcp', closed)],
        ...[`udp ${INTERNET} yes`, ...no('udp', closed)],
        ...[`icmp ${INTERNET} yes`, ...no('icmp', closed)],
        ...no('tcp', [far.INTERNET6, far.LAN6, `::ffff:${LAN}`]),
        ...['dns udp yes', 'itself 127.0.0.1 yes'],
        ...[`tcp ${INTERNET} yes`, `tcp ${LAN} no`],
      ]);
    },
  );

  test('a job reaches nothing over IPv6, although other containers of its engine reach everything', async () => {
    const addresses = [far.INTERNET6, far.LAN6];
    const command = perl(
      `${probes('tcp', addresses)} open(F, "/proc/net/if_inet6"); print "it has one\\n" if grep /^20010db80002/, <F>;`,
    );
    // Without our firewall rules.
    expect((await engine.docker('run', '--rm', PERL, 'sh', '-c', command)).split('\n')).toEqual([
      ...addresses.map((address) => `tcp ${address} yes`),
      'it has one',
    ]);
    for (const started of jobsBy.values()) {
      const { lines } = await started.run({ command });
      expect(lines).toEqual([...no('tcp', addresses), 'it has one']);
    }
  });

  test('an image that ignores the start barrier has no network before its firewall rules are set', async () => {
    await onMachine('touch /mnt/slow');
    // It ends before or after its barrier opens. In the second case a shim waits for reports that never arrive.
    for (const LINGER of ['0', '1']) {
      const asked = { command: 'true', image: IMPATIENT, env: { LINGER } };
      const { lines, outcome } = await jobs.run(asked);
      expect(lines).toEqual(['the internet, and nothing else']);
      const how = outcome.kind === 'unstartable' ? outcome.reason : JSON.stringify(outcome);
      expect(how).toMatch(/exit code 3$|"exitCode":3\b/);
    }
    await onMachine('rm /mnt/slow');
  });

  test('no host reaches a job, and the rules survive a restart of the engine', async () => {
    const told = jobs.run({
      command: `${perl(`
use IO::Handle; socket(my $l, AF_INET, SOCK_STREAM, 0); bind($l, pack_sockaddr_in(${PORT}, INADDR_ANY)); listen($l, 9);
eval { local $SIG{ALRM} = sub { die }; alarm 60; vec(my $r = "", fileno($l), 1) = 1;
until (-e "/tmp/go") { my $ready = $r; print "somebody\\n" if select($ready, undef, undef, 0.05) > 0 } };
${probes('tcp', ['loam.example', INTERNET, LAN, far.PRIVATE])}`)}`,
    });
    const job = () => engine.docker('ps', '--quiet', '--filter', 'label=loam.attempt');
    const address = await eventually(async () => {
      const format = '{{with .NetworkSettings.Networks.bridge}}{{.IPAddress}}{{end}}';
      const found = await engine.docker('inspect', '--format', format, await job());
      expect(found).toMatch(/^198/);
      return found;
    });
    const probe = perl(`told("job", "it", tcp("${address}", ${PORT}));`);
    const { stdout } = await onMachine(probe);
    expect(stdout).toBe('job it no\n');
    expect(await engine.docker('run', '--rm', PERL, 'sh', '-c', probe)).toBe('job it no');
    await engine.restart();
    await engine.docker('exec', await job(), 'sh', '-c', '> /tmp/go');
    const { lines } = await told;
    expect(lines).toEqual([
      ...['tcp loam.example yes', `tcp ${INTERNET} yes`],
      ...no('tcp', [LAN, far.PRIVATE]),
    ]);
  });

  test('a nameserver on the loopback of the machine is queried by the engine, and the loopback stays closed to jobs', async () => {
    const resolve = (address: string) => onMachine(`echo nameserver ${address} > /mnt/resolv`);
    await resolve('127.0.0.1');
    const dns = `told("dns", "udp", udp("${far.RESOLVER}", 53, ${QUESTION}));`;
    const { lines } = await jobs.run({
      command: perl(`${probes('tcp', ['loam.example', LAN, far.RESOLVER])} ${dns}`),
    });
    await resolve(far.RESOLVER);
    expect(lines).toEqual([
      'tcp loam.example yes',
      ...no('tcp', [LAN, far.RESOLVER]),
      'dns udp no',
    ]);
  });

  test('an engine that is down when the server starts is used when it is available', async () => {
    let away = true;
    const reached = connect(dockerOf(engine));
    const coming = {
      ...reached,
      call: ((...args) =>
        away
          ? Promise.reject(new RunnerUnavailable('away'))
          : reached.call(...args)) as typeof reached.call,
    };
    const network = await openContainerNetwork(coming, { prepared: 'bridges' }, here, log);
    await expect(network.options()).rejects.toThrow(RunnerUnavailable);
    away = false;
    await expect(network.options()).rejects.toThrow(/^LOAM_DOCKER_NETWORK: .* has no such network/);
    await engine.docker('network', 'create', 'bridges');
    expect(await network.options()).toEqual({ NetworkMode: 'bridges' });
  });

  test('the other modes: none, host, and a network that the operator has created', async () => {
    const command = perl(probes('tcp', [INTERNET, LAN, '127.0.0.1']));
    const images = { allowed: null, fallback: PERL, configFolder: '/nonexistent' };
    const reached = async (network: NetworkOptions) => {
      await using made = await dockerRunner({ docker: dockerOf(engine), images, network });
      expect(made.runner.warning).toBe(undefined);
      const { lines } = await runToEnd(made.runner, attemptSpec(command));
      return lines.map((line) => line.split(' ')[2]).join(' ');
    };
    expect(await reached({ mode: 'none' })).toBe('no no no');
    expect(await reached({ mode: 'host' })).toBe('yes yes yes');
    await engine.docker('network', 'create', 'operators');
    expect(await reached({ prepared: 'operators' })).toBe('yes yes no');
    const open = (network: NetworkOptions) =>
      openContainerNetwork(connect(dockerOf(engine)), network, here, log);
    for (const prepared of ['bridge', 'host', 'container:x', 'not-there'])
      await expect(open({ prepared })).rejects.toThrow(/^LOAM_DOCKER_NETWORK: /);
    // None of these modes falls back to the engine's open network.
    for (const [network, why] of [
      // This runtime has its own network stack, which bypasses the rules.
      [{ runtime: 'runsc' }, /have no network: the runtime runsc/],
      // The addresses that this process sees are not those of the engine's machine.
      [{}, /have no network: this server is in another network/],
    ] as const) {
      const { warning, options } = await open(network);
      expect(warning).toMatch(why);
      expect(await options()).toEqual({ NetworkMode: 'none' });
    }
  });
});
