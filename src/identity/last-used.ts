/**
 * Records when each credential was last used, to the minute. Uses are collected in memory and written in batches, so
 * that a credential costs at most one row update a minute, and no request waits for it.
 */
import type pg from 'pg';
import type { Logger } from '../base/log.ts';
import type { Account, CredentialKind } from './permissions.ts';

/** Short, so that a user who looks right after a request sees it. */
const DELAY_MS = 250;
const MINUTE_MS = 60_000;

export type LastUsedRecorder = AsyncDisposable & {
  note(credential: Account['credential']): void;
};

/** The token of a job has no row: it lives as long as an attempt. A schedule is no credential that a client sends. */
const STATEMENTS: Record<Exclude<CredentialKind, 'job' | 'schedule'>, string> = {
  pat: updateStatement('access_tokens'),
  key: updateStatement('api_keys'),
  ssh: updateStatement('ssh_keys'),
  deploy: updateStatement('ssh_keys'),
  session: updateStatement('browser_sessions'),
  // The credential id also contains the expiry of the token (`authenticate.ts`).
  oidc: updateStatement('identities').replace('used.id', `split_part(used.id, '.', 1)`),
};

/** Disposing writes the uses that are still in memory. */
export function openLastUsedRecorder({
  pool,
  log,
}: {
  pool: pg.Pool;
  log: Logger;
}): LastUsedRecorder {
  let minute = 0;
  /** Ids already noted in this minute. */
  const seen = new Set<string>();
  let notes: { kind: keyof typeof STATEMENTS; id: string; at: Date }[] = [];
  let timer: NodeJS.Timeout | undefined;
  let written = Promise.resolve();

  async function write(batch: typeof notes): Promise<void> {
    for (const kind of Object.keys(STATEMENTS) as (keyof typeof STATEMENTS)[]) {
      const rows = batch.filter((note) => note.kind === kind);
      if (rows.length === 0) continue;
      const values = [rows.map(({ id }) => id), rows.map(({ at }) => at)];
      await pool.query(STATEMENTS[kind], values);
    }
  }

  function flush(): Promise<void> {
    clearTimeout(timer);
    timer = undefined;
    const batch = notes;
    notes = [];
    // After a failed write, the first request of the next minute records the use.
    written = written
      .then(() => write(batch))
      .catch((error) => log.warn({ err: error }, 'the last use of credentials was not recorded'));
    return written;
  }

  return {
    note({ kind, id }) {
      if (kind === 'job' || kind === 'schedule') return;
      const now = Math.floor(Date.now() / MINUTE_MS);
      if (now !== minute) seen.clear();
      minute = now;
      if (seen.has(id)) return;
      seen.add(id);
      notes.push({ kind, id, at: new Date(minute * MINUTE_MS) });
      timer ??= setTimeout(flush, DELAY_MS);
    },
    [Symbol.asyncDispose]: flush,
  };
}

/** The comparison keeps a later minute that another server may have written. */
function updateStatement(
  table: 'access_tokens' | 'api_keys' | 'ssh_keys' | 'browser_sessions' | 'identities',
): string {
  return `update ${table} c set last_used_at = used.at
    from unnest($1::text[], $2::timestamptz[]) as used (id, at)
    where c.id = used.id and (c.last_used_at is null or c.last_used_at < used.at)`;
}
