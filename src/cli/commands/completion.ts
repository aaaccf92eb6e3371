/** `loam completion`: scripts that ask `loam complete`, so that they never fall behind the commands. */
import tab from '@bomb.sh/tab/commander';
import type { Program } from '../command.ts';

/** Call it after all other commands: it reads them. */
export function addCompletionCommand(program: Program): void {
  tab(program as never, { completionCommandName: 'completion' });
}
