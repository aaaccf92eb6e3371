/**
 * `npm run bench:ssh`: cloning over SSH, against HTTP and against `file://`, sequentially and eight at once; and the CPU time of
 * the server and its SSH process, without that of git.
 */
import { randomBytes } from 'node:crypto';
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Disk } from '../src/git/disk/disk.ts';
import { freePort } from '../test/support/ports.ts';
import { openSsh } from './over-ssh.ts';
import { cpuSecondsOf } from './process.ts';
import { makeRepository, median, openBench, time } from './repository.ts';

const SMALL = { commits: 50, folders: 5, files: 5, fileBytes: 1_000 };
const SMALL_ROUNDS = 15;
const LARGE_BYTES = 200_000_000;
const LARGE_ROUNDS = 3;
const AT_ONCE = 8;

const port = await freePort();
await using bench = await openBench({ LOAM_SSH_PORT: `${port}` });
const { workspace, folder, server } = bench;
const disk = new Disk(join(folder, 'data/repositories'), 'bench');
const pid = server.child.pid ?? 0;

const ssh = await openSsh(bench, port);
const clone = (url: string, to: string) =>
  workspace.git(
    '.',
    ...['-c', 'protocol.version=2', '-c', ssh.config],
    ...['clone', '-q', '--bare', url, to],
  );

/** The CPU time of the server and of its running child processes. */
async function cpuSeconds(): Promise<number> {
  const children = await readFile(`/proc/${pid}/task/${pid}/children`, 'utf8');
  let sum = await cpuSecondsOf(pid);
  for (const child of children.trim().split(' ')) {
    const command = await readFile(`/proc/${child}/cmdline`, 'utf8').catch(() => '');
    if (command.includes('ssh/front')) sum += await cpuSecondsOf(Number(child));
  }
  return sum;
}

await makeRepository(join(folder, 'small.git'), SMALL);
await mkdir(join(folder, 'large'));
await workspace.git('large', 'init', '-q', '-b', 'main');
for (let i = 0; i < 20; i++)
  await writeFile(join(folder, 'large', `${i}.bin`), randomBytes(LARGE_BYTES / 20));
await workspace.git('large', 'add', '.');
await workspace.git('large', 'commit', '-q', '-m', 'large');

for (const [name, source, rounds] of [
  ['small', 'small.git', SMALL_ROUNDS],
  ['large', 'large', LARGE_ROUNDS],
] as const) {
  const id = await bench.create(name);
  await workspace.git(source, 'push', '-q', bench.remote(name), 'main');
  const sources = {
    ssh: ssh.remote(name),
    http: bench.remote(name),
    file: `file://${disk.pathOf(id)}`,
  };
  const samples = { ssh: [] as number[], http: [] as number[], file: [] as number[] };
  const cpu = { ssh: [] as number[], http: [] as number[], file: [] as number[] };
  for (let round = 0; round <= rounds; round++)
    for (const how of Object.keys(sources) as (keyof typeof sources)[]) {
      const before = await cpuSeconds();
      const ms = await time(() => clone(sources[how], 'clone'));
      await rm(join(folder, 'clone'), { recursive: true });
      // The first clone of each fills the caches.
      if (round === 0) continue;
      samples[how].push(ms);
      cpu[how].push((await cpuSeconds()) - before);
    }
  const mean = (values: number[]) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const [own, http, file] = [samples.ssh, samples.http, samples.file].map(median) as number[];
  console.log(
    `clone of the ${name} one: ${own?.toFixed(0)} ms over SSH, ${http?.toFixed(0)} over HTTP, ${file?.toFixed(0)} over file://; ` +
      `${((own ?? 0) / (http ?? 1)).toFixed(2)} of HTTP, ${((own ?? 0) / (file ?? 1)).toFixed(2)} of file://; ` +
      `CPU of the server ${mean(cpu.ssh).toFixed(3)} s over SSH, ${mean(cpu.http).toFixed(3)} over HTTP`,
  );
}

for (const how of ['ssh', 'http', 'ssh', 'http'] as const) {
  const url = how === 'ssh' ? ssh.remote('small') : bench.remote('small');
  const ms = await time(() =>
    Promise.all(Array.from({ length: AT_ONCE }, (_, i) => clone(url, `clone-${i}`))),
  );
  for (let i = 0; i < AT_ONCE; i++) await rm(join(folder, `clone-${i}`), { recursive: true });
  console.log(`${AT_ONCE} clones of the small one at once over ${how}: ${ms.toFixed(0)} ms`);
}
