/** All processes of a job together: told to end, killed, or counted. */
import { type Cgroup, killGroup, pidsOf } from './cgroup.ts';
import { descendants, killAll, markedPids, signalOne, statOf, terminateAll } from './proc.ts';

export type Tree = {
  pids(): number[];
  terminate(): void;
  kill(): void;
  /** After the end of the first process: what is left of the others is killed. */
  clear(): Promise<void>;
};

/** `sandbox`: the first process is a sandbox's, in a pid namespace of its own. */
type Work = { attempt: string; sandbox: unknown; cgroup: Cgroup | null };

/** Where there are control groups, they know all processes of the job, wherever those went. */
export function treeOf(
  { attempt, sandbox, cgroup }: Work,
  root: number | undefined,
  up: Promise<number>,
): Tree {
  const tree = sandbox ? sandboxed(up) : unconfined(attempt, root);
  if (!cgroup) return tree;
  // The first process is in the group only when it has run a little.
  const pids = () => [...new Set([...tree.pids(), ...pidsOf(cgroup)])];
  // What hangs in the kernel is left to the server, which goes on trying.
  const clear = () => killGroup(cgroup).catch(() => {});
  return {
    pids,
    // Not to the sandbox's own processes: the tree knows which those are.
    terminate: sandbox ? tree.terminate : () => void terminateAll(pids),
    kill() {
      tree.kill();
      void clear();
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
    // It may not have started the command yet: there must be someone to hear it.
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

/** Daemons that left the tree are known by the marker in their environment. */
function unconfined(attempt: string, root: number | undefined): Tree {
  const pids = () => {
    // A pid that is no child of ours any more may be another's.
    const alive = root && statOf(root)?.parent === process.pid ? [root, ...descendants(root)] : [];
    return [...new Set([...alive, ...markedPids(attempt)])];
  };
  // Without /proc the process group is all that we can know.
  const group = (name: NodeJS.Signals) => root && signalOne(-root, name);
  const linux = process.platform === 'linux';
  const kill = () => void (linux ? killAll(pids) : group('SIGKILL'));
  return {
    pids,
    terminate: () => void (linux ? terminateAll(pids) : group('SIGTERM')),
    kill,
    clear: async () => kill(),
  };
}
