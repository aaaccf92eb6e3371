/** Serves `git http-backend` with `node:http`, without authentication, branch rules or push records. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';

export type Backend = AsyncDisposable & { base: string };

/** Serves the bare repositories in `root`, which accept pushes. */
export async function openBackend(root: string): Promise<Backend> {
  const server = createServer((req, res) => {
    const { pathname, search } = new URL(req.url ?? '/', 'http://localhost');
    const child = spawn('git', ['http-backend'], {
      env: {
        PATH: process.env.PATH,
        GIT_PROJECT_ROOT: root,
        GIT_HTTP_EXPORT_ALL: '1',
        GIT_CONFIG_COUNT: '1',
        GIT_CONFIG_KEY_0: 'http.receivepack',
        GIT_CONFIG_VALUE_0: 'true',
        PATH_INFO: pathname,
        QUERY_STRING: search.slice(1),
        REQUEST_METHOD: req.method,
        CONTENT_TYPE: req.headers['content-type'] ?? '',
        ...(req.headers['content-length'] && { CONTENT_LENGTH: req.headers['content-length'] }),
        ...(req.headers['content-encoding'] && {
          HTTP_CONTENT_ENCODING: req.headers['content-encoding'],
        }),
        GIT_PROTOCOL: `${req.headers['git-protocol'] ?? ''}`,
      },
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    req.pipe(child.stdin).on('error', () => {});
    let head = '';
    child.stdout.on('data', (chunk: Buffer) => {
      if (res.headersSent) {
        if (!res.write(chunk)) child.stdout.pause();
        return;
      }
      head += chunk.toString('latin1');
      const end = head.indexOf('\r\n\r\n');
      if (end < 0) return;
      for (const line of head.slice(0, end).split('\r\n')) {
        const [name = '', value = ''] = line.split(': ');
        if (name === 'Status') res.statusCode = Number.parseInt(value, 10);
        else res.setHeader(name, value);
      }
      res.write(Buffer.from(head.slice(end + 4), 'latin1'));
    });
    res.on('drain', () => child.stdout.resume());
    child.stdout.on('end', () => res.end());
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    base: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}
