/**
 * The keys by which clients recognize this server: made once, by the first of the servers on a database, and kept there,
 * sealed, so that all of them have the same and a new machine goes on with them.
 */
import type { PrismaClient } from '../../prisma/generated/client.ts';
import type { Logger } from '../base/log.ts';
import type { Keys } from '../platform/crypto/keys.ts';
import { open, seal } from '../platform/crypto/keys.ts';
import { fingerprintOf, type PublicHostKey, readWireKey } from '../platform/crypto/ssh-keys.ts';

export type HostKey = PublicHostKey & {
  /** In OpenSSH's format. */
  privateKey: string;
};

const SETTING = 'ssh-host-keys';

/** What is kept of each. */
type StoredKeyPair = Pick<HostKey, 'publicKey' | 'privateKey'>;

/**
 * Ed25519 first, which clients prefer; ECDSA is for those that do not know it. Where the secret key was lost and replaced,
 * they are made anew, of which clients will warn.
 */
export async function readHostKeys(db: PrismaClient, keys: Keys, log: Logger): Promise<HostKey[]> {
  const key = keys.derive('host keys of SSH');
  const name = SETTING;
  for (;;) {
    const row = await db.setting.findUnique({ where: { name } });
    const kept = row && unsealKeys(key, row.value);
    if (kept) return kept.map(toHostKey);
    const value = seal(key, Buffer.from(JSON.stringify(await generateKeys())), name);
    // Another server may be first; what it has made is then read.
    if (!row) await db.setting.createMany({ data: { name, value }, skipDuplicates: true });
    else {
      const why = 'were sealed under another secret key, or lack a byte';
      log.warn(`the host keys of SSH ${why}: new ones are made`);
      await db.setting.updateMany({ where: { name, value: row.value }, data: { value } });
    }
  }
}

/** Null: they were sealed under another key, or one of them lacks a byte, with which no server can have started. */
function unsealKeys(key: Uint8Array, sealed: Uint8Array): StoredKeyPair[] | null {
  try {
    const kept: StoredKeyPair[] = JSON.parse(open(key, sealed, SETTING).toString());
    return kept.every(isReadable) ? kept : null;
  } catch {
    return null;
  }
}

function toHostKey({ publicKey, privateKey }: StoredKeyPair): HostKey {
  const { type, bytes } = parsePublicKey(publicKey);
  return { type, publicKey, fingerprint: fingerprintOf(bytes), privateKey };
}

function parsePublicKey(publicKey: string): { type: string; bytes: Buffer } {
  const [type = '', encoded = ''] = publicKey.split(' ');
  return { type, bytes: Buffer.from(encoded, 'base64') };
}

/** Of 256 Ed25519 keys that ssh2 makes one lacks a byte in both halves, and is read by nobody (mscdex/ssh2#1390). */
function isReadable({ publicKey }: Pick<StoredKeyPair, 'publicKey'>): boolean {
  try {
    readWireKey(parsePublicKey(publicKey).bytes);
    return true;
  } catch {
    return false;
  }
}

async function generateKeys(): Promise<StoredKeyPair[]> {
  // Only for the first start: it takes 50 ms to load.
  const { utils } = (await import('ssh2')).default;
  const makers = [
    () => utils.generateKeyPairSync('ed25519'),
    () => utils.generateKeyPairSync('ecdsa', { bits: 256 }),
  ];
  return makers.map((make) => {
    for (;;) {
      const pair = make();
      const kept = { publicKey: pair.public.trim(), privateKey: pair.private };
      if (isReadable(kept)) return kept;
    }
  });
}
