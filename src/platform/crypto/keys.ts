/**
 * One secret key for all that is signed or sealed, with a key of its own derived for each purpose, so that nobody
 * can compute one from another.
 *
 * It lies beside the database or in the environment, never in the database: a leaked dump forges no link and opens no
 * secret. The database only recognizes it, so that a server with another key stops at its start instead of failing
 * jobs whose secrets it cannot open.
 */
import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto';
import { mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { PrismaClient } from '../../../prisma/generated/client.ts';
import { type Config, ConfigError } from '../../base/config/config.ts';

export type Purpose =
  | 'signed links'
  | 'tokens for large files'
  | 'chunks of large files'
  | 'secrets of jobs'
  | 'secrets of webhooks'
  | 'findings of secrets'
  | 'recognition'
  | 'calls between servers'
  | 'host keys of SSH'
  | 'signing in';

export type Keys = {
  /** 32 bytes. */
  derive(purpose: Purpose): Uint8Array;
  /** What the secrets of jobs were sealed under before keys were derived. */
  underived: Uint8Array;
};

const KEY_BYTES = 32;
const FILE = 'secret-key';
/** Of earlier versions: for the secrets of jobs alone, and not as text. */
const EARLIER = 'secrets-key';

/**
 * The key of the configuration, or that of the data folder, made there on the first start.
 * @throws ConfigError when the file holds none
 */
export async function readKeys({
  secretKey,
  dataDir,
}: Pick<Config, 'secretKey' | 'dataDir'>): Promise<Keys> {
  const key = secretKey ?? (await readOrMake(dataDir));
  return {
    derive: (purpose) => Buffer.from(hkdfSync('sha256', key, '', `loam ${purpose}`, KEY_BYTES)),
    underived: key,
  };
}

async function readOrMake(dataDir: string): Promise<Uint8Array> {
  const file = join(dataDir, FILE);
  const text = await readIfThere(file);
  if (text) {
    const key = Buffer.from(text.toString('latin1'), 'base64');
    if (key.length === KEY_BYTES) return key;
    throw new ConfigError(`LOAM_DATA_DIR: ${file} does not hold ${KEY_BYTES} bytes as base64`);
  }
  const earlier = join(dataDir, EARLIER);
  const key = (await readIfThere(earlier)) ?? randomBytes(KEY_BYTES);
  await mkdir(dataDir, { recursive: true });
  // Whole or not at all, so that a kill meanwhile leaves nothing to mend.
  await writeFile(`${file}.new`, `${key.toString('base64')}\n`, { mode: 0o600, flush: true });
  await rename(`${file}.new`, file);
  await rm(earlier, { force: true });
  return key;
}

async function readIfThere(file: string): Promise<Buffer | null> {
  try {
    return await readFile(file);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw error;
  }
}

/**
 * Leaves a mark in a database that has none; the first of several servers does.
 * @throws ConfigError when the mark is that of another key
 */
export async function demandSameKey(db: PrismaClient, keys: Keys): Promise<void> {
  const name = FILE;
  const value = Buffer.from(keys.derive('recognition'));
  await db.setting.createMany({ data: { name, value }, skipDuplicates: true });
  const row = await db.setting.findUnique({ where: { name } });
  if (row && Buffer.from(row.value).equals(value)) return;
  throw new ConfigError(
    'LOAM_SECRET_KEY: the database belongs to servers with another key; give this one theirs ' +
      '(docs/operations.md says what to do when it is lost)',
  );
}

/**
 * Sealing: encrypted and authenticated under a key, AES-256-GCM. What is sealed is a random nonce of 12 bytes, the
 * tag of 16 bytes, and the text, in this order.
 */
const NONCE_BYTES = 12;
const TAG_BYTES = 16;

/** `context` is authenticated and not kept: whoever opens it must say the same, so it fits one place alone. */
export function seal(key: Uint8Array, text: Uint8Array, context = ''): Uint8Array<ArrayBuffer> {
  const nonce = randomBytes(NONCE_BYTES);
  const cipher = createCipheriv('aes-256-gcm', key, nonce).setAAD(Buffer.from(context));
  const hidden = Buffer.concat([cipher.update(text), cipher.final()]);
  return new Uint8Array(Buffer.concat([nonce, cipher.getAuthTag(), hidden]));
}

/** @throws Error when the key or the context is another, or the bytes were changed. */
export function open(key: Uint8Array, sealed: Uint8Array, context = ''): Buffer {
  const bytes = Buffer.from(sealed);
  const text = bytes.subarray(NONCE_BYTES + TAG_BYTES);
  const decipher = createDecipheriv('aes-256-gcm', key, bytes.subarray(0, NONCE_BYTES))
    .setAAD(Buffer.from(context))
    .setAuthTag(bytes.subarray(NONCE_BYTES, NONCE_BYTES + TAG_BYTES));
  return Buffer.concat([decipher.update(text), decipher.final()]);
}
