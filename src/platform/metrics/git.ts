/** Git's processes, of which git tells on a channel (`git/processes/run.ts`): all of this Node process. */
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { Counter, Gauge, type Registry } from 'prom-client';
import { GIT_STARTED, type StartedGit } from '../processes/git-started.ts';

export function countGitProcesses(registry: Registry): Disposable {
  const registers = [registry];
  const started = new Counter({
    name: 'loam_git_processes_started_total',
    help: 'Git processes that were started, by command',
    labelNames: ['command'],
    registers,
  });
  const running = new Gauge({
    name: 'loam_git_processes_running',
    help: 'Git processes that run, those kept for reading among them',
    registers,
  });
  const count = (message: unknown) => {
    const { args, ended } = message as StartedGit;
    started.inc({ command: args[0] ?? '' });
    running.inc();
    void ended.then(() => running.dec());
  };
  subscribe(GIT_STARTED, count);
  return { [Symbol.dispose]: () => void unsubscribe(GIT_STARTED, count) };
}
