/**
 * Control groups of version 2, which most machines have and test machines may not: tested on a folder that imitates the
 * hierarchy, and on the kernel where it has one. limits-of-jobs.test.ts tests version 1 on the kernel.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import {
  applyGroupLimits,
  countOomKills,
  createGroup,
  killGroup,
  killGroupOnce,
  listGroupPids,
  readGroupUsage,
  removeGroup,
} from '../../src/runners/process/cgroup.ts';
import { openCgroups } from '../../src/runners/process/cgroups.ts';
import { eventually } from '../support/eventually.ts';
import { needs } from '../support/needs.ts';
import { listCommandLines } from '../support/processes.ts';

const LIMITS = { memoryBytes: 1_000_000, allJobsMemoryBytes: 9_000_000, cpus: 1.5, processes: 77 };

async function folder(files: Record<string, string>) {
  const path = await mkdtemp(join(tmpdir(), 'loam-cgroup-'));
  const add = (name: string, text: string) => {
    mkdirSync(join(path, name, '..'), { recursive: true });
    writeFileSync(join(path, name), text);
  };
  for (const [name, text] of Object.entries(files)) add(name, text);
  return {
    path,
    add,
    read: (name: string) => readFileSync(join(path, name), 'utf8'),
    [Symbol.asyncDispose]: () => rm(path, { recursive: true }),
  };
}

const unified = (path: string, root = '/') =>
  `31 23 0:28 ${root} ${path} rw - cgroup2 cgroup2 rw\n`;

test('version 2: the server moves into its own group, and each attempt gets a group with its limits', async () => {
  const own = 'system.slice/loam.service';
  await using at = await folder({
    [`${own}/cgroup.type`]: 'domain\n',
    [`${own}/cgroup.controllers`]: 'cpuset cpu io memory pids\n',
    [`${own}/cgroup.procs`]: '41\n42\n',
  });
  const hierarchy = { mounts: unified(at.path), membership: `0::/${own}\n` };
  const found = openCgroups(hierarchy);
  expect(found).toMatchObject({ version: 2, controllers: ['memory', 'cpu', 'pids'] });
  expect(at.read(`${own}/loam-server/cgroup.procs`)).toMatch(/^(4142)+$/);
  expect(at.read(`${own}/cgroup.subtree_control`)).toBe('+memory +cpu +pids');

  const group = found?.groupOf('a') ?? { folders: [] };
  expect(group).toEqual({ folders: [join(at.path, own, 'loam/a')] });
  const settings = found?.settingsOf(group, LIMITS) ?? [];
  createGroup(group, settings);
  applyGroupLimits(group, settings);
  expect(at.read(`${own}/loam/cgroup.subtree_control`)).toBe('+memory +cpu +pids');
  expect(at.read(`${own}/loam/memory.max`)).toBe('9000000');
  expect(at.read(`${own}/loam/cpu.weight`)).toBe('50');
  const limit = (name: string) => at.read(`${own}/loam/a/${name}`);
  expect(['memory.max', 'memory.swap.max', 'cpu.max', 'pids.max'].map(limit)).toEqual([
    '1000000',
    '0',
    '150000 100000',
    '77',
  ]);

  // A server that was started in the group that an earlier process moved into finds the same parent.
  expect(
    openCgroups({ ...hierarchy, membership: `0::/${own}/loam-server\n` })?.groupOf('a'),
  ).toEqual(group);
  // In a container the mount starts at the container's own group.
  const inside = { mounts: unified(join(at.path, own), `/${own}`), membership: `0::/${own}\n` };
  expect(openCgroups(inside)?.groupOf('a')).toEqual(group);
});

test('version 2: the root group keeps its processes; without version 2 controllers, version 1 is used', async () => {
  await using at = await folder({
    'v2/cgroup.controllers': 'memory pids',
    'v2/cgroup.procs': '1\n',
    'hybrid/cgroup.controllers': 'hugetlb',
    'memory/x/cgroup.procs': '',
    'cpu,cpuacct/cgroup.procs': '',
    'pids/cgroup.procs': '',
  });
  const root = openCgroups({ mounts: unified(join(at.path, 'v2')), membership: '0::/\n' });
  expect(root?.controllers).toEqual(['memory', 'pids']);
  expect(existsSync(join(at.path, 'v2/loam-server'))).toBe(false);

  const v1 = (name: string) =>
    `32 31 0:29 / ${join(at.path, name)} rw,relatime - cgroup cgroup rw,${name}\n`;
  const found = openCgroups({
    mounts: unified(join(at.path, 'hybrid')) + v1('memory') + v1('cpu,cpuacct') + v1('pids'),
    membership: '5:pids:/\n4:cpu,cpuacct:/\n3:memory:/x\n0::/\n',
  });
  expect(found).toMatchObject({ version: 1, controllers: ['memory', 'cpu', 'pids'] });
  const group = found?.groupOf('a') ?? { folders: [] };
  expect(group.folders).toEqual(
    ['memory/x/loam/a', 'cpu,cpuacct/loam/a', 'pids/loam/a'].map((name) => join(at.path, name)),
  );
  const settings = found?.settingsOf(group, LIMITS) ?? [];
  createGroup(group, settings);
  applyGroupLimits(group, settings);
  expect(at.read('memory/x/loam/memory.limit_in_bytes')).toBe('9000000');
  expect(at.read('cpu,cpuacct/loam/cpu.shares')).toBe('512');
  expect(at.read('memory/x/loam/a/memory.memsw.limit_in_bytes')).toBe('1000000');
  expect(at.read('cpu,cpuacct/loam/a/cpu.cfs_quota_us')).toBe('150000');
  expect(at.read('pids/loam/a/pids.max')).toBe('77');
  expect(openCgroups({ mounts: '', membership: '0::/\n' })).toBeNull();
});

test('version 2: usage, processes and OOM kills of a group are read from its files', async () => {
  await using at = await folder({
    'g/memory.current': '5000\n',
    'g/memory.stat': 'anon 1\ninactive_file 2000\n',
    'g/cpu.stat': 'usage_usec 2500000\nuser_usec 1\n',
    'g/memory.events': 'low 0\noom 3\noom_kill 2\noom_group_kill 0\n',
    'g/cgroup.procs': '\n',
    'g/below/cgroup.procs': '0\n2147483646\n',
    'g/cgroup.kill': '',
    'g/pids.max': '77',
  });
  const group = { folders: [join(at.path, 'g')] };
  expect(readGroupUsage(group)).toEqual({ memoryBytes: 3000, cpuSeconds: 2.5 });
  expect(countOomKills(group)).toBe(2);
  expect(listGroupPids(group)).toEqual([2147483646]);
  expect(killGroupOnce(group)).toBe(true);
  // A kernel file would take the written value as a whole; this ordinary file keeps its second byte.
  expect([at.read('g/cgroup.kill'), at.read('g/pids.max')]).toEqual(['1', '07']);
  expect(readGroupUsage({ folders: [join(at.path, 'none')] })).toBeNull();
});

test('version 2: a kernel group is killed with its child groups, and removed', async (ctx) => {
  needs(ctx, 'cgroup2');
  const mount = readFileSync('/proc/self/mountinfo', 'utf8')
    .split('\n')
    .find((line) => line.includes(' - cgroup2 '));
  const group = { folders: [join(mount?.split(' ')[4] ?? '', `loam-test-${process.pid}`)] };
  const [place = ''] = group.folders;
  mkdirSync(join(place, 'below'), { recursive: true });
  const tag = `306.${process.pid}`;
  const forks = `echo 0 > ${place}/cgroup.procs
    (echo 0 > ${place}/below/cgroup.procs; exec setsid env -i sleep ${tag}) &
    while :; do sleep ${tag} & sleep 0.01; done`;
  const ended = once(spawn('sh', ['-c', forks], { stdio: 'ignore' }), 'exit');
  await eventually(() => expect(listGroupPids(group).length).toBeGreaterThan(5));
  await killGroup(group);
  expect(await ended).toEqual([null, 'SIGKILL']);
  await eventually(() => expect(listCommandLines(`sleep ${tag}`)).toEqual([]));
  await removeGroup(group);
  expect(existsSync(place)).toBe(false);
});
