/** Creates a repository of a given size with `git fast-import`, and starts a server for it. */
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Workspace } from '../test/support/git.ts';
import {
  type ServerProcess,
  type StartServerOptions,
  startServer,
} from '../test/support/process.ts';

export const TOKEN = 'loam_pat_benchmark_of_git_reads';

export type Shape = { commits: number; folders: number; files: number; fileBytes: number };

/** 150,000 objects in 236 MB: the repository for comparing ways of reading. */
export const LARGE: Shape = { commits: 30_000, folders: 40, files: 27, fileBytes: 9_800 };

/**
 * Creates a bare repository at `dir` with a linear history on `main`. Each commit changes one file of incompressible text in
 * `src/<folder>/<file>`, so it adds a blob, three trees and a commit.
 */
export async function makeRepository(dir: string, shape: Shape): Promise<void> {
  await run(['init', '-q', '--bare', '-b', 'main', dir], '/');
  const child = spawn('git', ['-C', dir, 'fast-import', '--quiet'], {
    stdio: ['pipe', 'inherit', 'inherit'],
  });
  const ended = once(child, 'exit');
  for (let i = 0; i < shape.commits; i++) {
    const path = `src/folder-${i % shape.folders}/file-${Math.floor(i / shape.folders) % shape.files}.txt`;
    const text = noise(i, shape.fileBytes);
    const message = `change ${i}`;
    const record =
      `commit refs/heads/main\ncommitter Ada <ada@example.com> ${1_700_000_000 + i} +0000\n` +
      `data ${message.length}\n${message}\nM 100644 inline ${path}\ndata ${text.length}\n${text}\n`;
    if (!child.stdin.write(record)) await once(child.stdin, 'drain');
  }
  child.stdin.end();
  const [code] = await ended;
  if (code !== 0) throw new Error(`git fast-import ended with ${code}`);
}

/** Text that compresses to three quarters at best. The same seed gives the same text. */
export function noise(seed: number, bytes: number): string {
  let text = '';
  for (let i = 0; text.length < bytes; i++)
    text += `${createHash('sha512').update(`${seed} ${i}`).digest('base64')}\n`;
  return text.slice(0, bytes);
}

export type Bench = AsyncDisposable & {
  /** A folder that is removed with the benchmark. */
  folder: string;
  workspace: Workspace;
  server: ServerProcess;
  /** Creates `admin/<name>` without a commit. @returns its id */
  create(name: string): Promise<string>;
  /** The data of a GraphQL operation. */
  // biome-ignore lint/suspicious/noExplicitAny: the caller knows the type of its query.
  graphql(query: string): Promise<any>;
  /** The URL, with the token in it. */
  remote(name: string): string;
};

/** @param env settings of the server */
export async function openBench(
  env: Record<string, string> = {},
  options?: StartServerOptions,
): Promise<Bench> {
  await using cleanup = new AsyncDisposableStack();
  const folder = await mkdtemp(join(tmpdir(), 'loam-bench-'));
  cleanup.defer(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }));
  const server = cleanup.use(
    await startServer(
      {
        LOAM_DATA_DIR: join(folder, 'data'),
        LOAM_ADMIN_TOKEN: TOKEN,
        LOAM_RATE_LIMITS: 'off',
        ...env,
      },
      options,
    ),
  );
  const graphql: Bench['graphql'] = async (query) => {
    const response = await fetch(`${server.base}/graphql`, {
      method: 'POST',
      headers: { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' },
      body: JSON.stringify({ query }),
    });
    const { data, errors } = (await response.json()) as { data: unknown; errors?: unknown };
    if (errors) throw new Error(JSON.stringify(errors));
    return data;
  };
  const owned = cleanup.move();
  return {
    folder,
    workspace: new Workspace(folder),
    server,
    graphql,
    async create(name) {
      const { createRepository } = await graphql(
        `mutation { createRepository(input: {namespace: "admin", name: "${name}", autoInit: false}) { repository { id } } }`,
      );
      return createRepository.repository.id;
    },
    remote(name) {
      const url = new URL(`${server.base}/admin/${name}.git`);
      return Object.assign(url, { username: 'x', password: TOKEN }).href;
    },
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}

/** @returns the milliseconds that `work` takes */
export async function time(work: () => Promise<unknown>): Promise<number> {
  const start = performance.now();
  await work();
  return performance.now() - start;
}

export function median(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] as number;
}

async function run(args: string[], cwd: string): Promise<void> {
  const [code] = await once(spawn('git', args, { cwd, stdio: 'inherit' }), 'exit');
  if (code !== 0) throw new Error(`git ${args[0]} ended with ${code}`);
}
