/** Opens the runners of the clusters and joined machines that this worker drives. */
import { join } from 'node:path';
import type { ClusterConfig } from '../base/config/clusters.ts';
import type { Config } from '../base/config/config.ts';
import type { Logger } from '../base/log.ts';
import { oneMachine, type SharingEngine } from './agent/engine.ts';
import { PROGRAM_PATH, requireAgentProgram } from './agent/program.ts';
import { type AgentRunner, openAgentRunner, readSubmissions } from './agent/runner.ts';
import { MachinesEngine } from './machines/engine.ts';
import { readProgramVersion } from './machines/program.ts';
import type { NetworkMode } from './runner.ts';

type Options = {
  clusters: readonly ClusterConfig[];
  dataDir: string;
  /** Names the GPUs of machines that joined. */
  hardware: Config['hardware'];
  /** Base URL at which nodes reach this worker, without a trailing slash. */
  agentUrl: string;
  /** How long a job continues while its node reaches no server. */
  leaseMs: number;
  /** Id of this worker. */
  worker: string;
  /** Network of jobs on Kubernetes. Slurm has no other than that of the node. */
  network: NetworkMode | undefined;
  /** Non-public IPv4 networks that jobs in Kubernetes may reach. */
  allow: readonly string[];
  volumes: Config['volumes'];
  log: Logger;
};

export type OpenedClusters = {
  /** Name of the cluster → its runner. */
  runners: Readonly<Record<string, AgentRunner>>;
  /** The runner of joined machines, and its engine. */
  machines: AgentRunner;
  joined: MachinesEngine;
  /** Path of the program for the nodes. */
  program: string;
  /** The session of an attempt on any of the clusters or machines. */
  findSession: AgentRunner['findSession'];
};

/** @throws ConfigError when a cluster cannot be used as it is configured */
export async function openClusters(
  { clusters, dataDir, hardware, agentUrl, leaseMs, worker, network, allow, volumes, log }: Options,
  cleanup: AsyncDisposableStack,
): Promise<OpenedClusters> {
  if (clusters.length > 0) requireAgentProgram();
  const runners: Record<string, AgentRunner> = {};
  for (const cluster of clusters) {
    const { name, regions, options } = cluster;
    const engine = await openEngine(cluster, { agentUrl, worker, network, allow, volumes, log });
    runners[name] = cleanup.use(
      await openAgentRunner({
        engine,
        name,
        dir: join(dataDir, 'clusters', name),
        placement: oneMachine(engine, { id: name, maxJobs: options.maxJobs, regions }),
        agentUrl,
        leaseMs,
        log,
      }),
    );
    const state = engine.unavailableReason
      ? `takes no jobs yet (${engine.unavailableReason}); its jobs wait`
      : 'answers';
    log.info(`${engine.title}${name === cluster.kind ? '' : ` "${name}"`} ${state}`);
  }
  const machinesDir = join(dataDir, 'machines');
  const joined = new MachinesEngine(await readSubmissions(machinesDir), {
    program: readProgramVersion(),
    hardware,
  });
  const machines = cleanup.use(
    await openAgentRunner({
      engine: joined,
      name: 'machines',
      dir: machinesDir,
      placement: joined,
      agentUrl,
      leaseMs,
      log,
    }),
  );
  if (clusters.length > 0 && isLoopback(agentUrl))
    log.warn(
      `The nodes of clusters are told to reach this worker at ${agentUrl}, which works only on this machine: set LOAM_AGENT_URL`,
    );
  return {
    runners,
    machines,
    joined,
    program: PROGRAM_PATH,
    async findSession(attempt) {
      for (const runner of [...Object.values(runners), machines]) {
        const session = await runner.findSession(attempt);
        if (session) return session;
      }
      return undefined;
    },
  };
}

/** Loaded on demand, to save memory on servers without such clusters. */
async function openEngine(
  cluster: ClusterConfig,
  options: Pick<Options, 'agentUrl' | 'worker' | 'network' | 'allow' | 'volumes' | 'log'>,
): Promise<SharingEngine> {
  if (cluster.kind === 'kubernetes') {
    const { openKubernetesEngine } = await import('./kubernetes/engine.ts');
    return openKubernetesEngine({ config: cluster.options, ...options });
  }
  const { worker, network, volumes, log } = options;
  if (network !== undefined && network !== 'host')
    log.warn(
      `LOAM_JOB_NETWORK: jobs in Slurm ("${cluster.name}") use the network of their node; "${network}" does not apply to them`,
    );
  const { openSlurmEngine } = await import('./slurm/engine.ts');
  return openSlurmEngine({ config: cluster.options, worker, volumes, log });
}

function isLoopback(url: string): boolean {
  return /^(?:localhost|127\.[\d.]+|\[::1\])$/.test(new URL(url).hostname);
}
