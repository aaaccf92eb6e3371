/**
 * `npm run bench [part of a name]`: all benchmarks, one after the other, and what they found as one page with charts,
 * `bench/report.html`. That takes an hour or two, and wants the machine for itself.
 *
 * `npm run bench quick`: three rows of `rest.ts` in a minute, for CI. It fails where a ratio to the peer in the same run is
 * out of all proportion to the recorded one; a busy machine moves it by a third.
 */
import { spawn } from 'node:child_process';
import { readFile, writeFile } from 'node:fs/promises';
import { cpus } from 'node:os';
import { join } from 'node:path';
import { type Ran, reportOf } from './report.ts';

/** How far a ratio may be from the recorded one. */
const OUT_OF_PROPORTION = 3;
const ROOT = join(import.meta.dirname, '..');
/** What a benchmark is asked for, one after the other, where that is not everything that README.md has of it. */
const ASKED: Record<string, readonly string[]> = {
  'bench:clone': ['', 'backend'],
  'bench:job-start': ['', '20 none'],
  'bench:large': ['object', 'lfs', 'many', 'refs'],
  'bench:log-followers': ['1000 10 15', '1000 100 15'],
};

const [, , asked = ''] = process.argv;
if (asked === 'quick') await runQuick();
else await runAll(asked);

async function runAll(part: string): Promise<void> {
  const { scripts } = JSON.parse(await readFile(join(ROOT, 'package.json'), 'utf8'));
  const runs = Object.keys(scripts)
    .filter((name) => name.startsWith('bench:') && name.includes(part))
    .flatMap((script) => (ASKED[script] ?? ['']).map((args) => ({ script, args })));
  const ran: Ran[] = [];
  const page = join(import.meta.dirname, 'report.html');
  for (const { script, args } of runs) {
    const name = args ? `${script} -- ${args}` : script;
    console.log(`\n${name}`);
    const begun = performance.now();
    const command = `${scripts[script]} ${args}`.replace(/^node /, '').trim();
    const { output, code } = await run(command.split(' '));
    ran.push({ name, output, code, seconds: (performance.now() - begun) / 1_000 });
    // After each, so that one that never ends takes nothing of the others with it.
    const machine = `${cpus().length} × ${cpus()[0]?.model}, Node ${process.version}`;
    await writeFile(page, reportOf(ran, { machine, at: new Date() }));
  }
  console.log(`\n${page}`);
  const failed = ran.filter(({ code }) => code !== 0);
  if (failed.length > 0) {
    console.error(`Not run to their end: ${failed.map(({ name }) => name).join(', ')}`);
    process.exitCode = 1;
  }
}

async function runQuick(): Promise<void> {
  const file = join(import.meta.dirname, 'recorded.json');
  const recorded: Record<string, number> = JSON.parse(await readFile(file, 'utf8'));
  const { output, code } = await run(['bench/rest.ts', '--quick', ...Object.keys(recorded)]);
  if (code !== 0) throw new Error(`bench/rest.ts ended with ${code}`);
  for (const [title, expected] of Object.entries(recorded)) {
    const line = output.split('\n').find((one) => one.startsWith(`${title}: `));
    const ratio = Number(/, CPU ([\d.]+)× .*? peer's/.exec(line ?? '')?.[1]);
    if (!(ratio <= expected * OUT_OF_PROPORTION))
      throw new Error(
        `${title}: ${ratio} times the CPU of the peer, where ${expected} is recorded (bench/recorded.json)`,
      );
  }
}

async function run(args: string[]): Promise<{ output: string; code: number | null }> {
  const child = spawn(process.execPath, args, { cwd: ROOT, stdio: ['ignore', 'pipe', 'inherit'] });
  let output = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    output += text;
    process.stdout.write(text);
  });
  const code = await new Promise<number | null>((resolve) => child.on('close', resolve));
  return { output, code };
}
