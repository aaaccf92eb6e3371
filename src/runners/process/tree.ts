/** All processes of a job: sending them a signal, killing them, counting them. */
import { spawnSync } from 'node:child_process';
import { lstatSync } from 'node:fs';
import {
  allPids,
  descendants,
  killAll,
  killMarked,
  markedPids,
  proportionalMemory,
  signalOne,
  statOf,
  terminateAll,
} from '../supervisor/proc.ts';
import { signalUser } from '../supervisor/user.ts';
import { type Cgroup, hasProcesses, killGroup, pidsOf } from './cgroup.ts';
import { type Command, PATH } from './launch.ts';

/** Of killing what forks meanwhile. A round takes some 10 ms; the server goes on where they did not suffice. */
const MAX_ROUNDS = 100;

export type Tree = {
  pids(): number[];
  terminate(): void;
  kill(): void;
  /** After the end of the first process: what is left of the others is killed. */
  clear(): Promise<void>;
};

type Work = { attempt: string; command: Command; cgroup: Cgroup | null };

/** Where there are control groups, they contain all processes of the job, also those that left its tree. */
export function treeOf(
  { attempt, command, cgroup }: Work,
  root: number | undefined,
  up: Promise<number>,
): Tree {
  const { setup, uid } = command;
  const isKnown = setup !== null || uid !== null;
  const tree =
    setup !== null ? sandboxed(up) : uid === null ? unconfined(attempt, root) : ofUser(uid, root);
  if (!cgroup) return tree;
  // The first process is in the group only when it has run a little.
  const pids = () => [...new Set([...tree.pids(), ...pidsOf(cgroup)])];
  // What hangs in the kernel is left to the server, which goes on trying.
  const killRest = () => killGroup(cgroup).catch(() => {});
  // Most jobs leave nothing behind, and nothing is started in the group after the first process.
  const clear = async () => {
    if (hasProcesses(cgroup)) await killRest();
  };
  return {
    pids,
    // Not to the processes of the sandbox itself, which the tree shows.
    terminate: isKnown ? tree.terminate : () => void terminateAll(pids),
    kill() {
      tree.kill();
      void killRest();
    },
    clear,
  };
}

/** The first process of the sandbox is the root of its pid namespace: when it is killed, all in it are. */
function sandboxed(up: Promise<number>): Tree {
  let first: number | undefined;
  void up.then((init) => {
    first = init;
  });
  const terminate = (init: number) => {
    // The command may not have started yet, and a signal sent before would reach nobody.
    if (!terminateAll(() => descendants(init)) && statOf(init))
      setTimeout(terminate, 10, init).unref();
  };
  return {
    pids: () => (first ? descendants(first) : []),
    terminate: () => void up.then(terminate),
    kill: () => void up.then((init) => signalOne(init, 'SIGKILL')),
    // All have died with it, and its pid may be another's by now.
    clear: async () => {},
  };
}

/** Where each job has a user of its own, its processes are those of that user. */
function ofUser(uid: number, root: number | undefined): Tree {
  const ownerOf = (pid: number) => lstatSync(`/proc/${pid}`, { throwIfNoEntry: false })?.uid;
  const signal = (name: 'TERM' | 'KILL') => {
    // The first process may not have become that user yet.
    const isEarly = root && ownerOf(root) === 0 && statOf(root)?.parent === process.pid;
    if (isEarly) signalOne(root, `SIG${name}`);
    const [program = '', ...args] = signalUser(uid, name);
    spawnSync(program, args, { env: { PATH } });
  };
  return {
    pids: () => allPids().filter((pid) => ownerOf(pid) === uid),
    terminate: () => signal('TERM'),
    kill: () => signal('KILL'),
    clear: async () => signal('KILL'),
  };
}

/** Daemons that left the tree are recognized by the attempt's variable in their environment, which they inherited. */
function unconfined(attempt: string, root: number | undefined): Tree {
  const pids = () => {
    // A pid that is no child of ours any more may belong to another program by now.
    const alive = root && statOf(root)?.parent === process.pid ? [root, ...descendants(root)] : [];
    return [...new Set([...alive, ...markedPids(attempt)])];
  };
  // Without /proc only the process group can be reached.
  const group = (name: NodeJS.Signals) => root && signalOne(-root, name);
  const linux = process.platform === 'linux';
  const kill = () => {
    if (!linux) return void group('SIGKILL');
    killAll(pids);
    for (let round = 0, empty = 0; round < MAX_ROUNDS && empty < 2; round++)
      empty = killMarked(attempt) ? 0 : empty + 1;
  };
  return {
    pids,
    terminate: () => void (linux ? terminateAll(pids) : group('SIGTERM')),
    kill,
    clear: async () => kill(),
  };
}

/* What a process tree uses, from /proc. Linux alone: elsewhere there is nothing to read. */

/** USER_HZ, which is 100 on every Linux that Node runs on. */
const TICKS_PER_SECOND = 100;

type TreeUsage = { cpuSeconds: number; memoryBytes: number };

/** Of `root` and all below it; null when it is gone. */
export function usageOfTree(root: number): TreeUsage | null {
  if (!statOf(root)) return null;
  let ticks = 0;
  let memoryBytes = 0;
  for (const pid of [root, ...descendants(root)]) {
    const fields = statOf(pid)?.fields;
    if (!fields) continue;
    // Fields 14 to 17: own user and system time, and that of children that were waited for, so that
    // each second is counted once whether the process that used it is alive or over.
    for (const field of fields.slice(11, 15)) ticks += Number(field);
    memoryBytes += proportionalMemory(pid);
  }
  return { cpuSeconds: ticks / TICKS_PER_SECOND, memoryBytes };
}
