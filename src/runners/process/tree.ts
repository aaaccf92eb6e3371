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
import type { ProcessTree } from '../supervisor/supervise.ts';
import { signalUserCommand } from '../supervisor/user.ts';
import { type Cgroup, hasProcesses, killGroup, listGroupPids } from './cgroup.ts';
import { type Command, PATH } from './launch.ts';

/** Gives up after about a second (10 ms a round) of killing processes that fork meanwhile. The server repeats the kill. */
const MAX_ROUNDS = 100;
/** The kill ends after two rounds without a process, because one round may miss a process that is being forked. */
const EMPTY_ROUNDS = 2;

type TreeSpec = { attempt: string; command: Command; cgroup: Cgroup | null };

/**
 * Combines the tree for the job's confinement with its control group, which also contains processes that left the tree.
 * @param root the process that the shim started; undefined when it could not be started
 * @param up settles when the command runs, with the pid of its first process
 */
export function openProcessTree(
  { attempt, command, cgroup }: TreeSpec,
  root: number | undefined,
  up: Promise<number>,
): ProcessTree {
  const isUnconfined = command.setup === null && command.uid === null;
  const tree = openConfinedTree(attempt, command, root, up);
  if (!cgroup) return tree;
  // The first process joins the group shortly after its start, so the tree is listed too.
  const pids = () => [...new Set([...tree.pids(), ...listGroupPids(cgroup)])];
  // Errors are ignored: if a process hangs in the kernel, the server repeats the kill.
  const killAllInGroup = () => killGroup(cgroup).catch(() => {});
  return {
    pids,
    // The group also contains the processes of a sandbox itself, which must not get a signal.
    terminate: isUnconfined ? () => void terminateAll(pids) : tree.terminate,
    kill() {
      tree.kill();
      void killAllInGroup();
    },
    async killRemaining() {
      // Most jobs leave no process, and none starts in an empty group after the end of the first process.
      if (hasProcesses(cgroup)) await killAllInGroup();
    },
  };
}

function openConfinedTree(
  attempt: string,
  { setup, uid }: Command,
  root: number | undefined,
  up: Promise<number>,
): ProcessTree {
  const isSandboxed = setup !== null;
  if (isSandboxed) return openSandboxTree(up);
  return uid === null ? openUnconfinedTree(attempt, root) : openUserTree(uid, root);
}

/** The first process of the sandbox is the init of its pid namespace: when the kernel kills it, it kills all others too. */
function openSandboxTree(up: Promise<number>): ProcessTree {
  let initPid: number | undefined;
  void up.then((pid) => {
    initPid = pid;
  });
  // The command may not have started yet, and a signal before its start would reach no process. So the signal is retried
  // until the init has ended, at the latest by the SIGKILL after the grace period.
  const terminate = (init: number) => {
    if (!terminateAll(() => listDescendants(init)) && readProcessStat(init))
      setTimeout(terminate, 10, init).unref();
  };
  return {
    pids: () => (initPid ? listDescendants(initPid) : []),
    terminate: () => void up.then(terminate),
    kill: () => void up.then((init) => signalOne(init, 'SIGKILL')),
    // All processes have died with the init, whose pid may belong to another process by now.
    killRemaining: async () => {},
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
    killRemaining: async () => signal('KILL'),
  };
}

/** Finds daemons that left the tree by `LOAM_ATTEMPT_ID`, which they inherited in their environment. */
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
    for (let round = 0, empty = 0; round < MAX_ROUNDS && empty < EMPTY_ROUNDS; round++)
      empty = killMarked(attempt) ? 0 : empty + 1;
  };
  return {
    pids,
    terminate: () => void (isLinux ? terminateAll(pids) : signalGroup('SIGTERM')),
    kill,
    killRemaining: async () => kill(),
  };
}

/** USER_HZ, which is 100 on every Linux that Node runs on. */
const TICKS_PER_SECOND = 100;

type TreeUsage = { cpuSeconds: number; memoryBytes: number };

/** Usage of `root` and its descendants; null when `root` is gone, and on other systems than Linux. */
export function readTreeUsage(root: number): TreeUsage | null {
  if (!readProcessStat(root)) return null;
  let ticks = 0;
  let memoryBytes = 0;
  for (const pid of [root, ...listDescendants(root)]) {
    const fields = readProcessStat(pid)?.fields;
    if (!fields) continue;
    // Fields 14 to 17 of proc(5), of which `fields` begins with the third: user and system time of the process and of its
    // reaped children. So each second is counted once, whether its process is alive or has ended.
    for (const field of fields.slice(11, 15)) ticks += Number(field);
    memoryBytes += readProportionalMemory(pid);
  }
  return { cpuSeconds: ticks / TICKS_PER_SECOND, memoryBytes };
}
