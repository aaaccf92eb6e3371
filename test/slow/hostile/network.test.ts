/** What a job can reach in each mode of LOAM_JOB_NETWORK, in networks created by the test. */
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { openProcessRunner } from '../../../src/runners/process/runner.ts';
import { listDescendants, listMarkedPids } from '../../../src/runners/supervisor/proc.ts';
import { eventually } from '../../support/eventually.ts';
import { INTERNET, LAN, METADATA, PORT, WITH_NETWORKS } from '../../support/hostile/internet.ts';
import { openConfinedRunner } from '../../support/hostile/user.ts';
import { needs } from '../../support/needs.ts';
import { attemptSpec } from '../../support/runner.contract.ts';

const never = new AbortController().signal;

/** Prints the answer, or nothing. */
const connect = (host: string, port = PORT) =>
  `perl -MSocket -e 'alarm 3; socket(S, AF_INET, SOCK_STREAM, 0); my $a = inet_aton("${host}") or die; connect(S, pack_sockaddr_in(${port}, $a)) or die; print <S>' 2>/dev/null || echo "${host} no"`;

/** 10.0.2.2 and .3 are slirp4netns's addresses for the host and for its nameserver, which is on the loopback here. */
const HOSTS = ['loam.example', INTERNET, LAN, METADATA, '127.0.0.1', '10.0.2.2', '10.0.2.3'];

const combinations = (['root', 'an ordinary user'] as const).flatMap((who) =>
  (['bubblewrap', 'unshare'] as const).map((sandbox) => ({ who, sandbox })),
);

test.for(combinations)('$sandbox, server runs as $who', async ({ who, sandbox }, ctx) => {
  needs(ctx, 'root', 'shared-checkout', 'perl', 'slirp4netns', sandbox);
  const command = [
    ...HOSTS.map((host) => connect(host)),
    // The routes close the LAN, so the job must not be able to change them.
    `ip route del unreachable ${LAN.replace(/1$/, '0')}/24 2>/dev/null; unshare -Urn true`,
    connect(LAN),
    // The job's own processes reach each other.
    `perl -MSocket -e 'socket(L, AF_INET, SOCK_STREAM, 0); bind(L, pack_sockaddr_in(9, INADDR_LOOPBACK)) or bind(L, pack_sockaddr_in(9999, INADDR_LOOPBACK)) or die; listen(L, 1); socket(S, AF_INET, SOCK_STREAM, 0); connect(S, getsockname(L)) or die; print "itself\\n"'`,
  ].join('\n');
  const reached = async (network: 'internet' | 'none' | 'host') => {
    await using server = await openConfinedRunner(
      who,
      { sandbox, network },
      { wrapper: WITH_NETWORKS },
    );
    expect(server.warning).toBe('');
    return (await server.run({ command })).lines;
  };
  const no = (host: string) => `${host} no`;
  const closed = [LAN, METADATA, '127.0.0.1', '10.0.2.2', '10.0.2.3', LAN].map(no);
  const internet = `reached ${INTERNET}`;
  expect(await reached('internet')).toEqual([internet, internet, ...closed, 'itself']);
  expect(await reached('none')).toEqual([
    ...['loam.example', INTERNET].map(no),
    ...closed,
    'itself',
  ]);
  expect(await reached('host')).toEqual([
    ...[internet, internet, `reached ${LAN}`, `reached ${METADATA}`, 'reached 127.0.0.1'],
    ...['10.0.2.2', '10.0.2.3'].map(no),
    `reached ${LAN}`,
    'itself',
  ]);
});

test('a job reaches a network that the operator has allowed, and no other', async (ctx) => {
  needs(ctx, 'root', 'shared-checkout', 'perl', 'slirp4netns', 'bubblewrap');
  const options = { sandbox: 'bubblewrap', network: 'internet', allow: [`${LAN}/32`] } as const;
  await using server = await openConfinedRunner('root', options, { wrapper: WITH_NETWORKS });
  const command = [LAN, METADATA, '127.0.0.1'].map((host) => connect(host)).join('\n');
  expect((await server.run({ command })).lines).toEqual([
    `reached ${LAN}`,
    `${METADATA} no`,
    '127.0.0.1 no',
  ]);
});

test('a configured mode that is not available stops the start', async () => {
  const dir = await mkdtemp('/tmp/loam-network-');
  try {
    for (const network of ['internet', 'none'] as const)
      await expect(openProcessRunner({ dir, sandbox: 'none', network })).rejects.toThrow(
        /^LOAM_JOB_NETWORK: /,
      );
  } finally {
    await rm(dir, { recursive: true });
  }
});

async function namesOf(pids: readonly number[]): Promise<string[]> {
  const names = pids.map((pid) => readFile(`/proc/${pid}/comm`, 'utf8').catch(() => ''));
  return (await Promise.all(names)).map((name) => name.trim()).filter(Boolean);
}

test('the network ends with its attempt, also when the shim is killed', async (ctx) => {
  needs(ctx, 'root', 'bubblewrap', 'slirp4netns');
  const dir = await mkdtemp('/tmp/loam-network-');
  await using runner = await openProcessRunner({ dir, network: 'internet', cgroups: 'off' });
  try {
    for (const end of ['the job', 'the shim'] as const) {
      const spec = attemptSpec('echo up; sleep 600');
      const handle = await runner.prepare(spec, never);
      await runner.start(handle);
      // bubblewrap ends with its parent only once it has started: before that, the process that waits for the job ends it.
      for await (const { lines } of runner.logs(handle, null, never)) if (lines.length > 0) break;
      const claim = JSON.parse(await readFile(join(dir, spec.id, 'claim'), 'utf8'));
      const pids = listDescendants(claim.pid);
      expect(await namesOf(pids), end).toContain('slirp4netns');
      if (end === 'the job') await runner.signal(handle, 'KILL');
      else process.kill(claim.pid, 'SIGKILL');
      // No sweep runs here: each process ends because it holds a pipe to the shim.
      await eventually(async () => expect(await namesOf(pids), end).toEqual([]));
      expect(listMarkedPids(spec.id), end).toEqual([]);
    }
  } finally {
    await runner.sweep(new Set());
    await runner[Symbol.asyncDispose]();
    await rm(dir, { recursive: true, force: true, maxRetries: 5 });
  }
});
