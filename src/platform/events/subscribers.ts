/** Shared by the subscriptions to events of jobs and of repositories. */
import type pg from 'pg';
import { AppError, invalid } from '../../base/errors.ts';
import type { Db } from '../database/client.ts';
import type { Bus } from './bus.ts';
import { cursorTooOld } from './cursor.ts';
import { EventsRemoved, type OutboxEvent, type OutboxQuery, followEvents } from './read.ts';

/**
 * Follows the events that `query` selects.
 * @throws AppError 400 if `after` is not an event or events after it were removed; 503 when the server stops
 */
export async function* follow(
  services: { db: Db; pool: pg.Pool; bus: Bus },
  query: OutboxQuery,
  signal: AbortSignal,
): AsyncGenerator<OutboxEvent> {
  try {
    yield* followEvents(services, query, signal);
  } catch (error) {
    throw error instanceof EventsRemoved ? cursorTooOld() : error;
  }
  if (!signal.aborted) throw stopping();
}

/** Maximum number of namespaces in one subscription. */
const MAX_FOLLOWED = 100;

/** Returns the distinct namespaces to follow. `name` limits a single namespace to one job or repository. @throws AppError 400 */
export function followed(
  namespaces: readonly string[],
  name: string | null | undefined,
): [string, ...string[]] {
  const [first, ...others] = new Set(namespaces.map((each) => each.toLowerCase()));
  if (!first) throw invalid('namespaces', 'must contain at least one namespace');
  if (others.length >= MAX_FOLLOWED) throw invalid('namespaces', `must contain at most ${MAX_FOLLOWED} namespaces`);
  if (name != null && others.length > 0)
    throw invalid('name', 'can be given only with a single namespace');
  return [first, ...others];
}

/** Tells the client that the server ended the subscription; the followed job or repository still exists. */
export function stopping(): AppError {
  const message = 'The server is stopping; subscribe again with `after` set to the last event you received';
  return new AppError('internal_error', message, { status: 503 });
}
