/** A real Slurm cluster for tests, by `slurm.sh`. Its jobs run as `nobody`. */
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { mkdir, mkdtemp, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect } from 'vitest';
import { type SlurmConfig, slurmOptions } from '../../../src/base/config/slurm.ts';
import { eventually } from '../eventually.ts';
import { freePorts } from '../ports.ts';

const run = promisify(execFile);
const SCRIPT = join(import.meta.dirname, 'slurm.sh');

export type SlurmCluster = AsyncDisposable & {
  /** Options for an engine on this cluster, with `shared` as its shared folder. */
  config: SlurmConfig;
  /** Folder that all accounts may write to. */
  shared: string;
  /** By default two nodes with 2 CPUs and 2,000 MB; the last has two GPUs of type `gpu:fake`. */
  nodes: readonly [string, string, ...string[]];
  /** Kills a node, a node's daemon (`node/slurmd`) or `slurmctld` at once. */
  kill(name: string): Promise<void>;
  start(name: string): Promise<void>;
  /** Waits until slurmctld has written its present state to disk, which it does every few seconds. */
  saved(): Promise<void>;
  /** What a part has logged since the start of the cluster. */
  readLog(name: string): string;
  /** Process id on this machine. */
  pid(name: string): Promise<number>;
  /** Runs a command of Slurm. @returns its output */
  command(program: string, ...args: string[]): Promise<string>;
};

type Settings = {
  minJobAge?: number;
  slurmdTimeout?: number;
  killWait?: number;
  nodes?: number;
  /** CPUs and memory in MB of each node, which need not be those of this machine. */
  cpus?: number;
  memoryMb?: number;
};

export async function openSlurmCluster(settings: Settings = {}): Promise<SlurmCluster> {
  const {
    minJobAge = 300,
    slurmdTimeout = 60,
    killWait = 5,
    nodes = 2,
    cpus = 2,
    memoryMb = 2_000,
  } = settings;
  await using cleanup = new AsyncDisposableStack();
  const dir = await mkdtemp(join(tmpdir(), 'loam-slurm-'));
  cleanup.defer(() => rm(dir, { recursive: true, force: true }));
  const ports = await freePorts(1 + nodes);
  const node = `n${ports[0]}x`;
  const env = {
    ...process.env,
    PORTS: ports.join(' '),
    NODE: node,
    MIN_JOB_AGE: String(minJobAge),
    SLURMD_TIMEOUT: String(slurmdTimeout),
    KILL_WAIT: String(killWait),
    CPUS: String(cpus),
    MEMORY: String(memoryMb),
  };
  const script = async (...args: string[]) =>
    (await run('bash', [SCRIPT, ...args], { env })).stdout.trim();
  cleanup.defer(async () => void (await script('down', dir)));
  const conf = await script('up', dir);
  const shared = join(dir, 'shared');
  await mkdir(shared);
  const users = join(dir, 'users');
  await writeFile(users, '* nobody\n');
  const command = async (program: string, ...args: string[]) =>
    (await run(program, args, { env: { ...process.env, SLURM_CONF: conf } })).stdout;
  const owned = cleanup.move();
  return {
    config: slurmOptions.parse({
      conf,
      dir: shared,
      gpus: { T4: 'gpu:fake:2' },
      node: process.execPath,
      users,
    }),
    shared,
    nodes: [
      `${node}1`,
      `${node}2`,
      ...Array.from({ length: nodes - 2 }, (_, i) => `${node}${i + 3}`),
    ],
    kill: async (name) => void (await script('kill', dir, name)),
    start: async (name) => void (await script('start', dir, name)),
    async saved() {
      const now = Date.now();
      // Only a change is written, and the latest one may have been. This job never starts.
      await command('sbatch', '--hold', '--job-name=change', '--wrap=true');
      await eventually(async () =>
        expect((await stat(join(dir, 'state/job_state'))).mtimeMs).toBeGreaterThan(now),
      );
    },
    readLog: (name) => readFileSync(join(dir, 'log', name), 'utf8'),
    pid: async (name) => Number(await script('pid', dir, name)),
    command,
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}
