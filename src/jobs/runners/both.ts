/**
 * Several kinds of runner as one, on the same machines: `choose` says which kind runs an attempt, and its handle names it
 * from then on.
 */
import { type AttemptSpec, type Handle, type Machine, type Runner, Unstartable } from './runner.ts';

export type Kinds = Readonly<Record<string, Runner>>;

/** The kind of runner; or the reason for the job's user why there is none. */
export type Choose = (job: Pick<AttemptSpec, 'image'>) => string | Unstartable;

export function composed(kinds: Kinds, choose: Choose): Runner {
  const runners = Object.values(kinds);
  const warnings = runners.flatMap(({ warning }) => warning ?? []);
  // Handles of processes did not name it before there were others.
  const of = ({ runner = 'process' }: Handle): Runner => {
    const kind = kinds[String(runner)];
    if (!kind) throw new Error(`no runner of the kind "${runner}"`);
    return kind;
  };

  /** Each has its part of what is left, and all are tried. */
  async function all(step: (runner: Runner) => Promise<void>): Promise<void> {
    const ends = await Promise.allSettled(runners.map(step));
    const errors = ends.flatMap((end) => (end.status === 'rejected' ? [end.reason] : []));
    if (errors.length === 1) throw errors[0];
    if (errors.length > 1) throw new AggregateError(errors, errors.map(String).join('; '));
  }

  return {
    name: 'auto',
    kinds: ['auto', ...Object.keys(kinds)],
    machines: joined(runners.flatMap(({ machines }) => machines)),
    ...(warnings.length > 0 && { warning: warnings.join(' ') }),
    suits(job, machine) {
      const kind = choose(job);
      // One that cannot be started is told so anywhere.
      if (kind instanceof Unstartable) return true;
      return of({ runner: kind }).machines.some(({ id }) => id === machine);
    },
    async prepare(spec, signal) {
      const runner = choose(spec);
      if (runner instanceof Unstartable) throw runner;
      return { ...(await of({ runner }).prepare(spec, signal)), runner };
    },
    start: (handle) => of(handle).start(handle),
    attach: (handle) => of(handle).attach(handle),
    logs: (handle, cursor, signal) => of(handle).logs(handle, cursor, signal),
    signal: (handle, signal) => of(handle).signal(handle, signal),
    wait: (handle, signal) => of(handle).wait(handle, signal),
    stats: (handle) => of(handle).stats(handle),
    artifacts: (handle, path) => of(handle).artifacts(handle, path),
    remove: (handle) => all((runner) => runner.remove(handle)),
    sweep: (keep) => all((runner) => runner.sweep(keep)),
  };
}

/** A computer that several of them use is one, and all of them see its GPUs. */
function joined(machines: readonly Machine[]): Machine[] {
  const found = new Map<string, Machine>();
  for (const machine of machines) {
    const other = found.get(machine.id);
    found.set(machine.id, other ? { ...other, gpus: { ...machine.gpus, ...other.gpus } } : machine);
  }
  return [...found.values()];
}
