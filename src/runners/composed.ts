/**
 * Several runners as one: of several kinds on the same machine, and of several machines. `choose` says which one runs an
 * attempt, and its handle names it from then on.
 */
import { type Handle, type Machine, type Runner, RunnerAway } from './runner.ts';

export type Kinds = Readonly<Record<string, Runner>>;

/** Which runs a job on a machine, by whether it names an image; null: none does. */
export type Choose = (hasImage: boolean, machine: string) => string | null;

/** @param name stands in an attempt that was claimed and is not prepared */
export function composed(name: string, kinds: Kinds, choose: Choose): Runner {
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
    name,
    kinds: [...new Set([name, ...Object.keys(kinds)])],
    get machines() {
      const offered = joined(runners.flatMap(({ machines }) => machines)).map((machine) => ({
        ...machine,
        withImage: choose(true, machine.id) !== null,
        withoutImage: choose(false, machine.id) !== null,
      }));
      return offered.filter(({ withImage, withoutImage }) => withImage || withoutImage);
    },
    get engineAway() {
      return runners.some(({ engineAway }) => engineAway);
    },
    ...(warnings.length > 0 && { warning: warnings.join(' ') }),
    async prepare(spec, signal) {
      const runner = choose(spec.image !== null, spec.machine);
      // The machine was there when the job was given to it.
      if (runner === null) throw new RunnerAway(`the machine ${spec.machine} does not answer`);
      return { ...(await of({ runner }).prepare(spec, signal)), runner };
    },
    start: (handle, mayBegin) => of(handle).start(handle, mayBegin),
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

/** A computer that several of them use is one, and all of them share its GPUs. */
function joined(machines: readonly Machine[]): Machine[] {
  const found = new Map<string, Machine>();
  for (const machine of machines) {
    const other = found.get(machine.id);
    found.set(machine.id, other ? { ...other, gpus: { ...machine.gpus, ...other.gpus } } : machine);
  }
  return [...found.values()];
}
