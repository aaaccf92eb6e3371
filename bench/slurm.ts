/** Starts Slurm with one node on this machine, in its own folder, listening on loopback. */
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { chmod, mkdir, readFile, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';

const PROGRAMS = ['munged', 'slurmctld', 'slurmd', 'sbatch', 'sinfo', 'squeue'];
const START_MS = 30_000;

export type Slurm = AsyncDisposable & {
  /** Runs an array of jobs with a limit on concurrency, and waits until each has run its command. */
  run(command: string, jobs: number, atOnce: number): Promise<void>;
};

/** @returns Slurm, or the reason why it cannot be started here */
export async function openSlurm(folder: string): Promise<Slurm | string> {
  const missing = [];
  for (const name of PROGRAMS) if (!(await succeeds('which', [name], {}))) missing.push(name);
  if (missing.length > 0)
    return `${missing.join(', ')} not installed (Debian: slurmctld slurmd slurm-client munge)`;
  if (process.getuid?.() !== 0) return 'slurmd runs jobs as their users, which takes root';

  await using cleanup = new AsyncDisposableStack();
  await mkdir(folder, { recursive: true });
  await chmod(folder, 0o755);
  const at = (name: string) => join(folder, name);
  await writeFile(at('key'), randomBytes(128), { mode: 0o400 });
  const config = at('slurm.conf');
  await writeFile(config, await settings(at), { mode: 0o644 });
  const env = { PATH: process.env.PATH ?? '', SLURM_CONF: config };

  const start = (program: string, args: string[]): ChildProcess => {
    const child = spawn(program, args, { env, stdio: 'ignore' });
    cleanup.defer(async () => {
      child.kill('SIGTERM');
      const late = setTimeout(() => child.kill('SIGKILL'), 5_000);
      if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
      clearTimeout(late);
    });
    return child;
  };
  start('munged', [
    ...['--foreground', '--force', '--num-threads=2', `--key-file=${at('key')}`],
    ...[`--socket=${at('munge.socket')}`, `--pid-file=${at('munged.pid')}`],
    ...[`--log-file=${at('munged.log')}`, `--seed-file=${at('munged.seed')}`],
  ]);
  start('slurmctld', ['-D', '-f', config]);
  start('slurmd', ['-D', '-f', config, '-N', 'localhost']);
  const deadline = Date.now() + START_MS;
  while (!/idle/.test(await output('sinfo', ['-h', '-o', '%T'], env))) {
    if (Date.now() > deadline) {
      const said = await readFile(at('slurmctld.log'), 'utf8').catch(() => '');
      return `its node does not come up: ${said.trim().split('\n').slice(-3).join(' | ')}`;
    }
    await delay(200);
  }
  // The step daemon of a job ends a moment after its command, and would outlive slurmd.
  cleanup.defer(async () => {
    for (let round = 0; round < 50 && (await output('squeue', ['-h'], env)) !== ''; round++)
      await delay(100);
  });
  const owned = cleanup.move();
  let runs = 0;
  return {
    async run(command, jobs, atOnce) {
      const done = at(`done-${runs++}`);
      await writeFile(done, '');
      const array = `--array=1-${jobs}%${atOnce}`;
      const wrap = `--wrap=${command}; echo . >> ${done}`;
      const args = [array, '--ntasks=1', '--output=/dev/null', `--chdir=${folder}`, wrap];
      if (!(await succeeds('sbatch', args, env))) throw new Error('sbatch failed');
      while ((await readFile(done)).length < 2 * jobs) await delay(10);
    },
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}

/** The intervals of the scheduler are set to their minimum. */
async function settings(at: (name: string) => string): Promise<string> {
  return `ClusterName=bench
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=${await freePort()}
SlurmdPort=${await freePort()}
AuthType=auth/munge
AuthInfo=socket=${at('munge.socket')}
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
CommunicationParameters=NoInAddrAny
StateSaveLocation=${at('state')}
SlurmdSpoolDir=${at('spool')}
SlurmctldPidFile=${at('slurmctld.pid')}
SlurmdPidFile=${at('slurmd.pid')}
SlurmctldLogFile=${at('slurmctld.log')}
SlurmdLogFile=${at('slurmd.log')}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
NodeName=localhost NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=bench Nodes=localhost Default=YES State=UP
`;
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as { port: number };
  server.close();
  await once(server, 'close');
  return port;
}

async function succeeds(program: string, args: string[], env: object): Promise<boolean> {
  const child = spawn(program, args, { env: { PATH: process.env.PATH, ...env }, stdio: 'ignore' });
  child.on('error', () => {});
  const [code] = await once(child, 'close').catch(() => [1]);
  return code === 0;
}

async function output(program: string, args: string[], env: object): Promise<string> {
  const child = spawn(program, args, {
    env: { PATH: process.env.PATH, ...env },
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  let text = '';
  child.stdout.on('data', (chunk) => {
    text += chunk;
  });
  await once(child, 'close');
  return text;
}
