/** `loam shell` */
import type { Program } from '../command.ts';
import { connectHere, type LocalConnection } from '../connection.ts';
import { EXIT, SessionLost, UsageError } from '../exit.ts';
import { demandSession, runInJob, type SessionStreams, type TerminalSize } from '../job-session.ts';
import { parseSeconds, toShell } from '../options.ts';
import { LoamError } from '../sdk/errors.ts';
import { isFinal } from '../sdk/job-info.ts';
import { nameFor } from '../sdk/job-input.ts';
import type { Job } from '../sdk/jobs.ts';
import { duration, note } from '../terminal.ts';
import { announced, describeEnd, exitCodeOfJob, waitForLine } from './follow.ts';
import { InterruptHandler } from './interrupt.ts';
import { jobOf } from './job-name.ts';
import { createNewJob, type NewJobOptions, withJobOptions } from './new-job.ts';
import { endShell, joinCommand, READY, readIdleSeconds, waitingCommand } from './shell-job.ts';

const EXPLANATION = `
The shell runs beside the command of the job, with its files, environment and limits. On a terminal it has a terminal of
its own; otherwise input and outputs are pipes, and the input ends where yours ends. The exit code is that of the command,
and 255 when the connection is lost.

With --new, or any option that describes a job, a job is created that only waits for the shell and ends with it, as of
"srun --pty bash". Then all arguments are the command.

Examples:
  loam shell train
  loam shell ada/train -- nvidia-smi
  loam shell train -- tar c /work/logs | tar x
  loam shell --gpu A100-80GB --repo ada/model
  loam shell --new -- python3 -m pdb train.py`;

/** Variables of this machine that the shell gets; the server accepts no others. */
const PASSED = /^(LANG|LC_\w{1,30}|COLORTERM|NO_COLOR)$/;
const MAX_VARIABLES = 30;
const MAX_VARIABLE_LENGTH = 200;
const MAX_SIZE = 1_000;
/** Leaves what a program has switched on in the terminal: colours, the second screen, a hidden cursor, mouse and paste modes. */
const RESET = '\x1b[0m\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?2004l\r\n';

const IDLE_SECONDS = 1_800;
/** Timers of Node are not longer. */
const MAX_TIMER_MS = 2 ** 31 - 1;
/** How long the end of a job is waited for, which may have another shell open. */
const END_MS = 15_000;

export function addShellCommand(program: Program): void {
  withJobOptions(program.command('shell'))
    .description('Open a shell, or run a command, in a running job or a new one')
    .usage(
      '[options] JOB [-- COMMAND [ARGUMENT...]]\n       loam shell --new [options] [-- COMMAND [ARGUMENT...]]',
    )
    .argument('[job]', 'name or namespace/name; none with a new job')
    .argument('[command...]', 'the command; a single argument is shell text')
    .option('-n, --new', 'create a job for the shell')
    .option(
      '--idle <time>',
      'end the new job when no shell is open, or nothing happens on the terminal, for so long; 0: never (default: 30m)',
      parseSeconds,
    )
    .option('--join', 'come back to a job that was created for a shell; it ends with this shell')
    .option('-T, --no-terminal', 'use pipes also on a terminal')
    .addHelpText('after', EXPLANATION)
    .action(async (name, args, { terminal, new: isNew, join, idle, ...described }) => {
      const words = name === undefined ? [] : [name, ...args];
      const needsJob =
        isNew ||
        idle !== undefined ||
        Object.values(described).some((given) => given !== undefined);
      if (needsJob && join)
        throw new UsageError('--join is for a job that exists, and has no options for a new one.');
      if (needsJob && words.length > 0 && !process.argv.includes('--'))
        throw new UsageError(
          'A new job is created. Put the command after "--": loam shell --new -- nvidia-smi',
        );
      if (!needsJob && name === undefined)
        throw new UsageError('Name a running job, or create one for the shell with --new.');
      const connection = await connectHere(program.opts());
      process.exitCode = needsJob
        ? await openNew(connection, described, {
            command: words.length > 0 ? toShell(words) : null,
            idleSeconds: idle ?? IDLE_SECONDS,
            terminal,
          })
        : await openIn(connection, jobOf(connection, name ?? ''), {
            command: args.length > 0 ? toShell(args) : null,
            terminal,
            join: join === true,
          });
    });
}

type Wanted = {
  /** Null: a shell. */
  command: string | null;
  /** A terminal is used where there is one. */
  terminal: boolean;
};

/** @returns the exit code */
async function openIn(
  connection: LocalConnection,
  job: Job,
  { join, ...wanted }: Wanted & { join: boolean },
): Promise<number> {
  if (!join) return runShell(connection, job, wanted);
  const idleSeconds = await readIdleSeconds(connection, job);
  if (idleSeconds !== null) return runJoined(connection, job, { ...wanted, idleSeconds });
  throw new UsageError(`${job.namespace}/${job.name} does not wait for shells. Leave out --join.`);
}

/** Creates a job that waits for the shell, and opens the shell once the job runs. @returns the exit code */
async function openNew(
  connection: LocalConnection,
  options: NewJobOptions,
  wanted: Wanted & { idleSeconds: number },
): Promise<number> {
  const { command, idleSeconds } = wanted;
  const job = await createNewJob(connection, options, {
    name: nameFor(command ?? 'shell'),
    commandIn: (folder) => waitingCommand(folder, idleSeconds),
  });
  const interrupts = new InterruptHandler('Job', job, { canDetach: false });
  try {
    note(`Job ${job.namespace}/${job.name}: ${job.url}`);
    await demandRight(connection, job);
    if (await waitForLine(job, READY, announced())) {
      const code = await runJoined(connection, job, wanted);
      return interrupts.choice === 'cancel' ? EXIT.interrupted : code;
    }
    const info = await job.wait(announced());
    note(describeEnd(info));
    return interrupts.choice === 'cancel' ? EXIT.interrupted : exitCodeOfJob(info);
  } catch (error) {
    if (interrupts.choice === 'cancel' && error instanceof SessionLost) return EXIT.interrupted;
    throw error;
  } finally {
    interrupts.dispose();
  }
}

/** Asks the server, before the job runs, whether it will refuse the shell. A job without a shell is cancelled. */
async function demandRight(connection: LocalConnection, job: Job): Promise<void> {
  try {
    await demandSession(connection, job);
  } catch (error) {
    // Otherwise, as a rule, the job does not run yet.
    if (!(error instanceof LoamError) || error.status !== 403) return;
    await job.cancel().catch(() => {});
    throw error;
  }
}

/** Runs a shell that the job waits for, and ends the job. @returns the exit code */
async function runJoined(
  connection: LocalConnection,
  job: Job,
  { idleSeconds, ...wanted }: Wanted & { idleSeconds: number },
): Promise<number> {
  const closing = new AbortController();
  let isIdle = false;
  const endIdle = async () => {
    isIdle = true;
    // The job ends, and the session with it.
    await endShell(connection, job, 'idle').catch(() => {});
    closing.abort(new SessionLost('the terminal was idle'));
  };
  const timer =
    idleSeconds > 0 && hasTerminal(wanted)
      ? setTimeout(() => void endIdle(), Math.min(idleSeconds * 1_000, MAX_TIMER_MS))
      : undefined;
  let code: number;
  try {
    code = await runShell(
      connection,
      job,
      { ...wanted, command: joinCommand(wanted.command) },
      { signal: closing.signal, onActivity: () => !isIdle && timer?.refresh() },
    );
  } catch (error) {
    if (!(error instanceof SessionLost)) throw error;
    if (!isIdle) {
      await explainLoss(job, idleSeconds);
      throw error;
    }
    code = EXIT.sessionLost;
  } finally {
    clearTimeout(timer);
  }
  if (isIdle) {
    process.stdout.write(RESET);
    note(`There was no key and no output for ${duration(idleSeconds)}.`);
  }
  await endJob(connection, job, isIdle);
  return isIdle ? EXIT.sessionLost : code;
}

/** Says whether one can come back to a job after the connection was lost. */
async function explainLoss(job: Job, idleSeconds: number): Promise<void> {
  const info = await job.info().catch(() => null);
  const path = `${job.namespace}/${job.name}`;
  const limit = idleSeconds > 0 ? ` for ${duration(idleSeconds)}` : '';
  note(
    info && isFinal(info.status)
      ? describeEnd(info)
      : `${path} waits for you${limit}. Come back with: loam shell --join ${path}`,
  );
}

/** Lets the job end, which has no shell any more. */
async function endJob(connection: LocalConnection, job: Job, wasTold: boolean): Promise<void> {
  const path = `${job.namespace}/${job.name}`;
  const told = wasTold ? Promise.resolve() : endShell(connection, job, 'end');
  // It also fails when the job has ended already.
  const failure = await told.then(
    () => null,
    (error: Error) => error,
  );
  const info = await job.wait({ signal: AbortSignal.timeout(END_MS) }).catch(() => null);
  if (info) note(describeEnd(info));
  else if (failure) note(`${path} could not be ended: ${failure.message}`);
  else note(`${path} goes on: another shell is open in it, or its artifacts are being stored.`);
}

function hasTerminal({ terminal }: Wanted): boolean {
  return terminal && process.stdin.isTTY === true && process.stdout.isTTY === true;
}

/** @returns the exit code of the command */
async function runShell(
  connection: LocalConnection,
  job: Job,
  wanted: Wanted,
  more: Pick<SessionStreams, 'signal' | 'onActivity'> = {},
): Promise<number> {
  const { command } = wanted;
  const { stdin, stdout, stderr } = process;
  const streams = { stdin, stdout, stderr, ...more };
  if (!hasTerminal(wanted))
    return runInJob(connection, job, { command, env: passedVariables() }, streams);
  return onTerminal((onOpen) =>
    runInJob(
      connection,
      job,
      { command, env: passedVariables(['TERM']), terminal: sizeOfTerminal() },
      { ...streams, onOpen },
    ),
  );
}

type OnOpen = (resize: (size: TerminalSize) => void) => void;

/** Passes keys and sizes of the terminal on while `run` lasts. Node restores its modes when a signal ends this process. */
async function onTerminal(run: (onOpen: OnOpen) => Promise<number>): Promise<number> {
  const { stdin, stdout } = process;
  let onResize = () => {};
  try {
    return await run((resize) => {
      stdin.setRawMode(true);
      onResize = () => resize(sizeOfTerminal());
      stdout.on('resize', onResize);
    });
  } catch (error) {
    if (error instanceof SessionLost) stdout.write(RESET);
    throw error;
  } finally {
    stdout.off('resize', onResize);
    stdin.setRawMode(false);
  }
}

/** A terminal without a size, such as one that a program has made, gets the usual one. */
function sizeOfTerminal(): TerminalSize {
  const { columns, rows } = process.stdout;
  return { columns: Math.min(columns || 80, MAX_SIZE), rows: Math.min(rows || 24, MAX_SIZE) };
}

function passedVariables(more: readonly string[] = []): Record<string, string> {
  const passed = Object.entries(process.env).flatMap(([name, value = '']): [string, string][] =>
    (PASSED.test(name) || more.includes(name)) && value.length <= MAX_VARIABLE_LENGTH
      ? [[name, value]]
      : [],
  );
  return Object.fromEntries(passed.slice(0, MAX_VARIABLES));
}
