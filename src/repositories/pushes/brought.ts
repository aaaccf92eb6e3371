/** What the parts of the judge look at. */

import { setImmediate as others } from 'node:timers/promises';
import type { NewObject, Wanted } from '../../git/objects/new-objects.ts';
import type { Quarantined } from '../../git/objects/walk.ts';
import type { Command, Verdict } from '../../git/transport/hooks.ts';
import type { Actor } from '../../identity/audit.ts';

/** What a push brings. */
export type Brought = {
  repository: { id: string; name: string; namespaceId: string };
  by: Actor;
  commands: readonly Command[];
  /** What its refs are to point at; what is reachable from them, and from no ref yet, is new. */
  tips: readonly string[];
  /** Of `git push -o`. */
  options: readonly string[];
  /** Its signal bounds the time that looking may take. */
  place: Quarantined;
};

/** One who looks at the objects that a push brings, which are read once for all of them. */
export type Look = {
  /** The objects that it is shown. */
  wanted: Wanted;
  /** Whether it has seen enough to refuse the push. */
  see(object: NewObject): Promise<boolean>;
  /** When it has seen all of them, or enough. */
  verdict(): Promise<Verdict>;
};

/** Reasons are shown to who pushes, line by line. */
export function refused(...reasons: string[]): Verdict {
  return { accepted: false, reasons };
}

/* What a push brings may be made to take long to look at. */

/** Without letting other requests have their turn. */
const SLICE_MS = 10;

/**
 * What a loop calls in each round: now and then others have their turn, and the signal is heard.
 * @throws the reason of the signal
 */
export function takeTurns(signal: AbortSignal): () => Promise<void> | undefined {
  let since = performance.now();
  return () => {
    if (performance.now() - since < SLICE_MS) return undefined;
    return others().then(() => {
      signal.throwIfAborted();
      since = performance.now();
    });
  };
}
