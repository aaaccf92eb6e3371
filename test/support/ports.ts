/** Free ports on loopback. */
import { createServer } from 'node:net';

/**
 * Below the range that the kernel assigns to connections and to `listen(0)`, so that the port of a killed server is still free
 * when the server restarts.
 */
export async function freePorts(count: number): Promise<number[]> {
  const found = new Set<number>();
  while (found.size < count) {
    const port = 10_000 + Math.floor(Math.random() * 20_000);
    if (await isFree(port)) found.add(port);
  }
  return [...found];
}

export const freePort = async () => (await freePorts(1))[0] as number;

async function isFree(port: number): Promise<boolean> {
  const server = createServer();
  const { promise, resolve } = Promise.withResolvers<boolean>();
  server.once('error', () => resolve(false));
  server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)));
  return promise;
}
