/** Where the server and the process that speaks SSH meet. */
import { createHash } from 'node:crypto';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** `sun_path` of the kernel. */
const MAX_BYTES = 107;

/** In the data folder; under the temporary folder when that path is too long for a socket. */
export function socketPath(dataDir: string): string {
  const inside = join(dataDir, 'ssh', 'gateway');
  if (Buffer.byteLength(inside) <= MAX_BYTES) return inside;
  const digest = createHash('sha256').update(dataDir).digest('hex').slice(0, 16);
  return join(tmpdir(), `loam-ssh-${process.getuid?.() ?? 0}-${digest}`, 'gateway');
}
