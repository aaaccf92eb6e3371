/**
 * Keys lie beside the database, not in it: a leaked dump forges no link and opens no secret.
 */
import { randomBytes } from 'node:crypto';
import { mkdir, readFile, rename, writeFile } from 'node:fs/promises';
import { dirname } from 'node:path';

const KEY_BYTES = 32;

/**
 * The 32 bytes in `file`, made on the first start. They are written whole or not at all, so that a kill
 * meanwhile leaves nothing to mend.
 */
export async function keyFile(file: string): Promise<Uint8Array> {
  try {
    const key = await readFile(file);
    if (key.length === KEY_BYTES) return key;
    throw new Error(`${file} does not hold a key of ${KEY_BYTES} bytes; remove it`);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
  }
  const key = randomBytes(KEY_BYTES);
  await mkdir(dirname(file), { recursive: true });
  await writeFile(`${file}.new`, key, { mode: 0o600, flush: true });
  await rename(`${file}.new`, file);
  return key;
}
