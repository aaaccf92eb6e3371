/**
 * The witness of jobs that have the network `internet`: they reach nothing of this machine, so it has an address of the
 * internet for them, which this machine takes for itself on the way out.
 */
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { INTERNET } from '../hostile/internet.ts';
import { startWitness, type Witness } from '../kills/caller.ts';
import type { OwnEngine } from '../own-engine.ts';

const run = promisify(execFile);

/** @returns `host`: where jobs reach it, in every network */
export async function startFarWitness(
  { bridge }: OwnEngine,
  cleanup: AsyncDisposableStack,
): Promise<Witness & { host: string }> {
  if (!bridge) throw new Error('the engine is in another network than the witness');
  const witness = await startWitness(cleanup, '0.0.0.0', { answers: true });
  // By a gateway, or it would be a network of this machine, which is closed to jobs. Nothing is ever sent to that one.
  const route = [INTERNET, 'via', bridge.free, 'dev', bridge.name];
  await run('ip', ['route', 'replace', ...route]);
  // Of containers, and of programs of this machine, by which jobs as processes reach the internet.
  for (const chain of ['PREROUTING', 'OUTPUT']) {
    const rule = (how: string) =>
      run('iptables', [
        ...['--wait', '--table', 'nat', how, chain, '--destination', INTERNET],
        ...['--protocol', 'tcp', '--dport', `${witness.port}`, '--jump', 'REDIRECT'],
      ]);
    await rule('--append');
    cleanup.defer(async () => void (await rule('--delete')));
  }
  return { ...witness, host: INTERNET };
}
