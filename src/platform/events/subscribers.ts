/** What the subscriptions to events of jobs and of repositories share. */
import type pg from 'pg';
import { AppError, invalid } from '../../base/errors.ts';
import type { Db } from '../database/client.ts';
import type { Bus } from './bus.ts';
import { tooOld } from './cursor.ts';
import { EventsRemoved, type OutboxEvent, type OutboxQuery, readOutbox } from './read.ts';

/**
 * The events that `query` selects.
 * @throws AppError 400 when `after` is no event's, or events after it were removed; 503 when the server stops
 */
export async function* follow(
  services: { db: Db; pool: pg.Pool; bus: Bus },
  query: OutboxQuery,
  signal: AbortSignal,
): AsyncGenerator<OutboxEvent> {
  try {
    yield* readOutbox(services, query, signal);
  } catch (error) {
    throw error instanceof EventsRemoved ? tooOld() : error;
  }
  if (!signal.aborted) throw stopping();
}

/** Namespaces that can be followed at once. */
const MAX_FOLLOWED = 100;

/** The names of the namespaces to follow, each once. `name`: of one thing in the only one. @throws AppError 400 */
export function followed(
  namespaces: readonly string[],
  name: string | null | undefined,
): [string, ...string[]] {
  const [first, ...others] = new Set(namespaces.map((each) => each.toLowerCase()));
  if (!first) throw invalid('namespaces', 'must name at least one');
  if (others.length >= MAX_FOLLOWED) throw invalid('namespaces', `must be at most ${MAX_FOLLOWED}`);
  if (name != null && others.length > 0)
    throw invalid('name', 'can be given only with a single namespace');
  return [first, ...others];
}

/** Says that the server ended a subscription, and not what is followed. */
export function stopping(): AppError {
  const message = 'The server is stopping: subscribe again, with `after` the last one seen';
  return new AppError('internal_error', message, { status: 503 });
}
