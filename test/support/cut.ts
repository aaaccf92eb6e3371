/** A TCP proxy in front of a socket of the database or of another server. It can be cut, as when that server restarts. */
import { createServer, connect as dial, type Server, type Socket } from 'node:net';

export type CuttableProxy = AsyncDisposable & {
  /** An address that forwards to a port of this machine. @param host the address of this machine to listen on */
  before(port: number, host?: string): Promise<string>;
  /** For `startApp({ via })`. */
  via(databaseUrl: string): Promise<string>;
  /** Closes every connection and refuses new ones. */
  cut(): Promise<void>;
  /** Forwards nothing more, and closes nothing: what is sent is lost, also on new connections. */
  silence(): void;
  /** Accepts connections again, at the same address. Those that were open stay silent. */
  mend(): Promise<void>;
};

export function openCuttableProxy(): CuttableProxy {
  const open = new Set<Socket>();
  let target: { path: string } | { port: number } = { path: '' };
  let port = 0;
  let host = '127.0.0.1';
  let server: Server | undefined;

  let isSilent = false;

  async function mend(): Promise<void> {
    isSilent = false;
    if (server) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    server = createServer((near) => {
      if (isSilent) {
        open.add(near.on('error', () => {}).resume());
        near.on('close', () => open.delete(near));
        return;
      }
      const far = dial(target);
      for (const [one, other] of [
        [near, far],
        [far, near],
      ] as const) {
        open.add(one);
        one.on('error', () => {});
        one.on('close', () => {
          open.delete(one);
          other.destroy();
        });
        one.pipe(other);
      }
    }).listen(port, host, resolve);
    await promise;
    port = (server.address() as { port: number }).port;
  }

  function silence(): void {
    isSilent = true;
    for (const socket of open) socket.unpipe().resume();
  }

  async function cut(): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    if (!server?.close(() => resolve())) resolve();
    for (const socket of open) socket.destroy();
    await promise;
    server = undefined;
  }

  return {
    async before(behind, address = host) {
      host = address;
      target = { port: behind };
      await mend();
      return `${host}:${port}`;
    },
    async via(databaseUrl) {
      const url = new URL(databaseUrl);
      target = { path: `${url.searchParams.get('host')}/.s.PGSQL.5432` };
      await mend();
      return `postgresql://${url.username}@127.0.0.1:${port}${url.pathname}`;
    },
    cut,
    silence,
    mend,
    [Symbol.asyncDispose]: cut,
  };
}
