/**
 * What mutations answer: an object of their own each, nullable, so that of several mutations in one operation
 * one that is refused hides nothing that the others made.
 */
import { builder } from './builder.ts';

/** `{Mutation}Payload` with the id of what was deleted. */
export function deletionPayload(mutation: string) {
  return builder.objectRef<{ id: string }>(`${mutation}Payload`).implement({
    description: 'What was deleted.',
    fields: (t) => ({ id: t.exposeID('id', { description: 'The id of what was deleted.' }) }),
  });
}

/** The one argument of every mutation. */
export const INPUT = { required: true, description: 'The arguments of the mutation.' } as const;
