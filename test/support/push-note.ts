import { newId } from '../../src/base/ids.ts';
import type { ReceivedRefUpdate } from '../../src/git/transport/hooks.ts';
import { SERVER } from '../../src/identity/audit.ts';
import type { PushNote } from '../../src/repositories/pushes/rows.ts';

/** The note of a push that a server has accepted and not recorded yet. @param at as ISO 8601 */
export function pushNote(
  commands: ReceivedRefUpdate[],
  at: string = new Date().toISOString(),
): PushNote {
  return { kind: 'push', event: newId('evt'), pusher: 'ada', by: SERVER, commands, at };
}
