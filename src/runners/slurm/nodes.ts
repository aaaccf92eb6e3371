/** What `sinfo` says about the nodes of the partition. */
import type { Commands } from './commands.ts';

/** Nodes that are alike. */
type NodeGroup = { cpus: number; memoryMb: number; gres: string };

export type Partition = {
  name: string;
  /** The largest nodes first: by CPUs, then by memory. Never empty. */
  groups: NodeGroup[];
  /** Time limit in minutes; Infinity: none. */
  maxMinutes: number;
};

const FORMAT = '--Format=Partition:|,CPUs:|,Memory:|,Time:|,Gres:|';

/** @throws RunnerUnavailable, or Error with the reason why no partition is usable */
export async function readPartition(
  commands: Commands,
  wanted: string | undefined,
): Promise<Partition> {
  const only = wanted === undefined ? [] : [`--partition=${wanted}`];
  // `--exact`: otherwise nodes that differ are one line with the smallest of them.
  const output = await commands.run('sinfo', ['--noheader', '--exact', ...only, FORMAT]);
  return parsePartition(output, wanted);
}

/** @throws Error with the reason why no partition is usable */
export function parsePartition(output: string, wanted?: string): Partition {
  const lines = output.split('\n').flatMap((line) => {
    const [partition = '', cpus = '', memory = '', time = '', gres = ''] = line
      .split('|')
      .map((text) => text.trim());
    const name = partition.replace(/\*$/, '');
    const isWanted = wanted === undefined ? partition.endsWith('*') : name === wanted;
    if (!isWanted || !/^\d/.test(cpus)) return [];
    const size = { cpus: Number.parseInt(cpus, 10), memoryMb: Number.parseInt(memory, 10) };
    return [{ name, time, ...size, gres: gres === '(null)' ? '' : gres }];
  });
  const [first] = lines;
  if (!first)
    throw new Error(
      wanted === undefined
        ? 'Slurm has no default partition with nodes: set LOAM_SLURM_PARTITION'
        : `Slurm has no partition ${wanted} with nodes (LOAM_SLURM_PARTITION)`,
    );
  const groups = lines
    .map(({ cpus, memoryMb, gres }) => ({ cpus, memoryMb, gres }))
    .sort((a, b) => b.cpus - a.cpus || b.memoryMb - a.memoryMb);
  return { name: first.name, groups, maxMinutes: parseMinutes(first.time) };
}

/** `infinite`, `30:00`, `4:00:00` or `2-12:00:00` */
function parseMinutes(text: string): number {
  const [, days = 0, hours = 0, minutes = 0] = (
    /^(?:(\d+)-)?(?:(\d+):)?(\d+):\d+$/.exec(text) ?? []
  ).map((part) => Number(part ?? 0));
  const total = (days * 24 + hours) * 60 + minutes;
  return total > 0 ? total : Number.POSITIVE_INFINITY;
}

/** Nodes of a hostlist such as `node[1-3]` that answer to the controller and are in service. */
export async function findAnsweringNodes(
  commands: Commands,
  hostlists: readonly string[],
): Promise<Set<string>> {
  const output = await commands.run('sinfo', [
    ...['--noheader', '--Node', '--all', `--nodes=${hostlists.join(',')}`],
    '--Format=NodeHost:|,StateLong:|',
  ]);
  const answering = output.split('\n').flatMap((line) => {
    const [node = '', state = ''] = line.split('|');
    return ANSWERING.test(state) ? [node] : [];
  });
  return new Set(answering);
}

/** A state that ends with `*` is that of a node that does not answer. */
const ANSWERING = /^(idle|mixed|allocated|completing|draining|drained|reserved)[+@$^-]?$/;
