/** A lost token: `npm run token`, with the server running and stopped, and `LOAM_ADMIN_TOKEN` on an existing data folder. */
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { Client, startApp } from '../../support/harness.ts';
import { startServer } from '../../support/process.ts';

const ROOT = join(import.meta.dirname, '../../..');

function makeToken(dataDir: string, ...args: string[]) {
  const env = { PATH: process.env.PATH, LOAM_DATA_DIR: dataDir };
  return new Promise<{ code: number; stdout: string; stderr: string }>((resolve) => {
    execFile(
      process.execPath,
      ['src/programs/token.ts', ...args],
      { cwd: ROOT, env },
      (error, stdout, stderr) => resolve({ code: Number(error?.code ?? 0), stdout, stderr }),
    );
  });
}

test('a new token is created at once, whether the server runs or not', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'loam-token-'));
  await using _folder = {
    [Symbol.asyncDispose]: () => rm(folder, { recursive: true, force: true, maxRetries: 5 }),
  };
  expect(await makeToken(folder, 'admin')).toEqual({
    code: 1,
    stdout: '',
    stderr: `LOAM_DATA_DIR: ${folder} has no Loam database; start the server once to create it\n`,
  });
  expect(existsSync(join(folder, 'postgres'))).toBe(false);
  const postmaster = join(folder, 'postgres/cluster/postmaster.pid');
  {
    await using server = await startServer({ LOAM_DATA_DIR: folder });
    const before = await readFile(postmaster, 'utf8');
    const { code, stdout } = await makeToken(folder, 'Admin', '--name', 'spare');
    expect(code).toBe(0);
    expect(stdout).toMatch(/^loam_pat_\w{46}\n$/);
    const admin = new Client(server.base, `Bearer ${stdout.trim()}`);
    expect((await admin.get('/auth/v1/whoami')).body.username).toBe('admin');
    expect((await admin.get('/auth/v1/pat/spare')).body.expires_at).toBe(null);
    expect(await readFile(postmaster, 'utf8')).toBe(before);

    expect((await makeToken(folder, 'admin', '--name', 'spare')).stderr).toBe(
      'admin already has a token of this name\n',
    );
    expect((await makeToken(folder, 'nobody')).stderr).toBe('User nobody not found\n');
    expect((await makeToken(folder, 'admin', '--expires-in-days', 'x')).stderr).toMatch(
      /^expiresInDays: must be from 1 to 365\n$/,
    );
    expect((await makeToken(folder)).stderr).toMatch(/^usage: /);
  }
  const stopped = (await makeToken(folder, 'admin', '--expires-in-days', '2')).stdout.trim();
  expect(existsSync(postmaster)).toBe(false);
  await using again = await startServer({ LOAM_DATA_DIR: folder });
  const admin = new Client(again.base, `Bearer ${stopped}`);
  const { body } = await admin.get('/auth/v1/pat');
  expect(body.data ?? body).toMatchObject([
    { name: expect.stringMatching(/^console-/), expires_at: expect.any(String) },
    { name: 'spare' },
    { name: 'first' },
  ]);
});

test('LOAM_ADMIN_TOKEN is valid from the next start, and a changed one replaces it', async () => {
  await using app = await startApp();
  const whoami = async (token: string) =>
    (await app.client(`Bearer ${token}`).get('/auth/v1/whoami')).status;
  const set = async (token: string | undefined) => {
    app.config.admin = { username: 'admin', ...(token && { token }) };
    await app.restart();
  };
  const first = app.admin.token;
  await set('the-second-token-of-all');
  expect(await whoami('the-second-token-of-all')).toBe(200);
  expect(await whoami(first)).toBe(401);
  // If the variable is unset, its last token stays valid until it is deleted, like any other token.
  await set(undefined);
  expect(await whoami('the-second-token-of-all')).toBe(200);
});

test('LOAM_ADMIN_TOKEN cannot be a token of another user', async () => {
  await using app = await startApp();
  const alice = await app.user('alice');
  const { admin } = app.config;
  app.config.admin = { username: 'admin', token: alice.token };
  await expect(app.restart()).rejects.toThrow(/^LOAM_ADMIN_TOKEN: this token exists already/);
  app.config.admin = admin;
});
