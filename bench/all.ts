/**
 * `npm run bench [part of a name]`: runs all benchmarks one after the other, and writes the results with charts to
 * `bench/report.html`. It takes one to two hours, and nothing else should run on the machine.
 *
 * `npm run bench quick`: runs three rows of `rest.ts` in a minute, for CI. It fails if a ratio to the peer of the same run is
 * more than three times the recorded one. On a busy machine the ratio varies by a third.
 */
import { spawn } from 'node:child_process';
import { readFile, writeFile } from 'node:fs/promises';
import { cpus } from 'node:os';
import { join } from 'node:path';
import { type Ran, reportOf } from './report.ts';

/** The largest allowed factor between a ratio and the recorded one. */
const MAX_DEVIATION = 3;
const ROOT = join(import.meta.dirname, '..');
/** The arguments of benchmarks that must run several times for all figures in README.md. */
const ARGUMENTS: Record<string, readonly string[]> = {
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
    .flatMap((script) => (ARGUMENTS[script] ?? ['']).map((args) => ({ script, args })));
  const ran: Ran[] = [];
  const page = join(import.meta.dirname, 'report.html');
  for (const { script, args } of runs) {
    const name = args ? `${script} -- ${args}` : script;
    console.log(`\n${name}`);
    const begun = performance.now();
    const command = `${scripts[script]} ${args}`.replace(/^node /, '').trim();
    const { output, code } = await run(command.split(' '));
    ran.push({ name, output, code, seconds: (performance.now() - begun) / 1_000 });
    // After each benchmark, so that one that never ends does not lose the results of the others.
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
    if (!(ratio <= expected * MAX_DEVIATION))
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
