/**
 * Slurm's commands. They talk to the controller (slurmctld), which may be away for minutes; its jobs go on meanwhile. So
 * `RunnerUnavailable` says nothing about a job, and `Refusal` is an answer of the controller.
 */
import { runProgram } from '../../platform/processes/starter.ts';
import { RunnerFault, RunnerUnavailable } from '../runner.ts';

/** The controller refused the request, in its own words. */
export class Refusal extends Error {
  override name = 'Refusal';
}

/** The commands try to reach a controller and its backup for 10 s each, and a busy controller answers late. */
const TIMEOUT_MS = 60_000;

/** The controller did not answer, or it cannot answer at the moment. */
const UNREACHABLE =
  /Unable to contact slurm controller|Connection (refused|reset|timed out)|Socket timed out|Zero Bytes were transmitted|controller in standby|Communication connection failure|Transport endpoint|Unexpected message received|Protocol authentication error|Unable to establish controller machine|slurm_load_\w+ error: Unspecified|Unable to resolve|Insane message length/i;

/** The controller answered that it takes no more jobs for now. */
const BUSY =
  /temporarily unable to accept|Resource temporarily unavailable|MaxSubmit|SubmitJobsLimit|SubmitLimit|job submit limit|Required partition not available|maximum job count/i;

type Command = 'sbatch' | 'squeue' | 'scancel' | 'scontrol' | 'sinfo';
type Options = { input?: string; signal?: AbortSignal };

export type Commands = {
  /**
   * Runs a command, and returns its standard output.
   * @throws RunnerUnavailable, Refusal, or RunnerFault when this machine cannot run the command
   */
  run(command: Command, args: readonly string[], options?: Options): Promise<string>;
  /** Why the controller did not answer the latest command. */
  readonly unavailableReason: string | undefined;
};

/** @param conf Slurm's configuration file; undefined: Slurm's default */
export function createCommands(conf: string | undefined): Commands {
  // Nothing else of this process's environment: Slurm reads defaults of options from variables such as SBATCH_PARTITION.
  const env = {
    PATH: process.env.PATH ?? '/usr/bin:/bin',
    LC_ALL: 'C',
    // Times are seconds since 1970.
    SLURM_TIME_FORMAT: '%s',
    ...(conf && { SLURM_CONF: conf }),
  };
  let unavailableReason: string | undefined;

  async function run(command: Command, args: readonly string[], options: Options = {}) {
    const program = { file: command, args, env, cwd: '/' };
    const ending = await runProgram(program, { ...options, timeoutMs: TIMEOUT_MS }).catch(
      (error: NodeJS.ErrnoException) => {
        throw toStartError(command, error);
      },
    );
    options.signal?.throwIfAborted();
    if (ending.exceededLimit) throw new RunnerFault(`the output of ${command} is too long`);
    const words = toWords(ending.stderr);
    if (ending.code === 0) return Buffer.from(ending.stdout).toString();
    if (ending.code === null) throw new RunnerUnavailable(`${command} does not answer`);
    if (UNREACHABLE.test(ending.stderr)) throw new RunnerUnavailable(words);
    if (BUSY.test(ending.stderr)) throw new Busy(words);
    if (words === '') throw new RunnerFault(`${command} ended with ${ending.code}`);
    throw new Refusal(words);
  }

  return {
    get unavailableReason() {
      return unavailableReason;
    },
    async run(command, args, options) {
      try {
        const output = await run(command, args, options);
        unavailableReason = undefined;
        return output;
      } catch (error) {
        // An answer, though not the one that was hoped for.
        if (error instanceof Refusal || error instanceof Busy) unavailableReason = undefined;
        else if (error instanceof RunnerUnavailable) unavailableReason = error.message;
        throw error;
      }
    },
  };
}

/** The controller answers, but takes no jobs at the moment. */
class Busy extends RunnerUnavailable {
  override name = 'Busy';
}

function toStartError(command: string, { code, message }: NodeJS.ErrnoException): Error {
  if (code === 'ENOENT')
    return new RunnerFault(
      `there is no ${command} on this machine: install Slurm's commands (Debian: slurm-client)`,
    );
  return code === 'EAGAIN' || code === 'ENOMEM'
    ? new RunnerUnavailable(`${command} could not be started: ${message}`)
    : new RunnerFault(`${command} could not be started: ${message}`);
}

/** `sbatch: error: Batch job submission failed: Invalid account` → `Invalid account` */
function toWords(stderr: string): string {
  const lines = stderr
    .split('\n')
    .map((line) => line.replace(/^\w+: (error: )?/, '').replace(/^[\w ]+ failed: /, ''))
    .map((line) => line.trim())
    .filter(Boolean);
  return [...new Set(lines)].join('; ');
}
