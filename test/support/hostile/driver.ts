/**
 * A separate process that runs jobs for `user.ts`, because tests need a runner under another user. It gets the options of
 * the runner as JSON, and a line of JSON for each job on its standard input; it answers in lines.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';
import { extract } from 'tar-stream';
import { openDockerRunner } from '../../../src/runners/docker/runner.ts';
import { openProcessRunner } from '../../../src/runners/process/runner.ts';
import type { Runner } from '../../../src/runners/runner.ts';
import type { ProcessIdentity } from '../../../src/runners/supervisor/claim.ts';
import { listDescendants, readProcessStat } from '../../../src/runners/supervisor/proc.ts';
import { eventually } from '../eventually.ts';
import { attemptSpec } from '../runner.contract.ts';
import type { JobRequest, JobResult } from './user.ts';

const never = new AbortController().signal;
const options = JSON.parse(process.argv[2] ?? '{}');
const runner = await ('docker' in options ? openDockerRunner(options) : openProcessRunner(options));
tell({ warning: runner.warning ?? '' });
for await (const line of createInterface(process.stdin))
  tell(await runJob(runner, JSON.parse(line)));
await runner.sweep(new Set());
// The runner may keep a shim for the next job.
await runner[Symbol.asyncDispose]();

function tell(told: { warning: string } | JobResult): void {
  process.stdout.write(`${JSON.stringify(told)}\n`);
}

async function runJob(runner: Runner, asked: JobRequest): Promise<JobResult> {
  const { command, env = {}, image = null, gpu = 'none', stop, outputs = [] } = asked;
  const spec = attemptSpec(command, { env, image });
  spec.hardware.gpu = gpu;
  const handle = await runner.prepare(spec, never);
  await runner.start(handle);
  const lines: string[] = [];
  for await (const batch of runner.logs(handle, null, never)) {
    lines.push(...batch.lines.map(({ message }) => message));
    if (!stop || !batch.lines.some(({ message }) => message === 'up')) continue;
    if (stop === 'CRASH') await crash(String(handle.attempt), asked.alone);
    else await runner.signal(handle, stop);
  }
  const outcome = await runner.wait(handle, never);
  const artifacts: JobResult['artifacts'] = [];
  for (const path of outputs) artifacts.push(await namesIn(await runner.artifacts(handle, path)));
  await runner.remove(handle);
  return { lines, outcome, artifacts };
}

/** Kills the shim only. */
async function crash(attempt: string, alone = false): Promise<void> {
  const claim = readFileSync(join(options.dir, attempt, 'claim'), 'utf8');
  const { pid } = JSON.parse(claim) as ProcessIdentity;
  const below = listDescendants(pid);
  process.kill(pid, 'SIGKILL');
  const runs = (one: number) => ![undefined, 'Z', 'X'].includes(readProcessStat(one)?.state);
  if (!alone) return;
  await eventually(() => {
    const left = below.filter(runs);
    if (left.length > 0) throw new Error(`what ran under the shim goes on without it: ${left}`);
  });
}

async function namesIn(tar: Readable | null): Promise<string[] | null> {
  if (!tar) return null;
  const unpack = extract();
  tar.on('error', (error) => unpack.destroy(error));
  tar.pipe(unpack as never);
  const names: string[] = [];
  for await (const entry of unpack) {
    if (entry.header.type === 'file') names.push(entry.header.name);
    entry.resume();
  }
  return names.sort();
}
