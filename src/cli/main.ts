/**
 * The `loam` command. Each file in `commands/` adds its commands to the program. It speaks to servers through their public
 * interfaces only, and `npm run build` makes one file of it, `dist/cli/loam.mjs`.
 */
import { Command, CommanderError } from '@commander-js/extra-typings';
import type { Program } from './command.ts';
import { addApiCommand } from './commands/api.ts';
import { addArtifactCommands } from './commands/artifacts.ts';
import { addCompletionCommand } from './commands/completion.ts';
import { addJobCommands } from './commands/jobs.ts';
import { addOpenCommand } from './commands/open.ts';
import { addRunCommand } from './commands/run.ts';
import { addSignInCommands } from './commands/sign-in.ts';
import { addTopCommand } from './commands/top.ts';
import { addVersionCommand } from './commands/version.ts';
import { EXIT, exitCodeOf } from './exit.ts';
import { LoamError } from './sdk/errors.ts';
import { note } from './terminal.ts';

const EXIT_CODES = `
Exit codes: 0 success; 1 failure; 2 wrong usage; 4 not signed in; 5 refused; 69 server unreachable; 130 interrupted.
"run" and "wait" exit with the code of the job.

Environment: LOAM_URL and LOAM_TOKEN name a server and a credential for it; HTTPS_PROXY, HTTP_PROXY and NO_PROXY are
obeyed; LOAM_CA names a file with a further certificate authority (PEM): certificates are always checked;
NO_COLOR turns colours off.`;

function createProgram(): Program {
  const program = new Command('loam')
    .description('Repositories and jobs of a Loam server')
    .option('--server <url>', 'the server, if not that of the clone or of the latest login')
    .option('--verbose', 'show the request id of errors')
    .addHelpText('after', EXIT_CODES)
    .showSuggestionAfterError()
    .configureOutput({ writeErr: (text) => process.stderr.write(text) })
    .exitOverride() as Program;
  addSignInCommands(program);
  addRunCommand(program);
  addJobCommands(program);
  addTopCommand(program);
  addArtifactCommands(program);
  addApiCommand(program);
  addOpenCommand(program);
  addVersionCommand(program);
  addCompletionCommand(program);
  return program;
}

/** A reader such as `head` that has ended is no failure. */
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  process.exit(error.code === 'EPIPE' ? 0 : EXIT.failure);
});

const program = createProgram();
try {
  await program.parseAsync();
} catch (error) {
  process.exitCode = report(error);
}

function report(error: unknown): number {
  // Commander has written the message.
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : EXIT.usage;
  note(`loam: ${error instanceof Error ? error.message : String(error)}`);
  if (program.opts().verbose && error instanceof LoamError && error.requestId)
    note(`request id: ${error.requestId}`);
  if (error instanceof LoamError && error.status === 401)
    note(`Run "loam login" to sign in again.`);
  return exitCodeOf(error);
}
