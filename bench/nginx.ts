/** Serves programs of git with nginx and fcgiwrap, without authentication or branch rules. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, mkdir, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { freePort } from '../test/support/ports.ts';

export type Nginx = AsyncDisposable & {
  base: string;
  /** The process id of the parent of all processes. */
  pid: number;
};

/** Serves the bare repositories in `root`, which accept pushes. Needs the packages nginx-light and fcgiwrap. */
export function openHttpBackend(root: string): Promise<Nginx> {
  return openNginx(root, '/usr/lib/git-core/git-http-backend', {
    GIT_PROJECT_ROOT: root,
    GIT_HTTP_EXPORT_ALL: '1',
    GIT_CONFIG_COUNT: '3',
    GIT_CONFIG_KEY_0: 'http.receivepack',
    GIT_CONFIG_VALUE_0: 'true',
    GIT_CONFIG_KEY_1: 'safe.directory',
    GIT_CONFIG_VALUE_1: '*',
    GIT_CONFIG_KEY_2: 'receive.autogc',
    GIT_CONFIG_VALUE_2: 'false',
    GIT_PROTOCOL: '$http_git_protocol',
  });
}

/** Shows the bare repository `dir` as `/<name>/`, with 20 commits a page and no cache, as it comes. Needs the package cgit. */
export async function openCgit(root: string, name: string, dir: string): Promise<Nginx> {
  const config = join(root, 'cgitrc');
  await writeFile(
    config,
    `virtual-root=/\nmax-commit-count=20\nrepo.url=${name}\nrepo.path=${dir}\n`,
  );
  return openNginx(root, '/usr/lib/cgit/cgit.cgi', { CGIT_CONFIG: config });
}

async function openNginx(
  root: string,
  program: string,
  settings: Record<string, string>,
): Promise<Nginx> {
  const place = join(root, 'nginx');
  await mkdir(place);
  const port = await freePort();
  const socket = join(place, 'fcgi.sock');
  const config = join(place, 'nginx.conf');
  await writeFile(
    config,
    `daemon off; user root; worker_processes 2; pid ${place}/pid; error_log ${place}/error.log;
events { worker_connections 256; }
http {
  access_log off; client_max_body_size 0; client_body_temp_path ${place}; fastcgi_temp_path ${place};
  server {
    listen 127.0.0.1:${port};
    location / {
      fastcgi_pass unix:${socket};
      fastcgi_buffering off; fastcgi_request_buffering off;
      fastcgi_param SCRIPT_FILENAME ${program};
${Object.entries(settings)
  .map(([key, value]) => `      fastcgi_param ${key} ${value};`)
  .join('\n')}
      fastcgi_param PATH_INFO $uri;
      fastcgi_param QUERY_STRING $args;
      fastcgi_param REQUEST_METHOD $request_method;
      fastcgi_param CONTENT_TYPE $content_type;
      fastcgi_param CONTENT_LENGTH $content_length;
      fastcgi_param HTTP_CONTENT_ENCODING $http_content_encoding;
    }
  }
}
`,
  );
  const script = join(place, 'serve.sh');
  await writeFile(
    script,
    `#!/bin/sh
fcgiwrap -c 4 -s unix:${socket} &
nginx -c ${config} &
wait
`,
  );
  await chmod(script, 0o755);
  // In its own process group, because fcgiwrap does not stop its workers when it ends.
  const child: ChildProcess = spawn(script, { stdio: 'inherit', detached: true });
  const isThere = (path: string) =>
    stat(path).then(
      () => true,
      () => false,
    );
  while (!(await isThere(socket)) || !(await isThere(join(place, 'pid')))) {
    if (child.exitCode !== null) throw new Error('nginx or fcgiwrap is missing');
    await delay(20);
  }
  return {
    base: `http://127.0.0.1:${port}`,
    pid: child.pid as number,
    async [Symbol.asyncDispose]() {
      const closed = once(child, 'close');
      process.kill(-(child.pid as number), 'SIGTERM');
      await closed;
    },
  };
}
