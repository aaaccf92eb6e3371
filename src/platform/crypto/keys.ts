/**
 * The root secret key, and one key derived from it for each purpose, so that no derived key reveals another key.
 *
 * The root key is stored in a file of the data folder or in the environment, never in the database. So a leaked dump of
 * the database allows neither forging links nor decrypting secrets. The database only stores a value that identifies the
 * key: a server with another key stops at startup instead of failing jobs whose secrets it cannot decrypt.
 */
import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto';
import { mkdir, readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { PrismaClient } from '../../../prisma/generated/client.ts';
import { type Config, ConfigError } from '../../base/config/config.ts';

type Purpose =
  | 'signed links'
  | 'tokens for large files'
  | 'chunks of large files'
  | 'secrets of jobs'
  | 'tokens of jobs'
  | 'identity tokens of jobs'
  | 'secrets of webhooks'
  | 'stored secrets'
  | 'findings of secrets'
  | 'recognition'
  | 'calls between servers'
  | 'host keys of SSH'
  | 'signing in';

export type Keys = {
  /** 32 bytes. */
  derive(purpose: Purpose): Uint8Array;
};

const KEY_BYTES = 32;
const FILE = 'secret-key';

/**
 * Returns the key of the configuration, or the key of the data folder, which the first start generates.
 * @throws ConfigError if the key file is invalid
 */
export async function readKeys({
  secretKey,
  dataDir,
}: Pick<Config, 'secretKey' | 'dataDir'>): Promise<Keys> {
  const key = secretKey ?? (await readOrCreateKey(dataDir));
  return {
    derive: (purpose) => Buffer.from(hkdfSync('sha256', key, '', `loam ${purpose}`, KEY_BYTES)),
  };
}

async function readOrCreateKey(dataDir: string): Promise<Uint8Array> {
  const file = join(dataDir, FILE);
  const text = await readIfExists(file);
  if (text) {
    const key = Buffer.from(text.toString('latin1'), 'base64');
    if (key.length === KEY_BYTES) return key;
    throw new ConfigError(`LOAM_DATA_DIR: ${file} does not hold ${KEY_BYTES} bytes as base64`);
  }
  const key = randomBytes(KEY_BYTES);
  await mkdir(dataDir, { recursive: true });
  // Written under another name and renamed, so that a killed process leaves either a complete file or no file.
  await writeFile(`${file}.new`, `${key.toString('base64')}\n`, { mode: 0o600, flush: true });
  await rename(`${file}.new`, file);
  return key;
}

async function readIfExists(file: string): Promise<Buffer | null> {
  try {
    return await readFile(file);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw error;
  }
}

/**
 * Checks that the database belongs to this key. The first server stores a value that identifies the key.
 * @throws ConfigError if the database belongs to another key
 */
export async function requireSameKey(db: PrismaClient, keys: Keys): Promise<void> {
  const name = FILE;
  const value = Buffer.from(keys.derive('recognition'));
  await db.setting.createMany({ data: { name, value }, skipDuplicates: true });
  const row = await db.setting.findUnique({ where: { name } });
  if (row && Buffer.from(row.value).equals(value)) return;
  throw new ConfigError(
    'LOAM_SECRET_KEY: the database belongs to servers with another key; set the key of those servers ' +
      '(docs/operations.md says what to do if the key is lost)',
  );
}

/**
 * Encryption with AES-256-GCM. The result is a random 12-byte nonce, the 16-byte authentication tag and the ciphertext, in
 * this order.
 */
const NONCE_BYTES = 12;
const TAG_BYTES = 16;
/** By which a ciphertext is longer than its text. */
export const SEAL_BYTES = NONCE_BYTES + TAG_BYTES;

/** `context` is authenticated but not stored. `open` needs the same context, so a ciphertext is valid in one row only. */
export function seal(key: Uint8Array, text: Uint8Array, context = ''): Uint8Array<ArrayBuffer> {
  const nonce = randomBytes(NONCE_BYTES);
  const cipher = createCipheriv('aes-256-gcm', key, nonce).setAAD(Buffer.from(context));
  const ciphertext = Buffer.concat([cipher.update(text), cipher.final()]);
  return new Uint8Array(Buffer.concat([nonce, cipher.getAuthTag(), ciphertext]));
}

/** @throws Error if the key or the context differs, or the bytes were changed */
export function open(key: Uint8Array, sealed: Uint8Array, context = ''): Buffer {
  const bytes = Buffer.from(sealed);
  const ciphertext = bytes.subarray(NONCE_BYTES + TAG_BYTES);
  const decipher = createDecipheriv('aes-256-gcm', key, bytes.subarray(0, NONCE_BYTES))
    .setAAD(Buffer.from(context))
    .setAuthTag(bytes.subarray(NONCE_BYTES, NONCE_BYTES + TAG_BYTES));
  return Buffer.concat([decipher.update(ciphertext), decipher.final()]);
}

/**
 * Encrypts texts of the database for one purpose. The key is never in the database, so a leaked dump reveals no secrets. A
 * ciphertext is bound to the id of its row, so that it cannot be copied to another row.
 */
export type Sealer = {
  seal(id: string, text: string): Uint8Array<ArrayBuffer>;
  /** @throws Error if the text was encrypted with another key or for another id, or the bytes were changed */
  open(id: string, sealed: Uint8Array): string;
};

export function createSealer(keys: Keys, purpose: Purpose): Sealer {
  const key = keys.derive(purpose);
  return {
    seal: (id, text) => seal(key, Buffer.from(text), id),
    open: (id, sealed) => open(key, sealed, id).toString(),
  };
}
