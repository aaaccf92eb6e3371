/**
 * One database connection kept open for as long as the server lives. It holds the lock on the data folder,
 * which the database lets go of the moment we die, and it hears NOTIFY.
 */
import { createHash, randomUUID } from 'node:crypto';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { ConfigError } from './config.ts';
import type { Logger } from './log.ts';
import type { DatabaseTarget } from './postgres.ts';

const CHANNEL = 'loam';
/** A killed server's session is gone within `client_connection_check_interval`; a stranger's stays. */
const LOCK_PATIENCE_MS = 3_000;

export type Session = {
  close(): Promise<void>;
};

type Options = {
  target: DatabaseTarget;
  dataDir: string;
  log: Logger;
  /** Called with a notification's text, and with null when some may have been missed. */
  hear(text: string | null): void;
  /** Called when the folder was lost to another server while our connection was down. */
  onLost(error: Error): void;
};

/** @throws Error when another server holds the data folder. */
export async function openSession(options: Options): Promise<Session> {
  const { target, dataDir, log, hear, onLost } = options;
  const lock = await folderLock(dataDir);
  const stopping = new AbortController();
  let client = await connect();

  async function connect(): Promise<pg.Client> {
    const fresh = new pg.Client({ ...target, keepAlive: true });
    // Heard from the beginning: an `error` that nobody hears ends the process. `end` follows every one.
    fresh.on('error', (error) => log.warn({ err: error }, 'database session lost'));
    await fresh.connect();
    try {
      await takeLock(fresh, lock, dataDir);
      fresh.on('notification', ({ payload }) => hear(payload ?? null));
      await fresh.query(`listen ${CHANNEL}`);
    } catch (error) {
      await fresh.end().catch(() => {});
      throw error;
    }
    fresh.once('end', () => void reconnect());
    return fresh;
  }

  async function reconnect(): Promise<void> {
    for (let wait = 50; !stopping.signal.aborted; wait = Math.min(wait * 2, 5_000)) {
      try {
        client = await connect();
        if (stopping.signal.aborted) await client.end();
        hear(null);
        return;
      } catch (error) {
        if (error instanceof FolderTaken) return onLost(error);
        await delay(wait, undefined, { signal: stopping.signal }).catch(() => {});
      }
    }
  }

  return {
    async close() {
      stopping.abort();
      await client.end().catch(() => {});
    },
  };
}

class FolderTaken extends ConfigError {}

async function takeLock(client: pg.Client, lock: bigint, dataDir: string): Promise<void> {
  const deadline = Date.now() + LOCK_PATIENCE_MS;
  for (;;) {
    const { rows } = await client.query('select pg_try_advisory_lock($1) as taken', [lock]);
    if (rows[0].taken) return;
    if (Date.now() > deadline)
      throw new FolderTaken(
        `LOAM_DATA_DIR: another Loam server is using ${dataDir}; stop it, or set another folder`,
      );
    await delay(100);
  }
}

/** A number that stands for the folder wherever it is mounted: from an id written into it once. */
async function folderLock(dataDir: string): Promise<bigint> {
  await mkdir(dataDir, { recursive: true });
  const file = join(dataDir, 'instance-id');
  await writeFile(file, `${randomUUID()}\n`, { flag: 'wx', flush: true }).catch((error) => {
    if (error.code !== 'EEXIST') throw error;
  });
  const digest = createHash('sha256')
    .update(await readFile(file))
    .digest();
  return digest.readBigInt64BE();
}
