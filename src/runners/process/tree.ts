/** Signals, kills and lists all processes of a job, and measures what they use. */
import { spawnSync } from 'node:child_process';
import { lstatSync } from 'node:fs';
import {
  killAll,
  killMarked,
  listDescendants,
  listMarkedPids,
  listPids,
  readProcessStat,
  readProportionalMemory,
  signalOne,
  terminateAll,
} from '../supervisor/proc.ts';
import { signalUserCommand } from '../supervisor/user.ts';
import { type Cgroup, hasProcesses, killGroup, listGroupPids } from './cgroup.ts';
import { type Command, PATH } from './launch.ts';

/** Maximum rounds of killing processes that fork meanwhile. A round takes about 10 ms. The server repeats the kill. */
const MAX_ROUNDS = 100;

export type ProcessTree = {
  pids(): number[];
  terminate(): void;
  kill(): void;
  /** Kills remaining processes after the end of the first process. */
  killRest(): Promise<void>;
};

type JobProcesses = { attempt: string; command: Command; cgroup: Cgroup | null };

/** Control groups contain all processes of the job, also those that left its process tree. */
export function openProcessTree(
  { attempt, command, cgroup }: JobProcesses,
  root: number | undefined,
  up: Promise<number>,
): ProcessTree {
  const { setup, uid } = command;
  const hasOwnUserOrSandbox = setup !== null || uid !== null;
  const tree =
    setup !== null
      ? openSandboxTree(up)
      : uid === null
        ? openUnconfinedTree(attempt, root)
        : openUserTree(uid, root);
  if (!cgroup) return tree;
  // The first process joins the group shortly after its start, so the tree is listed too.
  const pids = () => [...new Set([...tree.pids(), ...listGroupPids(cgroup)])];
  // If a process hangs in the kernel, the server retries the kill.
  const killAllInGroup = () => killGroup(cgroup).catch(() => {});
  return {
    pids,
    // In a sandbox, the sandbox's own processes, which are in the group too, get no signal.
    terminate: hasOwnUserOrSandbox ? tree.terminate : () => void terminateAll(pids),
    kill() {
      tree.kill();
      void killAllInGroup();
    },
    async killRest() {
      // Most jobs leave no process, and none starts in the group after the end of the first.
      if (hasProcesses(cgroup)) await killAllInGroup();
    },
  };
}

/** The first process of the sandbox is the init of its pid namespace: when it is killed, all others are. */
function openSandboxTree(up: Promise<number>): ProcessTree {
  let first: number | undefined;
  void up.then((init) => {
    first = init;
  });
  const terminate = (init: number) => {
    // The command may not have started yet. A signal before its start would reach no process.
    if (!terminateAll(() => listDescendants(init)) && readProcessStat(init))
      setTimeout(terminate, 10, init).unref();
  };
  return {
    pids: () => (first ? listDescendants(first) : []),
    terminate: () => void up.then(terminate),
    kill: () => void up.then((init) => signalOne(init, 'SIGKILL')),
    // All processes have died with the first, and its pid may belong to another process by now.
    killRest: async () => {},
  };
}

/** The processes of the job's user. Each job has a user of its own. */
function openUserTree(uid: number, root: number | undefined): ProcessTree {
  const ownerOf = (pid: number) => lstatSync(`/proc/${pid}`, { throwIfNoEntry: false })?.uid;
  const signal = (name: 'TERM' | 'KILL') => {
    // The first process may not have changed to that user yet.
    const isStillRoot =
      root && ownerOf(root) === 0 && readProcessStat(root)?.parent === process.pid;
    if (isStillRoot) signalOne(root, `SIG${name}`);
    const [program = '', ...args] = signalUserCommand(uid, name);
    spawnSync(program, args, { env: { PATH } });
  };
  return {
    pids: () => listPids().filter((pid) => ownerOf(pid) === uid),
    terminate: () => signal('TERM'),
    kill: () => signal('KILL'),
    killRest: async () => signal('KILL'),
  };
}

/** Daemons that left the tree are found by the attempt's variable, which they inherited in their environment. */
function openUnconfinedTree(attempt: string, root: number | undefined): ProcessTree {
  const pids = () => {
    // A pid that is not a child of the shim any more may belong to another program.
    const alive =
      root && readProcessStat(root)?.parent === process.pid ? [root, ...listDescendants(root)] : [];
    return [...new Set([...alive, ...listMarkedPids(attempt)])];
  };
  // Without /proc only the process group can be reached.
  const signalGroup = (name: NodeJS.Signals) => root && signalOne(-root, name);
  const isLinux = process.platform === 'linux';
  const kill = () => {
    if (!isLinux) return void signalGroup('SIGKILL');
    killAll(pids);
    for (let round = 0, empty = 0; round < MAX_ROUNDS && empty < 2; round++)
      empty = killMarked(attempt) ? 0 : empty + 1;
  };
  return {
    pids,
    terminate: () => void (isLinux ? terminateAll(pids) : signalGroup('SIGTERM')),
    kill,
    killRest: async () => kill(),
  };
}

/** USER_HZ, which is 100 on every Linux that Node runs on. */
const TICKS_PER_SECOND = 100;

type TreeUsage = { cpuSeconds: number; memoryBytes: number };

/** What `root` and its descendants use, from /proc; null when `root` is gone, and on other systems than Linux. */
export function readTreeUsage(root: number): TreeUsage | null {
  if (!readProcessStat(root)) return null;
  let ticks = 0;
  let memoryBytes = 0;
  for (const pid of [root, ...listDescendants(root)]) {
    const fields = readProcessStat(pid)?.fields;
    if (!fields) continue;
    // Fields 14 to 17: user and system time of the process and of its reaped children. So each second is counted once,
    // whether its process is alive or has ended.
    for (const field of fields.slice(11, 15)) ticks += Number(field);
    memoryBytes += readProportionalMemory(pid);
  }
  return { cpuSeconds: ticks / TICKS_PER_SECOND, memoryBytes };
}
