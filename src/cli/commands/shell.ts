/** `loam shell` */
import type { Program } from '../command.ts';
import { connectHere } from '../connection.ts';
import { SessionLost } from '../exit.ts';
import { runInJob, type TerminalSize } from '../job-session.ts';
import { toShell } from '../options.ts';
import { jobOf } from './job-name.ts';

const EXPLANATION = `
The shell runs beside the command of the job, with its files, environment and limits. On a terminal it has a terminal of
its own; otherwise input and outputs are pipes, and the input ends where yours ends. The exit code is that of the command,
and 255 when the connection is lost.

Examples:
  loam shell train
  loam shell ada/train -- nvidia-smi
  loam shell train -- tar c /work/logs | tar x`;

/** Variables of this machine that the shell gets; the server accepts no others. */
const PASSED = /^(LANG|LC_\w{1,30}|COLORTERM|NO_COLOR)$/;
const MAX_VARIABLES = 30;
const MAX_VARIABLE_LENGTH = 200;
const MAX_SIZE = 1_000;
/** Leaves what a program has switched on in the terminal: colours, the second screen, a hidden cursor, mouse and paste modes. */
const RESET = '\x1b[0m\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?2004l\r\n';

export function addShellCommand(program: Program): void {
  program
    .command('shell')
    .description('Open a shell, or run a command, in a running job')
    .argument('<job>', 'name or namespace/name')
    .argument('[command...]', 'the command; a single argument is shell text')
    .option('-T, --no-terminal', 'use pipes also on a terminal')
    .addHelpText('after', EXPLANATION)
    .action(async (name, args, { terminal }) => {
      const connection = await connectHere(program.opts());
      const job = jobOf(connection, name);
      const command = args.length > 0 ? toShell(args) : null;
      const { stdin, stdout, stderr } = process;
      const isOnTerminal = terminal && stdin.isTTY === true && stdout.isTTY === true;
      const streams = { stdin, stdout, stderr };
      process.exitCode = isOnTerminal
        ? await onTerminal((onOpen) =>
            runInJob(
              connection,
              job,
              { command, env: passedVariables(['TERM']), terminal: sizeOfTerminal() },
              { ...streams, onOpen },
            ),
          )
        : await runInJob(connection, job, { command, env: passedVariables() }, streams);
    });
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
