/**
 * `npm run bench:lfs`: uploads and downloads of large files over HTTP, against nginx with the same files, in alternating rounds;
 * then the storage that a second version of a file takes. Both sides use curl. nginx does not sync uploads and checks nothing;
 * Loam syncs, and hashes every byte in both directions.
 *
 * `npm run bench:lfs -- 5120` uploads and downloads one object of 5,120 MiB, and shows the memory of the server.
 */
import { execFile, spawn } from 'node:child_process';
import { createHash, hash, randomFillSync } from 'node:crypto';
import { createReadStream, createWriteStream } from 'node:fs';
import { mkdir, open, readdir, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { freePort } from '../test/support/ports.ts';
import { cpuSecondsOf, residentOf } from './process.ts';
import { median, openBench, TOKEN } from './repository.ts';

const run = promisify(execFile);
const MIB = 2 ** 20;
const ROUNDS = 3;
const [only] = process.argv.slice(2).map(Number);
const BYTES = (only ?? 512) * MIB;

await using bench = await openBench();
const { folder, server } = bench;
const pid = server.child.pid ?? 0;
const first = await repository('first');
const second = await repository('second');
const file = join(folder, 'file');

async function repository(name: string): Promise<string> {
  await bench.create(name);
  return `${server.base}/admin/${name}.git/info/lfs/objects`;
}

/** Megabytes per second. */
async function transfer(...args: string[]): Promise<number> {
  const asked = ['-sS', '--fail', '-o', '/dev/null', '-u', `admin:${TOKEN}`, '-w', '%{time_total}'];
  const { stdout } = await run('curl', [...asked, ...args]);
  return BYTES / 1e6 / Number(stdout);
}

async function oidOf(path: string): Promise<string> {
  const whole = createHash('sha256');
  for await (const piece of createReadStream(path, { highWaterMark: MIB })) whole.update(piece);
  return whole.digest('hex');
}

/** Random bytes, different in each file. */
async function makeFile(): Promise<string> {
  const noise = function* () {
    for (let left = BYTES; left > 0; left -= MIB) yield randomFillSync(Buffer.alloc(MIB));
  };
  await pipeline(Readable.from(noise()), createWriteStream(file));
  return oidOf(file);
}

/** The duration in ms of other requests while `work` runs. */
async function delaysDuring<T>(work: Promise<T>): Promise<{ result: T; delays: number[] }> {
  const delays: number[] = [];
  let isOver = false;
  const asking = (async () => {
    while (!isOver) {
      const at = performance.now();
      await (await fetch(`${server.base}/auth/v1/version`)).text();
      delays.push(performance.now() - at);
      await delay(5);
    }
  })();
  const result = await work.finally(() => {
    isOver = true;
  });
  await asking;
  return { result, delays };
}

const percentile = (values: number[], part: number) =>
  values.toSorted((a, b) => a - b)[Math.floor(values.length * part)] ?? 0;

async function startNginx(): Promise<AsyncDisposable & { base: string }> {
  const port = await freePort();
  const root = join(folder, 'nginx');
  await mkdir(join(root, 'files'), { recursive: true });
  const config = join(root, 'nginx.conf');
  await writeFile(
    config,
    `daemon off; pid ${root}/pid; error_log ${root}/error.log; worker_processes 1; user root;
     events {}
     http {
       access_log off; sendfile on; client_max_body_size 0; client_body_temp_path ${root}/temp;
       server { listen 127.0.0.1:${port}; location / { root ${root}/files; dav_methods PUT DELETE; } }
     }`,
  );
  const child = spawn('nginx', ['-c', config, '-p', root], { stdio: 'inherit' });
  const ended = new Promise((resolve) => child.once('exit', resolve));
  const base = `http://127.0.0.1:${port}`;
  while (!(await fetch(base).catch(() => null))) await delay(20);
  return {
    base,
    async [Symbol.asyncDispose]() {
      child.kill();
      await ended;
    },
  };
}

async function measureTransfers(): Promise<void> {
  await using nginx = await startNginx();
  const speeds = { put: [], known: [], get: [], putNginx: [], getNginx: [] } as Record<
    string,
    number[]
  >;
  const note = (what: string, speed: number) => speeds[what]?.push(speed);
  const delays: Record<string, number[]> = { idle: [], put: [], get: [] };
  const cpu = { put: 0, known: 0, get: 0 };
  const measured = async (what: 'put' | 'known' | 'get', ...args: string[]) => {
    const before = await cpuSecondsOf(pid);
    const asked = await delaysDuring(transfer(...args));
    note(what, asked.result);
    delays[what]?.push(...asked.delays);
    cpu[what] += ((await cpuSecondsOf(pid)) - before) / (BYTES / 1e9) / ROUNDS;
  };
  for (let round = 0; round < ROUNDS; round++) {
    const oid = await makeFile();
    delays.idle?.push(...(await delaysDuring(delay(500))).delays);
    note('putNginx', await transfer('-T', file, `${nginx.base}/file`));
    await measured('put', '-T', file, `${first}/${oid}`);
    await measured('known', '-T', file, `${second}/${oid}`);
    note('getNginx', await transfer(`${nginx.base}/file`));
    await measured('get', `${first}/${oid}`);
    await transfer('-X', 'DELETE', `${nginx.base}/file`);
  }
  const show = (what: string) => `${median(speeds[what] ?? []).toFixed(0)} MB/s`;
  const times = (one: string, other: string) =>
    (median(speeds[one] ?? []) / median(speeds[other] ?? [])).toFixed(2);
  const spent = (what: keyof typeof cpu) => `${cpu[what].toFixed(1)} s of CPU a GB`;
  console.log(
    `PUT of ${only ?? 512} MiB: new ${show('put')} (${spent('put')}), nginx ${show('putNginx')}: ${times('put', 'putNginx')}x`,
  );
  console.log(
    `PUT of what is known: ${show('known')} (${spent('known')}): ${times('known', 'putNginx')}x`,
  );
  console.log(
    `GET: ${show('get')} (${spent('get')}), nginx ${show('getNginx')}: ${times('get', 'getNginx')}x`,
  );
  for (const [what, values] of Object.entries(delays))
    if (values.length > 0)
      console.log(
        `another request, ${what}: p50 ${percentile(values, 0.5).toFixed(1)} ms, p99 ${percentile(values, 0.99).toFixed(1)}, at most ${Math.max(...values).toFixed(1)}`,
      );
}

/** The size of all packs in bytes. */
async function stored(): Promise<number> {
  const names = await readdir(join(folder, 'data/storage/lfs'), {
    recursive: true,
    withFileTypes: true,
  });
  const files = names.filter((entry) => entry.isFile());
  const sizes = await Promise.all(
    files.map(async (entry) => (await stat(join(entry.parentPath, entry.name))).size),
  );
  return sizes.reduce((sum, size) => sum + size, 0);
}

async function measureVersions(name: string, one: Buffer, other: Buffer): Promise<void> {
  const put = async (bytes: Buffer) => {
    await writeFile(file, bytes);
    await transfer('-T', file, `${first}/${hash('sha256', bytes)}`);
    return stored();
  };
  const before = await put(one);
  const added = (await put(other)) - before;
  console.log(
    `${name}: a second version of ${(other.length / 1e6).toFixed(0)} MB takes ${((100 * added) / other.length).toFixed(2)} %`,
  );
}

function rows(): Buffer[] {
  return Array.from({ length: 1_000_000 }, (_, i) => {
    const text = hash('sha256', `row ${i}`);
    return Buffer.from(
      `${i},${text.slice(0, 40)},${Number.parseInt(text.slice(0, 8), 16) / 1e6}\n`,
    );
  });
}

/** Files of the installed packages, up to 100 MB. */
async function archive(names: readonly string[]): Promise<Buffer> {
  const path = join(folder, 'tar');
  await run('tar', ['-cf', path, '--sort=name', '--mtime=@0', '-C', folder, ...names]);
  const handle = await open(path);
  try {
    return await handle.readFile();
  } finally {
    await handle.close();
  }
}

if (only) {
  const oid = await makeFile();
  const before = await residentOf(pid);
  let most = before;
  let isOver = false;
  const watching = (async () => {
    for (; !isOver; await delay(50)) most = Math.max(most, await residentOf(pid));
  })();
  const put = await transfer('-T', file, `${first}/${oid}`);
  const afterPut = most;
  const get = await transfer(`${first}/${oid}`);
  isOver = true;
  await watching;
  const mb = (bytes: number) => `${((bytes - before) / 1e6).toFixed(0)} MB`;
  console.log(
    `${only} MiB: PUT ${put.toFixed(0)} MB/s, GET ${get.toFixed(0)} MB/s; memory +${mb(afterPut)}, +${mb(most)}`,
  );
} else {
  await measureTransfers();
  const all = rows();
  const row = Buffer.from('a row,put in,0.5\n');
  await measureVersions(
    'a CSV with a row put in',
    Buffer.concat(all),
    Buffer.concat([...all.slice(0, 400_000), row, ...all.slice(400_000)]),
  );
  const files = join(folder, 'files');
  await mkdir(files);
  for (let i = 0; i < 5_000; i++) {
    const bytes = randomFillSync(Buffer.alloc(1_000 + ((i * 7_919) % 30_000)));
    await writeFile(join(files, `file-${String(i).padStart(5, '0')}`), bytes);
  }
  const before = await archive(['files']);
  await writeFile(join(files, 'file-02500-new'), randomFillSync(Buffer.alloc(20_000)));
  await measureVersions('a tar with a file added', before, await archive(['files']));
  const weights = randomFillSync(Buffer.alloc(200 * MIB));
  const trained = Buffer.from(weights);
  for (let i = 0; i < 20; i++) randomFillSync(trained, i * 10 * MIB, MIB / 2);
  await measureVersions('a checkpoint of which 5 % changed, in 20 places', weights, trained);
}
await rm(file, { force: true });
