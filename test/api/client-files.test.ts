import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  chmod,
  cp,
  lstat,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  rm,
  symlink,
  writeFile,
} from 'node:fs/promises';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import express from 'express';
import { expect, test } from 'vitest';
import { createClientFiles } from '../../src/api/http/client-files.ts';
import { namespaceNameError } from '../../src/base/names.ts';
import { startApp } from '../support/harness.ts';
import { needs } from '../support/needs.ts';

const ROOT = join(import.meta.dirname, '../..');
const COMMAND =
  '#!/usr/bin/env node\nimport process from "node:process";\nconsole.log("installed", process.argv[2]);\n';
const SHA256 = createHash('sha256').update(COMMAND).digest('hex');

/** A temporary folder, removed at the end. */
async function temporary(): Promise<AsyncDisposable & { path: string }> {
  const path = await mkdtemp(join(tmpdir(), 'loam-client-'));
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true }) };
}

/** Serves the files with a small program in place of the built command. `damaged`: the bytes differ from the checksum. */
async function serveBuilt({ damaged = false } = {}) {
  await using cleanup = new AsyncDisposableStack();
  const root = cleanup.use(await temporary()).path;
  await mkdir(join(root, 'dist/cli'), { recursive: true });
  await writeFile(join(root, 'dist/cli/loam.mjs'), COMMAND);
  await mkdir(join(root, 'src/cli'), { recursive: true });
  for (const installer of ['src/cli/install.sh', 'src/runners/worker/install.sh'])
    await cp(join(ROOT, installer), join(root, installer));
  const app = express();
  if (damaged) app.get('/cli/loam.mjs', (_req, res) => void res.send(COMMAND.slice(1)));
  const server = app.listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  cleanup.defer(() => new Promise<void>((resolve) => server.close(() => resolve())));
  const base = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  app.use(createClientFiles({ urls: { base, artifacts: '', ssh: '' } }, root));
  const owned = cleanup.move();
  return { base, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}

/** Runs a line of the shell with `home` as HOME. */
function shell(line: string, home: string, path = process.env.PATH) {
  const env = { HOME: home, PATH: path };
  return new Promise<{ code: number; stdout: string; stderr: string }>((resolve) =>
    execFile('/bin/sh', ['-c', line], { env }, (error, stdout, stderr) =>
      resolve({ code: error ? Number(error.code) : 0, stdout, stderr }),
    ),
  );
}

const filesBelow = async (folder: string) =>
  (await readdir(folder, { recursive: true, withFileTypes: true }))
    .filter((entry) => !entry.isDirectory())
    .map((entry) => join(entry.parentPath, entry.name).slice(folder.length + 1))
    .sort();

test('the server serves the installer without credentials, and tells what is not built', async () => {
  await using app = await startApp();
  const { anonymous } = app;
  const script = await anonymous.get('/cli/install.sh');
  expect([script.status, script.headers.get('content-type')]).toEqual([
    200,
    'text/plain; charset=utf-8',
  ]);
  expect(script.text).toContain(`base='${app.base}'\n`);
  expect(script.headers.get('cache-control')).toBe('no-cache');
  expect(script.headers.get('access-control-allow-origin')).toBe('*');
  const etag = script.headers.get('etag') ?? '';
  expect((await anonymous.get('/cli/install.sh', { 'If-None-Match': etag })).status).toBe(304);
  const head = await anonymous.request('HEAD', '/cli/install.sh');
  expect([head.status, head.text, head.headers.get('content-length')]).toEqual([
    200,
    '',
    String(script.text.length),
  ]);
  const posted = await anonymous.post('/cli/install.sh');
  expect([posted.status, posted.headers.get('allow')]).toEqual([405, 'HEAD, GET, OPTIONS']);
  const none = await anonymous.get('/cli/none.mjs');
  expect([none.status, none.body.error.code]).toEqual([404, 'not_found']);
});

test('the command is served with its checksum, and a file that is not built is a 404', async () => {
  await using served = await serveBuilt();
  const command = await fetch(`${served.base}/cli/loam.mjs`);
  expect(await command.text()).toBe(COMMAND);
  expect(command.headers.get('content-type')).toBe('text/javascript; charset=utf-8');
  const part = await fetch(`${served.base}/cli/loam.mjs`, { headers: { range: 'bytes=2-5' } });
  expect([part.status, await part.text()]).toEqual([206, COMMAND.slice(2, 6)]);
  const checksum = await fetch(`${served.base}/cli/loam.mjs.sha256`);
  expect(await checksum.text()).toBe(`${SHA256}  loam.mjs\n`);
  const library = await fetch(`${served.base}/sdk/loam.js`);
  expect(library.status).toBe(404);
  expect(await library.text()).toContain(
    'dist/sdk/loam.js is not built on this server: its operator must run',
  );
});

test('the installer writes the command and a link to it, and replaces older ones', async (ctx) => {
  needs(ctx, 'curl');
  await using served = await serveBuilt();
  await using home = await temporary();
  const bin = join(home.path, '.local/bin');
  for (const state of ['none', 'installed', 'older']) {
    if (state === 'older') {
      await writeFile(join(home.path, '.local/share/loam/loam.mjs'), 'older');
      await rm(join(bin, 'loam'));
      await symlink('/nowhere', join(bin, 'loam'));
    }
    const { code, stdout, stderr } = await shell(
      `curl -fsSL ${served.base}/cli/install.sh | sh`,
      home.path,
    );
    expect([code, stderr], state).toEqual([0, '']);
    expect(stdout).toContain(`Installed ${bin}/loam.\nThis folder is not on your PATH.`);
    expect(stdout).toMatch(new RegExp(`\n  loam login ${served.base}\n$`));
    expect(await filesBelow(home.path)).toEqual(['.local/bin/loam', '.local/share/loam/loam.mjs']);
  }
  const { mode } = await lstat(join(home.path, '.local/share/loam/loam.mjs'));
  expect(mode & 0o777).toBe(0o755);
  const path = `${bin}:${process.env.PATH}`;
  expect((await shell('loam now', home.path, path)).stdout).toBe('installed now\n');
  const again = await shell(`curl -fsSL ${served.base}/cli/install.sh | sh`, home.path, path);
  expect(again.stdout).not.toContain('PATH');
});

test('the installer refuses a damaged download, an old Node and a missing one', async (ctx) => {
  needs(ctx, 'curl');
  await using served = await serveBuilt({ damaged: true });
  await using home = await temporary();
  const script = await (await fetch(`${served.base}/cli/install.sh`)).text();
  const file = join(home.path, 'install.sh');
  await writeFile(file, script);
  const damaged = await shell(`sh ${file}`, home.path);
  expect([damaged.code, damaged.stdout]).toEqual([1, '']);
  expect(damaged.stderr).toMatch(/is damaged: its SHA-256 is [\da-f]{64}, not [\da-f]{64}\./);
  expect(await filesBelow(home.path)).toEqual(['install.sh']);

  const programs = join(home.path, 'programs');
  await mkdir(programs);
  const missing = await shell(`/bin/sh ${file}`, home.path, programs);
  expect([missing.code, missing.stderr]).toEqual([1, expect.stringContaining('has no node')]);
  const old = `#!/bin/sh\n[ "$1" = --version ] && echo v18.20.0 || exit 1\n`;
  await writeFile(join(programs, 'node'), old);
  await chmod(join(programs, 'node'), 0o755);
  const refused = await shell(`sh ${file}`, home.path, `${programs}:${process.env.PATH}`);
  expect([refused.code, refused.stderr]).toEqual([
    1,
    expect.stringContaining('needs Node 20 or newer, and this is v18.20.0'),
  ]);
});

test('an installer that breaks off anywhere installs nothing', async () => {
  await using home = await temporary();
  const script = (await readFile(join(ROOT, 'src/cli/install.sh'), 'utf8')).replace(
    'set -eu',
    // Whatever runs of the function leaves this file.
    'touch "$HOME/ran"; exit',
  );
  expect(script).toMatch(/\n}\n\ninstall_loam\n$/);
  const lines = script.trimEnd().split('\n');
  const cuts = lines.slice(0, -1).map((_, count) => lines.slice(0, count).join('\n'));
  cuts.push(`${lines.slice(0, -1).join('\n')}\ninstall_loa`);
  for (const [index, cut] of cuts.entries()) {
    const file = join(home.path, 'cut.sh');
    await writeFile(file, cut);
    await shell(`sh ${file} 2>&1`, home.path);
    expect(await readdir(home.path), `cut ${index}`).toEqual(['cut.sh']);
  }
  await writeFile(join(home.path, 'cut.sh'), script);
  await shell(`sh ${home.path}/cut.sh`, home.path);
  expect(await readdir(home.path)).toContain('ran');
});

test('the first parts of these routes are no names of namespaces', () => {
  for (const name of ['cli', 'sdk']) expect(namespaceNameError(name)).toMatch(/is reserved/);
});
