/** Types and helpers that the pre-receive checks share. */

import { setImmediate as yieldToEventLoop } from 'node:timers/promises';
import type { NewObject, ObjectFilter } from '../../git/objects/new-objects.ts';
import type { RepositoryWithQuarantine } from '../../git/objects/walk.ts';
import type { ReceivedRefUpdate, Verdict } from '../../git/transport/hooks.ts';
import type { Actor } from '../../identity/audit.ts';

/** A push before its refs are updated. */
export type IncomingPush = {
  repository: { id: string; name: string; namespaceId: string };
  by: Actor;
  commands: readonly ReceivedRefUpdate[];
  /** The commits and tags that the refs will point to. Objects reachable from them and from no existing ref are new. */
  tips: readonly string[];
  /** The `git push -o` options. */
  options: readonly string[];
  /** The signal bounds the duration of the checks. */
  quarantined: RepositoryWithQuarantine;
};

/** Inspects the new objects of a push. The objects are read once for all scanners. */
export type ObjectScanner = {
  /** The objects to inspect. */
  filter: ObjectFilter;
  /** @returns whether the scanner has seen enough to reject the push */
  inspect(object: NewObject): Promise<boolean>;
  /** Called after all objects, or after `inspect` returned true. */
  verdict(): Promise<ScanVerdict>;
};

/** `store`: to call when all checks have accepted the push, before the push takes effect. */
export type ScanVerdict = Verdict & { store?: () => Promise<void> };

/** The reasons are shown to the pusher, one per line. */
export function reject(...reasons: string[]): Verdict {
  return { accepted: false, reasons };
}

/** Maximum time without yielding to the event loop, because an attacker can craft a push that takes long to check. */
const MAX_BUSY_MS = 10;

/**
 * Creates a function to call in each iteration of a loop over untrusted input. Every 10 ms, the function yields to the
 * event loop and throws the reason of the signal if the signal has aborted.
 */
export function createYielder(signal: AbortSignal): () => Promise<void> | undefined {
  let busySince = performance.now();
  return () => {
    if (performance.now() - busySince < MAX_BUSY_MS) return undefined;
    return yieldToEventLoop().then(() => {
      signal.throwIfAborted();
      busySince = performance.now();
    });
  };
}
