/** What a page and the worker that connects it say to each other. */
import type { LiveMessage, LiveRequest } from './hub.ts';

export type FromPage =
  | { kind: 'open'; id: number; request: LiveRequest }
  | { kind: 'close'; id: number }
  | { kind: 'here' }
  | { kind: 'bye' };

export type ToPage = [id: number, message: LiveMessage][];

/** Browsers let timers of hidden pages run once a minute, so a page that is there is heard of at least as often. */
export const HERE_MS = 45_000;
export const SILENT_MS = 150_000;
