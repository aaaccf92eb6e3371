/**
 * The network of a job in a container.
 *
 * - `internet`: a bridge of the engine, and rules in the container's own network namespace (`rules.ts`). They hold on
 *   the engine's own bridge too, and its other containers are as closed to a job as all else of the operator's. On a
 *   network that was made, the engine answers DNS in each container, which takes 80 ms of a start: so one is made only
 *   where the engine alone can ask the nameserver.
 * - `none`: a loopback of its own and nothing else.
 * - `host`: that of this machine, loopback included.
 * - A network that the operator has prepared (`LOAM_DOCKER_NETWORK`), whose rules are the operator's.
 *
 * A container of `internet` is started without any network. The rules are set from outside, and only then the engine
 * connects it, all before the gate opens: an image whose `/bin/sh` does not wait at the gate finds nothing to reach.
 */
import { readFile, stat } from 'node:fs/promises';
import { isIPv4 } from 'node:net';
import type Docker from 'dockerode';
import { ConfigError } from '../../base/config/config.ts';
import type { Logger } from '../../base/log.ts';
import { NOT_PUBLIC } from '../public.ts';
import { type NetworkMode, RunnerAway } from '../runner.ts';
import { type Engine, EngineError, isStatus } from './engine.ts';
import { type EngineFacts, sharesKernel } from './facts.ts';
import { findRules, type SetRules } from './rules.ts';

export type NetworkOptions = {
  /** Unset: `internet`. */
  mode?: NetworkMode;
  /** Name of a network of the engine, in place of ours. */
  prepared?: string;
  /** Another than the engine's own. */
  runtime?: string;
};

export type ContainerNetwork = {
  /** For the operator, at the start: that jobs have none. */
  warning?: string;
  /** Parts of what a container is created with. */
  options(): Promise<Pick<Docker.HostConfig, 'NetworkMode' | 'Dns'>>;
  /**
   * Gives a started container its network. Called again, it goes on where it was left.
   * @throws HalfConnected
   */
  connect(container: string): Promise<void>;
};

/** An engine that was killed in the middle knows something else of a container's network than there is: nothing mends it. */
export class HalfConnected extends Error {
  override name = 'HalfConnected';
}

/** What each engine makes for itself, unless it was told not to. */
const BRIDGE = 'bridge';
/** What is made on an engine otherwise; servers that share one share it. */
const NETWORK = 'loam';
/** Of a connection that is there, or is not there, already; also for want of the step before. */
const REFUSALS = /already (?:exists|connected)|not connected|private \(none\) mode/i;
const BUILT_IN = /^(?:bridge|default|host|none|container:.*)$/;

/** @throws RunnerAway */
type Facts = () => Promise<Pick<EngineFacts, 'local' | 'remapped' | 'runtime'>>;

/**
 * An engine that does not answer yet is asked again for the first container.
 * @throws ConfigError when the prepared network is none
 */
export async function openNetwork(
  engine: Engine,
  options: NetworkOptions,
  facts: Facts,
  log: Pick<Logger, 'warn'>,
): Promise<ContainerNetwork> {
  let chosen: ContainerNetwork | undefined;
  const choose = async () => {
    chosen ??= await choice(engine, options, facts);
    return chosen;
  };
  /** The start is over by then. */
  const chooseLater = async () => {
    if (chosen) return chosen;
    const { warning } = await choose();
    if (warning) log.warn(warning);
    return choose();
  };
  try {
    return await choose();
  } catch (error) {
    if (!(error instanceof RunnerAway)) throw error;
  }
  return {
    options: async () => (await chooseLater()).options(),
    connect: async (container) => (await chooseLater()).connect(container),
  };
}

async function choice(
  engine: Engine,
  { mode = 'internet', prepared, runtime }: NetworkOptions,
  facts: Facts,
): Promise<ContainerNetwork> {
  if (mode !== 'internet') return fixed(mode);
  if (prepared !== undefined) {
    await findPrepared(engine, prepared);
    return fixed(prepared);
  }
  const rules = await rulesFor(engine, facts, runtime);
  if (typeof rules === 'function') return internet(engine, rules);
  return {
    ...fixed('none'),
    warning: `Jobs in containers of the engine ${engine.id} have no network: ${rules.missing}. A network that you prepared there can be given to them by LOAM_DOCKER_NETWORK.`,
  };
}

function fixed(NetworkMode: string): ContainerNetwork {
  return { options: async () => ({ NetworkMode }), connect: async () => {} };
}

async function findPrepared(engine: Engine, name: string): Promise<void> {
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

/** How containers of this engine are given rules, or why they cannot be. */
async function rulesFor(
  engine: Engine,
  facts: Facts,
  asked?: string,
): Promise<SetRules | { missing: string }> {
  const { local, remapped, runtime } = await facts();
  if (remapped) return { missing: 'it maps the users of its containers' };
  if (!local) return { missing: 'the engine is on another machine' };
  if (process.getuid?.() !== 0) return { missing: 'setting rules for their networks takes root' };
  const used = asked ?? runtime;
  if (!sharesKernel(used))
    return { missing: `the runtime ${used} has a network of its own making` };
  const rules = await findRules();
  if (typeof rules !== 'function')
    return { missing: `their networks cannot have rules (${rules.missing})` };
  // A container that this server is in has other addresses than the machine that its jobs must not reach.
  const { gateway } = await networkFor(engine, await resolvers());
  const isOurs = (await ownAddresses()).has(gateway);
  return isOurs ? rules : { missing: 'this server is in another network than it' };
}

function internet(engine: Engine, setRules: SetRules): ContainerNetwork {
  async function give(
    container: string,
    { SandboxKey, Networks }: Docker.ContainerInspectInfo['NetworkSettings'],
  ): Promise<void> {
    const asked = await resolvers();
    const network = await networkFor(engine, asked);
    await demandOther(SandboxKey);
    const refused: string[] = [];
    const attempted = async (what: 'connect' | 'disconnect', id: string) => {
      const why = await change(engine, id, what, container);
      if (why !== null) refused.push(why);
    };
    const closed = [...new Set([...(await closedRanges()), network.subnet])];
    await Promise.all([
      setRules(SandboxKey, { closed, resolvers: asked }),
      // A container that keeps its `none` cannot be connected; without it, it has no network either.
      Networks.none && attempted('disconnect', 'none'),
    ]);
    if (!hasNetwork(Networks)) await attempted('connect', network.id);
    if (refused.length === 0) return;
    const { NetworkSettings } = await inspect(container);
    if (!hasNetwork(NetworkSettings.Networks)) throw new HalfConnected(refused.join('; '));
  }

  const inspect = (container: string) =>
    engine.call((docker) => docker.getContainer(container).inspect());

  return {
    async options() {
      // Of the loopback: the engine itself asks them for the container.
      const Dns = await resolvers();
      return { NetworkMode: 'none', ...(Dns.length > 0 && { Dns }) };
    },

    async connect(container) {
      const { State, NetworkSettings } = await inspect(container);
      if (!State.Running) return;
      try {
        await give(container, NetworkSettings);
      } catch (error) {
        // Its namespace ends with it.
        if ((await inspect(container)).State.Running) throw error;
      }
    },
  };
}

/** Of ours, with an address in it. */
function hasNetwork(networks: Docker.ContainerInspectInfo['NetworkSettings']['Networks']): boolean {
  return !networks.none && [BRIDGE, NETWORK].some((name) => networks[name]?.IPAddress);
}

/** @returns null; or why not, when that may be because it was done by an earlier call whose answer was lost */
async function change(
  engine: Engine,
  network: string,
  what: 'connect' | 'disconnect',
  container: string,
): Promise<string | null> {
  try {
    await engine.call((docker) => docker.getNetwork(network)[what]({ Container: container }));
    return null;
  } catch (error) {
    if (!(error instanceof EngineError) || !REFUSALS.test(error.message)) throw error;
    return error.message;
  }
}

/** Rules in our own namespace would cut this machine off. @throws Error */
async function demandOther(sandbox: string): Promise<void> {
  const [own, other] = await Promise.all([stat('/proc/self/ns/net'), stat(sandbox)]);
  if (own.ino === other.ino && own.dev === other.dev)
    throw new Error(`${sandbox} is the network of the server itself`);
}

type JobNetwork = { id: string; subnet: string; gateway: string };

/** @param asked nameservers that a container can ask itself */
async function networkFor(engine: Engine, asked: readonly string[]): Promise<JobNetwork> {
  const own = asked.length > 0 ? await find(engine, BRIDGE) : undefined;
  const gateway = own && (own.gateway || (await untoldGateway(own.subnet)));
  if (gateway) return { ...own, gateway };
  return (await find(engine, NETWORK)) ?? makeNetwork(engine);
}

/**
 * An engine before Docker 23 does not tell the gateway of its own bridge until it was started once more. That is the
 * first address of the bridge's network, unless the operator chose another, and an address of this machine.
 */
async function untoldGateway(subnet: string): Promise<string | undefined> {
  const first = firstOf(subnet);
  return (await ownAddresses()).has(first) ? first : undefined;
}

/** An engine may let two networks have one name, of which the older is taken. */
async function find(engine: Engine, name: string): Promise<JobNetwork | undefined> {
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

async function makeNetwork(engine: Engine): Promise<JobNetwork> {
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
  const made = await find(engine, NETWORK);
  if (!made) throw new Error(`the engine ${engine.id} does not keep the network ${NETWORK}`);
  return made;
}

/*
 * The networks of this machine, as its kernel tells them, read anew for each container: bridges and addresses come and
 * go. Node's own list leaves out interfaces without a carrier, whose addresses answer all the same.
 */

/** What no job may reach: what is not the internet, each address of this machine, and each network that it is in. */
async function closedRanges(): Promise<string[]> {
  const [addresses, networks] = await Promise.all([ownAddresses(), ownNetworks()]);
  return [...NOT_PUBLIC, ...[...addresses].map((address) => `${address}/32`), ...networks];
}

/** Of all interfaces but the loopback's own range. */
async function ownAddresses(): Promise<Set<string>> {
  return parseAddresses(await readFile('/proc/net/fib_trie', 'utf8'));
}

/** `fib_trie` of proc(5): a line of an address, and below it lines of what it is. */
function parseAddresses(trie: string): Set<string> {
  const found = new Set<string>();
  let address = '';
  for (const line of trie.split('\n')) {
    address = /\|-- (\S+)/.exec(line)?.[1] ?? address;
    if (/\/32 host LOCAL/.test(line) && !address.startsWith('127.')) found.add(address);
  }
  return found;
}

async function ownNetworks(): Promise<string[]> {
  return parseNetworks(await readFile('/proc/net/route', 'utf8'));
}

/** Those that are reached without a gateway, but for a default route: numbers are in the order of this machine's bytes. */
function parseNetworks(routes: string): string[] {
  return routes.split('\n').flatMap((line) => {
    const [, destination = '', gateway, , , , , mask = ''] = line.split(/\s+/);
    if (gateway !== '00000000' || !/^[0-9A-F]{8}$/.test(destination)) return [];
    const bits = Number.parseInt(mask, 16).toString(2).replaceAll('0', '').length;
    // A point-to-point link may hold all addresses, or half of them: those are not the operator's.
    return bits < 8 ? [] : [`${dotted(destination)}/${bits}`];
  });
}

/** The first address of a network that a machine can have: of `172.17.0.0/16`, `172.17.0.1`. */
function firstOf(network: string): string {
  const bytes = (network.split('/')[0] ?? '').split('.').map(Number);
  return [...bytes.slice(0, 3), (bytes[3] ?? 0) + 1].join('.');
}

function dotted(hex: string): string {
  const bytes = Buffer.from(hex, 'hex');
  return [...bytes.toReversed()].join('.');
}

/** Where the stub of systemd-resolved says whom it asks. The engine goes by it in the same case. */
const BEHIND_STUB = '/run/systemd/resolve/resolv.conf';

/** Whom containers ask for names, of IPv4; none of the loopback. */
async function resolvers(): Promise<string[]> {
  const all = await nameservers('/etc/resolv.conf');
  const used = all.length === 1 && all[0] === '127.0.0.53' ? await nameservers(BEHIND_STUB) : all;
  return used.filter((address) => isIPv4(address) && !address.startsWith('127.'));
}

async function nameservers(file: string): Promise<string[]> {
  const text = await readFile(file, 'utf8').catch((error) => {
    if (error.code === 'ENOENT') return '';
    throw error;
  });
  return [...text.matchAll(/^[ \t]*nameserver[ \t]+(\S+)/gm)].map(([, address = '']) => address);
}
