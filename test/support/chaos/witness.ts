/**
 * The witness of jobs with the network `internet`, which cannot reach this machine. It has an internet address, and this
 * machine redirects connections to that address to the witness.
 */
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { INTERNET } from '../hostile/internet.ts';
import { startWitness, type Witness } from '../kills/caller.ts';
import type { OwnEngine } from '../own-engine.ts';

const run = promisify(execFile);

/** @returns `host`: its address for jobs, in every network */
export async function startFarWitness(
  { bridge }: OwnEngine,
  cleanup: AsyncDisposableStack,
): Promise<Witness & { host: string }> {
  if (!bridge) throw new Error('the engine is in another network than the witness');
  const witness = await startWitness(cleanup, '0.0.0.0', { answers: true });
  // Through a gateway: a directly connected network would be closed to jobs. Nothing is ever sent to the gateway.
  const route = [INTERNET, 'via', bridge.free, 'dev', bridge.name];
  await run('ip', ['route', 'replace', ...route]);
  // PREROUTING for containers; OUTPUT for the local programs through which process jobs reach the internet.
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
