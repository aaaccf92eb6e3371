/**
 * The keys by which clients recognize this server: made once, by the first of the servers on a database, and kept there,
 * sealed, so that all of them have the same and a new machine goes on with them.
 */
import type { PrismaClient } from '../../prisma/generated/client.ts';
import type { Keys } from '../crypto/keys.ts';
import { open, seal } from '../crypto/seal.ts';
import { fingerprintOf } from '../crypto/ssh-keys.ts';
import type { Logger } from '../log.ts';

export type HostKey = {
  /** `ssh-ed25519` or `ecdsa-sha2-nistp256`. */
  type: string;
  /** `<type> <base64>`, as it stands in `known_hosts` after the name of the host. */
  publicKey: string;
  /** `SHA256:…` */
  fingerprint: string;
  /** In the format of OpenSSH. */
  privateKey: string;
};

const SETTING = 'ssh-host-keys';

/** What is kept of each. */
type Kept = Pick<HostKey, 'publicKey' | 'privateKey'>;

/**
 * Ed25519 first, which clients prefer; ECDSA is for those that do not know it. Where the secret key was lost and replaced,
 * they are made anew, of which clients will warn.
 */
export async function readHostKeys(db: PrismaClient, keys: Keys, log: Logger): Promise<HostKey[]> {
  const key = keys.derive('host keys of SSH');
  const name = SETTING;
  for (;;) {
    const row = await db.setting.findUnique({ where: { name } });
    const kept = row && opened(key, row.value);
    if (kept) return kept.map(toHostKey);
    const value = seal(key, Buffer.from(JSON.stringify(await makeKeys())), name);
    // Another server may be first; what it has made is then read.
    if (!row) await db.setting.createMany({ data: { name, value }, skipDuplicates: true });
    else {
      log.warn('the host keys of SSH were sealed under another secret key: new ones are made');
      await db.setting.updateMany({ where: { name, value: row.value }, data: { value } });
    }
  }
}

/** Null: they were sealed under another key. */
function opened(key: Uint8Array, sealed: Uint8Array): Kept[] | null {
  try {
    return JSON.parse(open(key, sealed, SETTING).toString());
  } catch {
    return null;
  }
}

function toHostKey({ publicKey, privateKey }: Kept): HostKey {
  const [type = '', encoded = ''] = publicKey.split(' ');
  const fingerprint = fingerprintOf(Buffer.from(encoded, 'base64'));
  return { type, publicKey, fingerprint, privateKey };
}

async function makeKeys(): Promise<Kept[]> {
  // Only for the first start: it takes 50 ms to load.
  const { utils } = (await import('ssh2')).default;
  const pairs = [
    utils.generateKeyPairSync('ed25519'),
    utils.generateKeyPairSync('ecdsa', { bits: 256 }),
  ];
  return pairs.map((pair) => ({ publicKey: pair.public.trim(), privateKey: pair.private }));
}
