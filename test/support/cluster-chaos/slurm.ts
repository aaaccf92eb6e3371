/** Slurm for the chaos test: what of it is killed, what explains a lost attempt, and what may be left over. */
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { eventually } from '../eventually.ts';
import { openSlurmCluster } from '../slurm/slurm.ts';
import type { ChaosCluster, Kill } from './cluster.ts';
import type { Loss } from './compare.ts';

/** Six jobs fit on two of the nodes. */
const SIZE = { nodes: 3, cpus: 6, memoryMb: 4_000 };
/** Seconds of silence until Slurm gives a node up, and between TERM and KILL. */
const SLURMD_TIMEOUT = 5;
const KILL_WAIT = 5;
/** The controller saves its state every few seconds, and has forgotten younger jobs after a kill. */
const UNSAVED_MS = 10_000;

export async function openSlurmChaos(): Promise<ChaosCluster> {
  const slurm = await openSlurmCluster({
    slurmdTimeout: SLURMD_TIMEOUT,
    killWait: KILL_WAIT,
    ...SIZE,
  });
  const { conf = '', dir = '', users = '' } = slurm.config;
  const restarted = (name: string, of?: string) => ({
    name,
    ...(of && { of: [of] }),
    kill: () => slurm.kill(name),
    async start() {
      const now = Date.now();
      await slurm.start(name);
      if (of) await isRegistered(of, now);
      await resumeDrained();
    },
  });
  /** Until slurmd has registered again, the controller may place jobs on the node that cannot be started there. */
  const isRegistered = (node: string, since: number) =>
    eventually(async () => {
      const shown = await slurm.command('scontrol', 'show', 'node', node);
      const [, startedAt = ''] = /SlurmdStartTime=(\S+)/.exec(shown) ?? [];
      // In whole seconds.
      if (!(Date.parse(startedAt) + 1_000 > since))
        throw new Error(`slurmd of ${node} has not registered since it was started`);
    });
  /** Slurm drains a node whose jobs could not be started or ended. An operator then returns it to service. */
  const resumeDrained = () =>
    eventually(async () => {
      const drained = await slurm.command('sinfo', '-h', '-N', '-t', 'drain', '-o', '%N %E');
      for (const line of drained.split('\n').filter(Boolean)) {
        console.log(`drained: ${line}`);
        const [node = ''] = line.split(' ');
        await slurm.command('scontrol', 'update', `nodename=${node}`, 'state=resume');
      }
    });
  /** The node falls silent, and answers again when the controller has given it up. Its jobs go on meanwhile. */
  const silenced = (node: string) => ({
    name: `${node} falls silent`,
    of: [node],
    kill: async () => void process.kill(await slurm.pid(`${node}/slurmd`), 'SIGSTOP'),
    async start() {
      try {
        await eventually(async () => {
          const state = await slurm.command('sinfo', '-h', '-n', node, '-o', '%T');
          if (!/^down|\*$/.test(state.trim())) throw new Error(`${node} is ${state}`);
        });
      } finally {
        process.kill(await slurm.pid(`${node}/slurmd`), 'SIGCONT');
      }
      await resumeDrained();
    },
  });
  const isOfSlurm = (name: string) =>
    name === 'slurmctld' || slurm.nodes.some((node) => name.startsWith(node));
  return {
    env: {
      LOAM_RUNNER: 'slurm',
      SLURM_CONF: conf,
      LOAM_SLURM_DIR: dir,
      LOAM_SLURM_USERS: users,
      LOAM_SLURM_NODE: process.execPath,
      LOAM_SLURM_MAX_JOBS: '6',
    },
    folder: 'clusters/slurm',
    say: 'bash',
    hostAddress: '127.0.0.1',
    victims: [
      restarted('slurmctld'),
      ...slurm.nodes.flatMap((node) => [
        restarted(node, node),
        restarted(`${node}/slurmd`, node),
        silenced(node),
      ]),
    ],
    isExplained({ node, created, begun, ended }: Loss, kills: readonly Kill[]) {
      const isDuring = (at: number) => at >= created && at <= ended;
      if (begun === null && listRefusals(slurm.readLog('slurmctld')).some(isDuring)) return true;
      return kills.some(({ name, from, to }) => {
        const isMeanwhile = from < ended && to > created;
        // Its node is unknown.
        if (begun === null) return isMeanwhile && isOfSlurm(name);
        if (name === 'slurmctld') return from > created && from < begun + UNSAVED_MS;
        return isMeanwhile && (name === node || name === `${node} falls silent`);
      });
    },
    async listLeftovers() {
      const jobs = await slurm.command('squeue', '-h', '-o', 'job %i %j %T');
      const folders = await readdir(slurm.shared, { recursive: true });
      return [
        ...jobs.trim().split('\n').filter(Boolean),
        // One folder for the worker, with its trash.
        ...folders
          .filter((path) => path.includes('/') && !path.endsWith('/.trash'))
          .map((path) => join('shared', path)),
      ];
    },
    [Symbol.asyncDispose]: () => slurm[Symbol.asyncDispose](),
  };
}

/**
 * After a kill, the controller gives the ids of jobs that it has forgotten to new jobs. A node that still has the old job refuses
 * the new one. @returns when that happened, in milliseconds since the epoch
 */
function listRefusals(log: string): number[] {
  const lines = log.matchAll(/^\[(\S+)\] (?:error: Duplicate jobid|Killing non-startable batch)/gm);
  return Array.from(lines, ([, time = '']) => Date.parse(time));
}
