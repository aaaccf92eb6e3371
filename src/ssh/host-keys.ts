/**
 * The keys by which clients recognize this server: made once, by the first of the servers on a database, and kept there,
 * sealed, so that all of them have the same and a new machine goes on with them.
 */
import type { PrismaClient } from '../../prisma/generated/client.ts';
import type { Keys } from '../crypto/keys.ts';
import { open, seal } from '../crypto/seal.ts';
import { fingerprintOf } from '../crypto/ssh-keys.ts';

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

/** Ed25519 first, which clients prefer; ECDSA is for those that do not know it. */
export async function readHostKeys(db: PrismaClient, keys: Keys): Promise<HostKey[]> {
  const key = keys.derive('host keys of SSH');
  const find = () => db.setting.findUnique({ where: { name: SETTING } });
  let row = await find();
  if (!row) {
    const value = seal(key, Buffer.from(JSON.stringify(await makeKeys())), SETTING);
    await db.setting.createMany({ data: { name: SETTING, value }, skipDuplicates: true });
    // Another server may have been first.
    row = await find();
  }
  if (!row) throw new Error('the host keys were removed while they were made');
  const kept: Kept[] = JSON.parse(open(key, row.value, SETTING).toString());
  return kept.map(({ publicKey, privateKey }) => {
    const [type = '', encoded = ''] = publicKey.split(' ');
    const fingerprint = fingerprintOf(Buffer.from(encoded, 'base64'));
    return { type, publicKey, fingerprint, privateKey };
  });
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
