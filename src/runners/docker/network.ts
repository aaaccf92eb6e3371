/**
 * The network of containers. In the mode `internet` a container starts without a network. Loam sets firewall rules in its
 * network namespace from outside, and then the engine connects it to a bridge. Only then does the start barrier open
 * (`../container/wrapper.ts`), so an image whose `/bin/sh` does not wait at the barrier reaches nothing. For the modes `none` and
 * `host` the container gets the engine's network of that name.
 */
import { stat } from 'node:fs/promises';
import type Docker from 'dockerode';
import { ConfigError } from '../../base/config/config.ts';
import type { Logger } from '../../base/log.ts';
import { subtractNetworks } from '../public-addresses.ts';
import { type NetworkMode, RunnerUnavailable } from '../runner.ts';
import { type Engine, EngineError, isStatus } from './engine.ts';
import { type EngineFacts, sharesKernel } from './engine-facts.ts';
import { type ApplyFirewall, findFirewall } from './firewall.ts';
import { listBlockedRanges, readOwnAddresses, readResolvers } from './host-network.ts';

export type NetworkOptions = {
  /**
   * `internet` (default): public addresses only. `none`: loopback only. `host`: the network of this machine, including its
   * loopback.
   */
  mode?: NetworkMode;
  /** Non-public IPv4 networks that jobs may reach. */
  allow?: readonly string[];
  /** An existing network of the engine with the operator's own firewall rules (`LOAM_DOCKER_NETWORK`). */
  prepared?: string;
  /** Runtime of containers; default: the engine's. */
  runtime?: string;
};

export type ContainerNetwork = {
  /** Why jobs have no network; logged at startup. */
  warning?: string;
  /** Network part of a container's `HostConfig`. */
  options(): Promise<Pick<Docker.HostConfig, 'NetworkMode' | 'Dns'>>;
  /**
   * Connects a started container to its network. A repeated call completes the missing steps.
   * @throws InconsistentNetworkError
   */
  connect(container: string): Promise<void>;
};

/**
 * The engine's record of a container's network differs from its real state, because the engine was killed while it changed
 * it. This cannot be repaired.
 */
export class InconsistentNetworkError extends Error {
  override name = 'InconsistentNetworkError';
}

/** The default network of every engine, unless the operator disabled it. */
const DEFAULT_BRIDGE = 'bridge';
/** Created where the default bridge cannot be used (`findOrCreateJobNetwork`). Servers on one engine share it. */
const LOAM_NETWORK = 'loam';
/** Errors of changes that an earlier call has made already, or whose preceding disconnect failed. */
const ALREADY_DONE_ERRORS = /already (?:exists|connected)|not connected|private \(none\) mode/i;
const BUILT_IN = /^(?:bridge|default|host|none|container:.*)$/;

/** @throws RunnerUnavailable */
type GetFacts = () => Promise<Pick<EngineFacts, 'isLocal' | 'isRemapped' | 'runtime'>>;

/**
 * Chooses the network now. If the engine does not answer yet, the choice is made at the first container.
 * @throws ConfigError when the prepared network does not exist or is not suitable
 */
export async function openContainerNetwork(
  engine: Engine,
  options: NetworkOptions,
  getFacts: GetFacts,
  log: Pick<Logger, 'warn'>,
): Promise<ContainerNetwork> {
  let chosen: ContainerNetwork | undefined;
  /** Logs its own warning, because the startup warnings have been printed by then. */
  const chooseLater = async () => {
    if (chosen) return chosen;
    chosen = await chooseNetwork(engine, options, getFacts);
    if (chosen.warning) log.warn(chosen.warning);
    return chosen;
  };
  try {
    return await chooseNetwork(engine, options, getFacts);
  } catch (error) {
    if (!(error instanceof RunnerUnavailable)) throw error;
  }
  return {
    options: async () => (await chooseLater()).options(),
    connect: async (container) => (await chooseLater()).connect(container),
  };
}

async function chooseNetwork(
  engine: Engine,
  { mode = 'internet', allow = [], prepared, runtime }: NetworkOptions,
  getFacts: GetFacts,
): Promise<ContainerNetwork> {
  if (mode !== 'internet') return fixedNetwork(mode);
  if (prepared !== undefined) {
    await checkPrepared(engine, prepared);
    return fixedNetwork(prepared);
  }
  const firewall = await findFirewallForEngine(engine, getFacts, runtime);
  if (typeof firewall === 'function') return internetNetwork(engine, firewall, allow);
  return {
    ...fixedNetwork('none'),
    warning: `Jobs in containers of the engine ${engine.id} have no network: ${firewall.unavailable}. To give them a network, create one with firewall rules on that engine and set LOAM_DOCKER_NETWORK to its name.`,
  };
}

/** A network that the engine sets up when it creates the container. */
function fixedNetwork(name: string): ContainerNetwork {
  return { options: async () => ({ NetworkMode: name }), connect: async () => {} };
}

async function checkPrepared(engine: Engine, name: string): Promise<void> {
  const configError = (problem: string) =>
    new ConfigError(`LOAM_DOCKER_NETWORK: ${problem} (got ${JSON.stringify(name)})`);
  if (BUILT_IN.test(name))
    throw configError(
      'must be a network that was made for jobs; to use none or host, set LOAM_JOB_NETWORK instead',
    );
  try {
    await engine.call((docker) => docker.getNetwork(name).inspect());
  } catch (error) {
    if (!isStatus(error, 404)) throw error;
    throw configError(`the engine ${engine.id} has no such network`);
  }
}

/** `unavailable`: why rules cannot be set for containers of this engine. */
async function findFirewallForEngine(
  engine: Engine,
  getFacts: GetFacts,
  configuredRuntime?: string,
): Promise<ApplyFirewall | { unavailable: string }> {
  const { isLocal, isRemapped, runtime: defaultRuntime } = await getFacts();
  if (isRemapped) return { unavailable: 'the engine is rootless or uses userns-remap' };
  if (!isLocal) return { unavailable: 'the engine is on another machine' };
  if (process.getuid?.() !== 0)
    return { unavailable: 'Loam must run as root to set their firewall rules' };
  const runtime = configuredRuntime ?? defaultRuntime;
  if (!sharesKernel(runtime))
    return { unavailable: `the runtime ${runtime} has a network stack of its own` };
  const firewall = await findFirewall();
  if (typeof firewall !== 'function')
    return { unavailable: `their firewall rules cannot be set (${firewall.unavailable})` };
  // A server in a container does not have the bridge's gateway address, and does not know the addresses of the machine,
  // which jobs must not reach.
  const { gateway } = await findOrCreateJobNetwork(engine, await readResolvers());
  const ownsGateway = (await readOwnAddresses()).has(gateway);
  return ownsGateway
    ? firewall
    : { unavailable: 'this server is in another network namespace than the engine' };
}

function internetNetwork(
  engine: Engine,
  applyFirewall: ApplyFirewall,
  allow: readonly string[],
): ContainerNetwork {
  async function connectToInternet(
    container: string,
    { SandboxKey, Networks }: Docker.ContainerInspectInfo['NetworkSettings'],
  ): Promise<void> {
    const resolvers = await readResolvers();
    const network = await findOrCreateJobNetwork(engine, resolvers);
    await assertNotOwnNamespace(SandboxKey);
    const alreadyDone: string[] = [];
    const tryChange = async (action: 'connect' | 'disconnect', id: string) => {
      const message = await changeConnection(engine, id, action, container);
      if (message !== null) alreadyDone.push(message);
    };
    const closed = [...(await listBlockedRanges()), network.subnet];
    const blocked = [...new Set(subtractNetworks(closed, allow))];
    await Promise.all([
      applyFirewall(SandboxKey, { blocked, resolvers }),
      // The engine connects a container only after it was disconnected from `none`. In between it has no network.
      Networks.none && tryChange('disconnect', 'none'),
    ]);
    if (!hasNetwork(Networks)) await tryChange('connect', network.id);
    if (alreadyDone.length === 0) return;
    const { NetworkSettings } = await inspect(container);
    if (!hasNetwork(NetworkSettings.Networks))
      throw new InconsistentNetworkError(alreadyDone.join('; '));
  }

  const inspect = (container: string) =>
    engine.call((docker) => docker.getContainer(container).inspect());

  return {
    async options() {
      // If the list is empty, the engine's resolver forwards queries for the container.
      const Dns = await readResolvers();
      return { NetworkMode: 'none', ...(Dns.length > 0 && { Dns }) };
    },

    async connect(container) {
      const { State, NetworkSettings } = await inspect(container);
      if (!State.Running) return;
      try {
        await connectToInternet(container, NetworkSettings);
      } catch (error) {
        // Errors of an ended container are ignored, because its namespace disappears.
        if ((await inspect(container)).State.Running) throw error;
      }
    },
  };
}

/** Whether the container has an address in one of the networks that this server uses. */
function hasNetwork(networks: Docker.ContainerInspectInfo['NetworkSettings']['Networks']): boolean {
  return !networks.none && [DEFAULT_BRIDGE, LOAM_NETWORK].some((name) => networks[name]?.IPAddress);
}

/** @returns null on success; the error message if an earlier call, whose answer was lost, may have made the change */
async function changeConnection(
  engine: Engine,
  network: string,
  action: 'connect' | 'disconnect',
  container: string,
): Promise<string | null> {
  try {
    await engine.call((docker) => docker.getNetwork(network)[action]({ Container: container }));
    return null;
  } catch (error) {
    if (!(error instanceof EngineError) || !ALREADY_DONE_ERRORS.test(error.message)) throw error;
    return error.message;
  }
}

/** Firewall rules in the server's own namespace would cut this machine off. @throws Error */
async function assertNotOwnNamespace(sandbox: string): Promise<void> {
  const [own, containers] = await Promise.all([stat('/proc/self/ns/net'), stat(sandbox)]);
  if (own.ino === containers.ino && own.dev === containers.dev)
    throw new Error(`${sandbox} is the network namespace of the server itself`);
}

type JobNetwork = { id: string; subnet: string; gateway: string };

/**
 * Prefers the default bridge, whose other containers are blocked like the rest of the operator's network. On a user-defined
 * network the engine runs a DNS resolver in each container, which adds 80 ms to a start, so Loam creates such a network only
 * where the engine alone can reach the nameserver.
 * @param resolvers nameservers that a container can reach by itself
 */
async function findOrCreateJobNetwork(
  engine: Engine,
  resolvers: readonly string[],
): Promise<JobNetwork> {
  const bridge = resolvers.length > 0 ? await findNetwork(engine, DEFAULT_BRIDGE) : undefined;
  const gateway = bridge && (bridge.gateway || (await guessGateway(bridge.subnet)));
  if (gateway) return { ...bridge, gateway };
  return (await findNetwork(engine, LOAM_NETWORK)) ?? createNetwork(engine);
}

/**
 * Before Docker 23 an engine does not report the gateway of its default bridge until its second start. The gateway is the
 * first address of the subnet, unless the operator chose another, and an address of this machine.
 */
async function guessGateway(subnet: string): Promise<string | undefined> {
  const first = firstAddress(subnet);
  return (await readOwnAddresses()).has(first) ? first : undefined;
}

/** Engines may allow several networks of one name; the oldest is used. */
async function findNetwork(engine: Engine, name: string): Promise<JobNetwork | undefined> {
  const all = await engine.call((docker) =>
    docker.listNetworks({ filters: { name: [name], driver: ['bridge'] } }),
  );
  const [oldest] = all
    .filter(({ Name }) => Name === name)
    .sort((a, b) => (a.Created < b.Created ? -1 : 1));
  const { Subnet, Gateway = '' } = oldest?.IPAM?.Config?.[0] ?? {};
  if (!oldest || !Subnet) return undefined;
  return { id: oldest.Id, subnet: Subnet, gateway: Gateway.split('/')[0] ?? '' };
}

async function createNetwork(engine: Engine): Promise<JobNetwork> {
  try {
    await engine.call((docker) =>
      docker.createNetwork({
        Name: LOAM_NETWORK,
        Driver: 'bridge',
        CheckDuplicate: true,
        EnableIPv6: false,
        Options: { 'com.docker.network.bridge.enable_icc': 'false' },
      }),
    );
  } catch (error) {
    if (!isStatus(error, 409)) throw error;
  }
  const created = await findNetwork(engine, LOAM_NETWORK);
  if (!created)
    throw new Error(
      `The engine ${engine.id} created the network ${LOAM_NETWORK}, but does not list it`,
    );
  return created;
}

/** The first usable address of a subnet: `172.17.0.1` of `172.17.0.0/16`. */
function firstAddress(subnet: string): string {
  const bytes = (subnet.split('/')[0] ?? '').split('.').map(Number);
  return [...bytes.slice(0, 3), (bytes[3] ?? 0) + 1].join('.');
}
