/**
 * The network of containers. A container with the mode `internet` starts without a network. Firewall rules are set in its
 * network namespace from outside, then the engine connects it to a bridge, and only then the start barrier opens. So an
 * image whose `/bin/sh` does not wait at the barrier reaches nothing. The other modes are the engine's own.
 */
import { readFile, stat } from 'node:fs/promises';
import { isIPv4 } from 'node:net';
import type Docker from 'dockerode';
import { ConfigError } from '../../base/config/config.ts';
import type { Logger } from '../../base/log.ts';
import { NON_PUBLIC_RANGES } from '../public.ts';
import { type NetworkMode, RunnerUnavailable } from '../runner.ts';
import { type Engine, EngineError, isStatus } from './engine.ts';
import { type EngineFacts, sharesKernel } from './engine-facts.ts';
import { type ApplyFirewall, findFirewall } from './firewall.ts';

export type NetworkOptions = {
  /** `none`: loopback only; `host`: the network of this machine, including its loopback. Default: `internet`. */
  mode?: NetworkMode;
  /** A network of the engine that the operator has prepared, with rules of the operator (`LOAM_DOCKER_NETWORK`). */
  prepared?: string;
  /** Runtime of containers; default: the engine's. */
  runtime?: string;
};

export type ContainerNetwork = {
  /** For the operator, at the start: jobs have no network. */
  warning?: string;
  /** Network part of a container's `HostConfig`. */
  options(): Promise<Pick<Docker.HostConfig, 'NetworkMode' | 'Dns'>>;
  /**
   * Connects a started container to its network. It can be called again, and then resumes.
   * @throws HalfConnected
   */
  connect(container: string): Promise<void>;
};

/**
 * The engine's record of a container's network differs from its real state, because the engine was killed while it changed
 * it. This cannot be repaired.
 */
export class HalfConnected extends Error {
  override name = 'HalfConnected';
}

/** The default network of every engine, unless it is configured without. */
const BRIDGE = 'bridge';
/** Created where the default bridge cannot be used. Servers on one engine share it. */
const NETWORK = 'loam';
/** Errors for a connection that already exists or is already removed, also because the step before did not happen. */
const REFUSALS = /already (?:exists|connected)|not connected|private \(none\) mode/i;
const BUILT_IN = /^(?:bridge|default|host|none|container:.*)$/;

/** @throws RunnerUnavailable */
type GetFacts = () => Promise<Pick<EngineFacts, 'isLocal' | 'isRemapped' | 'runtime'>>;

/**
 * Chooses the network now; if the engine does not answer yet, for the first container.
 * @throws ConfigError when the prepared network does not exist or is not suitable
 */
export async function openNetwork(
  engine: Engine,
  options: NetworkOptions,
  getFacts: GetFacts,
  log: Pick<Logger, 'warn'>,
): Promise<ContainerNetwork> {
  let chosen: ContainerNetwork | undefined;
  const choose = async () => {
    chosen ??= await chooseNetwork(engine, options, getFacts);
    return chosen;
  };
  /** Logs the warning itself: the warnings of the start have been printed by then. */
  const chooseLater = async () => {
    if (chosen) return chosen;
    const { warning } = await choose();
    if (warning) log.warn(warning);
    return choose();
  };
  try {
    return await choose();
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
  { mode = 'internet', prepared, runtime }: NetworkOptions,
  getFacts: GetFacts,
): Promise<ContainerNetwork> {
  if (mode !== 'internet') return fixedNetwork(mode);
  if (prepared !== undefined) {
    await checkPrepared(engine, prepared);
    return fixedNetwork(prepared);
  }
  const firewall = await firewallFor(engine, getFacts, runtime);
  if (typeof firewall === 'function') return internetNetwork(engine, firewall);
  return {
    ...fixedNetwork('none'),
    warning: `Jobs in containers of the engine ${engine.id} have no network: ${firewall.unavailable}. To give them one, prepare a network on that engine and set LOAM_DOCKER_NETWORK to its name.`,
  };
}

/** A network that the engine sets up when it creates the container. */
function fixedNetwork(NetworkMode: string): ContainerNetwork {
  return { options: async () => ({ NetworkMode }), connect: async () => {} };
}

async function checkPrepared(engine: Engine, name: string): Promise<void> {
  const refuse = (why: string) => {
    throw new ConfigError(`LOAM_DOCKER_NETWORK: ${why} (got ${JSON.stringify(name)})`);
  };
  if (BUILT_IN.test(name))
    refuse('must be a network that was made for jobs; LOAM_JOB_NETWORK can be none or host');
  try {
    await engine.call((docker) => docker.getNetwork(name).inspect());
  } catch (error) {
    if (!isStatus(error, 404)) throw error;
    refuse(`the engine ${engine.id} has no such network`);
  }
}

/** @returns how to set firewall rules for containers of this engine, or why that is not possible */
async function firewallFor(
  engine: Engine,
  getFacts: GetFacts,
  configuredRuntime?: string,
): Promise<ApplyFirewall | { unavailable: string }> {
  const { isLocal, isRemapped, runtime: defaultRuntime } = await getFacts();
  if (isRemapped) return { unavailable: 'it maps the users of its containers' };
  if (!isLocal) return { unavailable: 'the engine is on another machine' };
  if (process.getuid?.() !== 0)
    return { unavailable: 'only a server that is root can set firewall rules for them' };
  const runtime = configuredRuntime ?? defaultRuntime;
  if (!sharesKernel(runtime))
    return { unavailable: `the runtime ${runtime} has a network stack of its own` };
  const firewall = await findFirewall();
  if (typeof firewall !== 'function')
    return { unavailable: `firewall rules cannot be set for them (${firewall.unavailable})` };
  // If this server is in a container itself, its addresses differ from those of the machine that jobs must not reach.
  const { gateway } = await networkFor(engine, await readResolvers());
  const sharesNetwork = (await readOwnAddresses()).has(gateway);
  return sharesNetwork
    ? firewall
    : { unavailable: 'this server is in another network namespace than the engine' };
}

function internetNetwork(engine: Engine, applyFirewall: ApplyFirewall): ContainerNetwork {
  async function connectToInternet(
    container: string,
    { SandboxKey, Networks }: Docker.ContainerInspectInfo['NetworkSettings'],
  ): Promise<void> {
    const resolvers = await readResolvers();
    const network = await networkFor(engine, resolvers);
    await assertOtherNamespace(SandboxKey);
    const refusals: string[] = [];
    const tryChange = async (action: 'connect' | 'disconnect', id: string) => {
      const refusal = await changeConnection(engine, id, action, container);
      if (refusal !== null) refusals.push(refusal);
    };
    const blocked = [...new Set([...(await listBlockedRanges()), network.subnet])];
    await Promise.all([
      applyFirewall(SandboxKey, { blocked, resolvers }),
      // A container on `none` must be disconnected from it before it can be connected, and has no network between.
      Networks.none && tryChange('disconnect', 'none'),
    ]);
    if (!hasNetwork(Networks)) await tryChange('connect', network.id);
    if (refusals.length === 0) return;
    const { NetworkSettings } = await inspect(container);
    if (!hasNetwork(NetworkSettings.Networks)) throw new HalfConnected(refusals.join('; '));
  }

  const inspect = (container: string) =>
    engine.call((docker) => docker.getContainer(container).inspect());

  return {
    async options() {
      // Without nameservers outside the loopback, the engine's own resolver forwards queries for the container.
      const Dns = await readResolvers();
      return { NetworkMode: 'none', ...(Dns.length > 0 && { Dns }) };
    },

    async connect(container) {
      const { State, NetworkSettings } = await inspect(container);
      if (!State.Running) return;
      try {
        await connectToInternet(container, NetworkSettings);
      } catch (error) {
        // The namespace disappears when the container ends, which explains any error.
        if ((await inspect(container)).State.Running) throw error;
      }
    },
  };
}

/** Whether the container has an address in one of the networks that this server uses. */
function hasNetwork(networks: Docker.ContainerInspectInfo['NetworkSettings']['Networks']): boolean {
  return !networks.none && [BRIDGE, NETWORK].some((name) => networks[name]?.IPAddress);
}

/**
 * @returns null on success; the refusal, when an earlier call whose answer was lost may have done the same already
 */
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
    if (!(error instanceof EngineError) || !REFUSALS.test(error.message)) throw error;
    return error.message;
  }
}

/** Firewall rules in the server's own namespace would cut this machine off. @throws Error */
async function assertOtherNamespace(sandbox: string): Promise<void> {
  const [own, other] = await Promise.all([stat('/proc/self/ns/net'), stat(sandbox)]);
  if (own.ino === other.ino && own.dev === other.dev)
    throw new Error(`${sandbox} is the network namespace of the server itself`);
}

type JobNetwork = { id: string; subnet: string; gateway: string };

/**
 * The default bridge, whose other containers are blocked like the rest of the operator's network. On a user-defined network
 * the engine runs a DNS resolver in each container, which adds 80 ms to a start, so such a network is created only where
 * the engine alone can reach the nameserver.
 * @param resolvers nameservers that a container can reach by itself
 */
async function networkFor(engine: Engine, resolvers: readonly string[]): Promise<JobNetwork> {
  const bridge = resolvers.length > 0 ? await findNetwork(engine, BRIDGE) : undefined;
  const gateway = bridge && (bridge.gateway || (await guessGateway(bridge.subnet)));
  if (gateway) return { ...bridge, gateway };
  return (await findNetwork(engine, NETWORK)) ?? createNetwork(engine);
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
        Name: NETWORK,
        Driver: 'bridge',
        CheckDuplicate: true,
        EnableIPv6: false,
        Options: { 'com.docker.network.bridge.enable_icc': 'false' },
      }),
    );
  } catch (error) {
    if (!isStatus(error, 409)) throw error;
  }
  const created = await findNetwork(engine, NETWORK);
  if (!created)
    throw new Error(`The engine ${engine.id} created the network ${NETWORK}, but does not list it`);
  return created;
}

/*
 * The addresses and networks of this machine, read from the kernel for each container, because bridges and addresses change.
 * `os.networkInterfaces()` omits interfaces without a carrier, whose addresses answer all the same.
 */

/** Ranges that no job may reach: everything that is not the internet, and the addresses and networks of this machine. */
async function listBlockedRanges(): Promise<string[]> {
  const [addresses, networks] = await Promise.all([readOwnAddresses(), readOwnNetworks()]);
  return [...NON_PUBLIC_RANGES, ...[...addresses].map((address) => `${address}/32`), ...networks];
}

/** IPv4 addresses of all interfaces, without 127.0.0.0/8. */
async function readOwnAddresses(): Promise<Set<string>> {
  return parseAddresses(await readFile('/proc/net/fib_trie', 'utf8'));
}

/** `fib_trie` (proc(5)) has a line with an address, and below it lines with its types. */
function parseAddresses(trie: string): Set<string> {
  const found = new Set<string>();
  let address = '';
  for (const line of trie.split('\n')) {
    address = /\|-- (\S+)/.exec(line)?.[1] ?? address;
    if (/\/32 host LOCAL/.test(line) && !address.startsWith('127.')) found.add(address);
  }
  return found;
}

async function readOwnNetworks(): Promise<string[]> {
  return parseNetworks(await readFile('/proc/net/route', 'utf8'));
}

/** Networks that are reached without a gateway, except for a default route. The file has numbers in host byte order. */
function parseNetworks(routes: string): string[] {
  return routes.split('\n').flatMap((line) => {
    const [, destination = '', gateway, , , , , mask = ''] = line.split(/\s+/);
    if (gateway !== '00000000' || !/^[0-9A-F]{8}$/.test(destination)) return [];
    const bits = Number.parseInt(mask, 16).toString(2).replaceAll('0', '').length;
    // The route of a point-to-point link may cover all addresses or half of them: such a range is not the operator's.
    return bits < 8 ? [] : [`${dotted(destination)}/${bits}`];
  });
}

/** The first usable address of a subnet: `172.17.0.1` of `172.17.0.0/16`. */
function firstAddress(subnet: string): string {
  const bytes = (subnet.split('/')[0] ?? '').split('.').map(Number);
  return [...bytes.slice(0, 3), (bytes[3] ?? 0) + 1].join('.');
}

function dotted(hex: string): string {
  const bytes = Buffer.from(hex, 'hex');
  return [...bytes.toReversed()].join('.');
}

/** The nameservers behind the stub of systemd-resolved. The engine reads this file in the same case. */
const RESOLVED_UPSTREAMS = '/run/systemd/resolve/resolv.conf';

/** IPv4 nameservers that containers can reach, so without those on the loopback. */
async function readResolvers(): Promise<string[]> {
  const all = await readNameservers('/etc/resolv.conf');
  const isStub = all.length === 1 && all[0] === '127.0.0.53';
  const used = isStub ? await readNameservers(RESOLVED_UPSTREAMS) : all;
  return used.filter((address) => isIPv4(address) && !address.startsWith('127.'));
}

async function readNameservers(file: string): Promise<string[]> {
  const text = await readFile(file, 'utf8').catch((error) => {
    if (error.code === 'ENOENT') return '';
    throw error;
  });
  return [...text.matchAll(/^[ \t]*nameserver[ \t]+(\S+)/gm)].map(([, address = '']) => address);
}
