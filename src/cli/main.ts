/**
 * The `loam` command. It speaks to servers through their public interfaces only, and `npm run build` makes one file of it,
 * `dist/cli/loam.mjs`.
 */
import { CommanderError } from '@commander-js/extra-typings';
import { isTokenOfEnvironment } from './connection.ts';
import { EXIT, exitCodeOf } from './exit.ts';
import { createProgram } from './program.ts';
import { LoamError } from './sdk/errors.ts';
import { note } from './terminal.ts';

/** A reader such as `head` that has ended is no failure. */
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code === 'EPIPE') process.exit(0);
  note(`loam: Cannot write to stdout: ${error.message}`);
  process.exit(EXIT.failure);
});
// A reader of stderr that has ended must not change the exit code.
process.stderr.on('error', () => {});

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
    note(
      isTokenOfEnvironment(program.opts())
        ? 'The token is that of LOAM_TOKEN. Correct this variable, or unset it to use that of "loam login".'
        : 'Run "loam login" to sign in again.',
    );
  return exitCodeOf(error);
}
