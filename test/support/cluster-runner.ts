/** A fake runner whose attempts wait for their start, as in the queue of a cluster, until the test decides. */
import type {
  AttemptSpec,
  Handle,
  Machine,
  Runner,
  StartOptions,
} from '../../src/runners/runner.ts';
import { type FakeRunner, fakeRunner } from './fake-runner.ts';

export type WaitingAttempt = {
  report: NonNullable<StartOptions['report']>;
  /** Starts the attempt on a node, if its worker still agrees. */
  admit(): void;
  /** The cluster loses the attempt before its start. */
  lose(): void;
  refuse(error: Error): void;
};

export type ClusterRunner = FakeRunner & {
  /** Name of the job → its attempt that waits. */
  waiting: ReadonlyMap<string, WaitingAttempt>;
  /** The handles with which ends were awaited. */
  awaited: readonly Handle[];
};

/** What an attempt waits for when it is submitted. */
export const WAITING_FOR_NODES = 'waiting for Slurm: no node is free';

type Options = {
  /** Attempts on ordinary machines among these do not wait. Default: one machine, on which they do. */
  machines?: Machine[];
  /** Attempts wait on although their job was cancelled or their server stops. */
  ignoresAbort?: boolean;
};

export function clusterRunner({ machines, ignoresAbort = false }: Options = {}): ClusterRunner {
  const fake = fakeRunner({ graceMs: 100, ...(machines && { machines }) });
  const specs = new Map<string, AttemptSpec>();
  const isCluster = (id: string) =>
    !machines || machines.some((machine) => machine.id === id && machine.maxJobs !== undefined);
  const waiting = new Map<string, WaitingAttempt>();
  const awaited: Handle[] = [];

  async function waitForNode(name: string, { report, signal }: StartOptions): Promise<boolean> {
    const turn = Promise.withResolvers<boolean>();
    const decide = (end: () => void) => {
      if (waiting.get(name) === attempt) waiting.delete(name);
      end();
    };
    const abort = () => decide(() => turn.resolve(false));
    const attempt: WaitingAttempt = {
      report: (text) => report?.(text),
      admit: () => decide(() => turn.resolve(true)),
      lose: abort,
      refuse: (error) => decide(() => turn.reject(error)),
    };
    waiting.set(name, attempt);
    if (!ignoresAbort) signal?.addEventListener('abort', abort);
    if (!ignoresAbort && signal?.aborted) abort();
    return turn.promise.finally(() => {
      signal?.removeEventListener('abort', abort);
    });
  }

  const start: Runner['start'] = async (handle, mayBegin, options = {}) => {
    if ((await fake.attach(handle)) === 'started') return true;
    const spec = specs.get(String(handle.attempt));
    if (!spec) throw new Error('not prepared');
    if (!isCluster(spec.machine)) return fake.start(handle, mayBegin);
    options.report?.(WAITING_FOR_NODES);
    if (!(await waitForNode(spec.job.name, options))) return false;
    return fake.start(handle, mayBegin && (() => mayBegin({ ...handle, node: 'node-7' })));
  };

  return {
    ...fake,
    waiting,
    awaited,
    prepare(spec, signal) {
      specs.set(spec.id, spec);
      return fake.prepare(spec, signal);
    },
    start,
    wait(handle, signal) {
      awaited.push(handle);
      return fake.wait(handle, signal);
    },
  };
}
