/** Resources that a job must not reach, created by the test: listeners, files and processes. */
import { once } from 'node:events';
import { chmodSync, mkdirSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:net';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { chownTo, type Who } from './who.ts';

export const SECRET = `not-for-jobs-${process.pid}`;

/** Creates the files that a server has in its data folder before it runs jobs. */
export function fillDataFolder(data: string, who: Who): void {
  for (const name of ['secret-key', 'repositories/one/HEAD']) {
    const file = join(data, name);
    const folder = join(file, '..');
    mkdirSync(folder, { recursive: true });
    writeFileSync(file, `${SECRET}\n`, { mode: 0o600 });
    for (const path of [folder, file]) chownTo(path, who);
  }
}

export type Machine = AsyncDisposable & {
  loopback: number;
  lan: { host: string; port: number } | null;
  /** In a folder like that of our PostgreSQL. */
  socket: string;
  abstract: string;
  /** Number of connections to any of the listeners. */
  connections(): number;
};

/** Listeners that send the secret to each client. */
export async function startForbiddenTargets(data: string, who: Who): Promise<Machine> {
  let connections = 0;
  const servers: Server[] = [];
  const listen = async (where: { port: number; host: string } | { path: string }) => {
    const server = createServer((socket) => {
      connections++;
      socket.on('error', () => {});
      socket.end(`${SECRET}\n`);
    });
    server.listen(where);
    await once(server, 'listening');
    servers.push(server);
    const address = server.address();
    return typeof address === 'object' ? (address?.port ?? 0) : 0;
  };
  const run = join(data, 'run');
  mkdirSync(run, { mode: 0o700 });
  chownTo(run, who);
  const socket = join(run, '.s.PGSQL.5432');
  await listen({ path: socket });
  chmodSync(socket, 0o700);
  chownTo(socket, who);
  const abstract = `loam-hostile-${process.pid}`;
  await listen({ path: `\0${abstract}` });
  const host = Object.values(networkInterfaces())
    .flatMap((i) => i ?? [])
    .find(({ family, internal }) => family === 'IPv4' && !internal)?.address;
  return {
    loopback: await listen({ host: '127.0.0.1', port: 0 }),
    lan: host ? { host, port: await listen({ host, port: 0 }) } : null,
    socket,
    abstract,
    connections: () => connections,
    async [Symbol.asyncDispose]() {
      for (const server of servers) server.close();
      await Promise.all(servers.map((server) => once(server, 'close')));
    },
  };
}
