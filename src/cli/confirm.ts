/** The question before something is deleted that cannot be restored. */
import { UsageError } from './exit.ts';
import { ask, isInteractive } from './terminal.ts';

/**
 * Asks the user to type the full name of the object to delete, unless `--yes` is given.
 * @throws UsageError without a terminal, Error when the user types another name
 */
export async function confirmDeletion(
  name: string,
  consequence: string,
  { yes }: { yes?: true | undefined },
): Promise<void> {
  if (yes) return;
  if (!isInteractive)
    throw new UsageError(`Nothing was deleted. Without a terminal, confirm with --yes: ${name}`);
  const answer = await ask(`${consequence} Type ${name} to confirm: `);
  if (answer.trim() !== name) throw new Error(`Nothing was deleted. The answer is not ${name}.`);
}
