/**
 * When each credential was last used, to the minute (decisions section 6). Requests only leave a note; the
 * notes are written together a moment later, so that a credential costs one row a minute at the most,
 * however many requests it makes, and no request waits for it.
 */
import type pg from 'pg';
import type { Logger } from '../base/log.ts';
import type { Account, CredentialKind } from './permissions.ts';

/** Short enough that who looks right after a request sees it. */
const DELAY_MS = 250;
const MINUTE_MS = 60_000;

export type LastUsedRecorder = AsyncDisposable & {
  note(credential: Account['credential']): void;
};

const STATEMENTS: Record<CredentialKind, string> = {
  pat: statement('access_tokens'),
  key: statement('api_keys'),
  ssh: statement('ssh_keys'),
  deploy: statement('ssh_keys'),
  session: statement('browser_sessions'),
  // Of a token the id has its end too (`authenticate.ts`).
  oidc: statement('identities').replace('used.id', `split_part(used.id, '.', 1)`),
};

/** Disposing writes what is still noted. */
export function openLastUsedRecorder({
  pool,
  log,
}: {
  pool: pg.Pool;
  log: Logger;
}): LastUsedRecorder {
  let minute = 0;
  /** Noted in this minute already. */
  const seen = new Set<string>();
  let notes: { kind: CredentialKind; id: string; at: Date }[] = [];
  let timer: NodeJS.Timeout | undefined;
  let written = Promise.resolve();

  async function write(batch: typeof notes): Promise<void> {
    for (const kind of Object.keys(STATEMENTS) as CredentialKind[]) {
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
    // A note that is lost is replaced by the first request of the next minute.
    written = written
      .then(() => write(batch))
      .catch((error) => log.warn({ err: error }, 'the use of credentials was not recorded'));
    return written;
  }

  return {
    note({ kind, id }) {
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

/** Another server may have written a later minute. */
function statement(
  table: 'access_tokens' | 'api_keys' | 'ssh_keys' | 'browser_sessions' | 'identities',
): string {
  return `update ${table} c set last_used_at = used.at
    from unnest($1::text[], $2::timestamptz[]) as used (id, at)
    where c.id = used.id and (c.last_used_at is null or c.last_used_at < used.at)`;
}
