/**
 * What requests with an `Idempotency-Key` have changed outside of the database, in `idempotent_requests`. The transaction that
 * records the change also records the key of its request, so that a retry finds the change although the response was lost.
 */
import { type Queryable, runStatement, type StatementParts } from './statement.ts';

/** Identifies one change of a request. Serializable, because it is in notes on disk and in calls between servers. */
export type IdempotentEffect = {
  /** The id of the credential. */
  owner: string;
  key: string;
  /** The hash of the request, in hexadecimal digits. */
  fingerprint: string;
  /** The field of the mutation, because a request may have several. */
  field: string;
};

/** Adds the results of changes to a statement. A row that was released meanwhile is created as an abandoned one. */
export function addEffectsToStatement(
  { parts, parameter }: StatementParts,
  effects: readonly (IdempotentEffect & { result: string })[],
): void {
  if (effects.length === 0) return;
  parts.push(`effects as (
    insert into idempotent_requests as r (owner, key, fingerprint, effects, created_at)
    select e.owner, e.key, decode(e.fingerprint, 'hex'), jsonb_object_agg(e.field, e.result), now() - interval '1 minute'
    from jsonb_to_recordset(${parameter(JSON.stringify(effects), 'jsonb')}) as e
      (owner text, key text, fingerprint text, field text, result text)
    group by e.owner, e.key, e.fingerprint
    on conflict (owner, key) do update set effects = r.effects || excluded.effects
      where r.fingerprint = excluded.fingerprint)`);
}

/** Returns the result of an earlier try of the request; null if there is none. */
export async function findEffect(
  db: Queryable,
  { owner, key, fingerprint, field }: IdempotentEffect,
): Promise<string | null> {
  const [row] = await runStatement<{ result: string | null }>(
    db,
    `select effects ->> $4 as result from idempotent_requests
     where owner = $1 and key = $2 and fingerprint = decode($3, 'hex')`,
    [owner, key, fingerprint, field],
  );
  return row?.result ?? null;
}
