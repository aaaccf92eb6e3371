/**
 * Serves the command `loam`, the program for joined machines, both with their installers, and the client libraries, so that clients
 * have the version of their server. `npm run build` writes the built files to `dist/`; the others are served from `src`.
 */
import { createHash } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import express, { type Router } from 'express';
import { AppError } from '../../base/errors.ts';
import type { Urls } from '../../base/urls.ts';
import type { ByteRange } from '../../platform/storage/storage.ts';
import { refuseOtherMethods } from '../../platform/web/methods.ts';
import { sendObject } from '../../platform/web/send-object.ts';
import { WORKER_PATH } from '../../runners/machines/protocol.ts';

type Deps = { urls: Urls };

const ROOT = join(import.meta.dirname, '../../..');
const COMMAND = 'dist/cli/loam.mjs';
const WORKER_ARCHIVE = 'dist/worker/program.tgz';

/** Stands in the installer for the address of the server, as one word of the shell. */
const BASE_PLACEHOLDER = 'BASE_URL_OF_THE_SERVER';

/** Plain text for the installer, so that a browser shows it to people who want to read it first. */
const PLAIN = 'text/plain; charset=utf-8';

/**
 * The files are held in memory, under 2 MB in all: one server serves the same build and its checksum, also while `npm run
 * build` replaces the files on disk.
 * @param root the folder that has `dist` and `src`
 */
export function createClientFiles({ urls }: Deps, root = ROOT): Router {
  const read = (path: string) =>
    existsSync(join(root, path)) ? readFileSync(join(root, path)) : null;
  const router = express.Router({ caseSensitive: true, strict: true });

  /** @param contents null if `source` has not been built */
  const serve = (path: string, type: string, source: string, contents: Buffer | null) => {
    const etag = contents ? sha256(contents).slice(0, 32) : '';
    router
      .route(path)
      .get(async (req, res) => {
        if (!contents)
          throw new AppError(
            'not_found',
            `${source} is not built on this server: its operator must run "npm run build" and restart it`,
          );
        res.set({ 'Cache-Control': 'no-cache', 'X-Content-Type-Options': 'nosniff' });
        res.setHeader('Content-Type', type);
        const open = async (range?: ByteRange) => inOnePiece(contents, range);
        await sendObject(req, res, { size: contents.length, etag, open });
      })
      .all(refuseOtherMethods(['GET']));
  };

  /** Serves an installer with the address of this server. */
  const serveInstaller = (path: string, source: string) => {
    const text = readFileSync(join(root, source), 'utf8');
    const script = text.replace(BASE_PLACEHOLDER, () => quoteForShell(urls.base));
    serve(path, PLAIN, source, Buffer.from(script));
  };
  const command = read(COMMAND);
  const checksum = command && Buffer.from(`${sha256(command)}  ${basename(COMMAND)}\n`);
  serveInstaller('/cli/install.sh', 'src/cli/install.sh');
  serve('/cli/loam.mjs', 'text/javascript; charset=utf-8', COMMAND, command);
  serve('/cli/loam.mjs.sha256', PLAIN, COMMAND, checksum);
  for (const [source, type] of [
    ['src/cli/python/loam.py', 'text/x-python; charset=utf-8'],
    ['dist/sdk/loam.js', 'text/javascript; charset=utf-8'],
    ['dist/sdk/loam.d.ts', 'application/typescript; charset=utf-8'],
  ] as const)
    serve(`/sdk/${basename(source)}`, type, source, read(source));
  serveInstaller(`${WORKER_PATH}/install.sh`, 'src/runners/worker/install.sh');
  serve(`${WORKER_PATH}/program.tgz`, 'application/gzip', WORKER_ARCHIVE, read(WORKER_ARCHIVE));
  return router;
}

async function* inOnePiece(contents: Buffer, range?: ByteRange): AsyncGenerator<Buffer> {
  yield range ? contents.subarray(range.start, range.end + 1) : contents;
}

function sha256(contents: Buffer): string {
  return createHash('sha256').update(contents).digest('hex');
}

function quoteForShell(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
