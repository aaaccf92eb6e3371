/** A real Redis for a test, on loopback and in memory only, which can be stopped, frozen and restarted. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { Redis } from 'ioredis';
import { eventually } from './eventually.ts';
import { freePort } from './ports.ts';

export type RedisServer = AsyncDisposable & {
  port: number;
  start(): Promise<void>;
  /** Waits for its end if the signal ends it. */
  signal(signal: 'SIGKILL' | 'SIGSTOP' | 'SIGCONT'): Promise<void>;
  /** Runs a command as its operator; not while it is stopped or frozen. */
  command(name: string, ...args: (string | number)[]): Promise<unknown>;
};

/** `options` as on its command line. */
export async function startRedis(...options: string[]): Promise<RedisServer> {
  const port = await freePort();
  let child: ChildProcess;
  let ended: Promise<unknown> = Promise.resolve();

  const server: RedisServer = {
    port,
    async start() {
      const fixed = ['--port', `${port}`, '--bind', '127.0.0.1', '--save', '', '--dir', '/tmp'];
      child = spawn('redis-server', [...fixed, ...options], { stdio: 'ignore' });
      ended = once(child, 'close');
      await eventually(() => server.command('ping'));
    },
    async signal(signal) {
      child.kill(signal);
      if (signal === 'SIGKILL') await ended;
    },
    async command(name, ...args) {
      const at = options.indexOf('--requirepass');
      const client = new Redis(port, '127.0.0.1', {
        lazyConnect: true,
        retryStrategy: () => null,
        ...(at >= 0 && { password: options[at + 1] }),
      });
      client.on('error', () => {});
      try {
        await client.connect();
        return await client.call(name, ...args);
      } finally {
        client.disconnect();
      }
    },
    async [Symbol.asyncDispose]() {
      await server.signal('SIGKILL');
    },
  };
  await server.start();
  return server;
}
