/**
 * The SSH front process, which speaks SSH with clients through the library `ssh2`. Its only secrets are the host keys,
 * and it has no access to the database or to repositories: the server looks up keys and runs commands (`../gateway.ts`).
 * It exits when the server is gone.
 */
import {
  type AddressInfo,
  BlockList,
  createServer,
  isIPv6,
  type Server,
  type Socket,
} from 'node:net';
import ssh2, { type Connection } from 'ssh2';
import { type ConnectionHost, serveConnection } from './connection.ts';
import type { FromFront, FromServer, FrontSettings } from './protocol.ts';

/**
 * Left out: weak algorithms (SHA-1, CBC), finite-field Diffie-Hellman, which is slow, and compression, which can expand
 * kilobytes to gigabytes. Also ChaCha20-Poly1305: clients prefer it, but ssh2 computes it in WebAssembly with two
 * ciphers per packet. Client keys are verified in `connection.ts`, not by ssh2.
 */
const ALGORITHMS = {
  kex: [
    'curve25519-sha256',
    'curve25519-sha256@libssh.org',
    'ecdh-sha2-nistp256',
    'ecdh-sha2-nistp384',
    'ecdh-sha2-nistp521',
  ],
  cipher: [
    'aes128-gcm@openssh.com',
    'aes256-gcm@openssh.com',
    'aes128-ctr',
    'aes192-ctr',
    'aes256-ctr',
  ],
  hmac: [
    'hmac-sha2-256-etm@openssh.com',
    'hmac-sha2-512-etm@openssh.com',
    'hmac-sha2-256',
    'hmac-sha2-512',
  ],
  serverHostKey: ['ssh-ed25519', 'ecdsa-sha2-nistp256'],
  compress: ['none'],
};
const MINUTE_MS = 60_000;
/** Networks with counted failures. Beyond this number, counting starts over. */
const MAX_NETWORKS = 100_000;

process.once('message', (settings: FrontSettings) => new FrontServer(settings).start());
process.on('disconnect', () => process.exit());
// A terminal sends Ctrl+C to the server and to this process. The server then ends this process.
process.on('SIGINT', () => {});

function send(message: FromFront): void {
  // The server may be gone already.
  if (process.connected) process.send?.(message, () => {});
}

class FrontServer {
  readonly #settings: FrontSettings;
  readonly #proxies: BlockList;
  readonly #ssh: InstanceType<typeof ssh2.Server>;
  readonly #listener: Server;
  /** Connections without an accepted key, and their networks. */
  readonly #unauthenticated = new Map<Socket, string>();
  /** All connections, and their users; null before a key is accepted. */
  readonly #connected = new Map<Socket, string | null>();
  /** Failed logins per network in the current minute. */
  #failures = new Map<string, number>();
  #refused = 0;
  #isServing = false;
  #isDraining = false;
  /** Connections that arrived before the server was ready to serve. */
  readonly #unserved: Socket[] = [];
  /** Callbacks for sockets whose first line ssh2 has not read yet, by address and port. */
  readonly #awaitingFirstLine = new Map<string, (client: Connection) => void>();

  constructor(settings: FrontSettings) {
    this.#settings = settings;
    this.#proxies = toBlockList(settings.proxies);
    this.#ssh = new ssh2.Server({
      hostKeys: [...settings.hostKeys],
      ident: 'Loam',
      algorithms: ALGORITHMS as never,
      keepaliveInterval: settings.limits.keepaliveMs,
    } as ConstructorParameters<typeof ssh2.Server>[0]);
    this.#listener = createServer((socket) => this.#receive(socket));
  }

  start(): void {
    const { host, port } = this.#settings;
    setInterval(() => {
      this.#failures = new Map();
      this.#reportCounts();
    }, MINUTE_MS).unref();
    this.#ssh.on('connection', (client, { ip, port }) => {
      const serve = this.#awaitingFirstLine.get(`${ip} ${port}`);
      this.#awaitingFirstLine.delete(`${ip} ${port}`);
      if (serve) serve(client);
      else client.end();
    });
    // Also emitted later, when no file descriptor is free for a connection.
    this.#listener.on('error', ({ code, message }: NodeJS.ErrnoException) => {
      send({ kind: 'failed', code, message });
    });
    this.#listener.listen(port, host, () => {
      send({ kind: 'listening', port: (this.#listener.address() as AddressInfo).port });
    });
    process.on('message', ({ kind }: FromServer) => {
      if (kind === 'serve') this.#serve();
      else if (kind === 'drain') this.#drain();
    });
  }

  #serve(): void {
    this.#isServing = true;
    for (const socket of this.#unserved.splice(0)) this.#accept(socket);
  }

  #drain(): void {
    this.#isDraining = true;
    this.#listener.close();
    for (const socket of this.#unauthenticated.keys()) socket.destroy();
  }

  #reportCounts(): void {
    const counts = {
      connections: this.#connected.size,
      unauthenticated: this.#unauthenticated.size,
      refused: this.#refused,
    };
    send({ kind: 'counts', counts });
  }

  #receive(socket: Socket): void {
    // A client can disconnect before its connection is accepted.
    socket.on('error', () => {});
    if (this.#isServing) this.#accept(socket);
    else if (this.#unserved.length < this.#settings.limits.unauthenticated)
      this.#unserved.push(socket);
    else socket.destroy();
  }

  #accept(socket: Socket): void {
    const { gatewayPath, limits } = this.#settings;
    const address = addressOf(socket);
    // A socket without an address has disconnected.
    if (socket.destroyed || !address) return void socket.destroy();
    const network = networkOf(address);
    if (this.#isDraining || this.#exceedsLimits(address, network)) {
      this.#refused++;
      return void socket.destroy();
    }
    this.#unauthenticated.set(socket, network);
    this.#connected.set(socket, null);
    socket.setNoDelay(true);
    const loginTimer = setTimeout(() => socket.destroy(), limits.loginMs);
    socket.once('close', () => {
      clearTimeout(loginTimer);
      this.#connected.delete(socket);
      if (this.#unauthenticated.delete(socket)) this.#countFailure(network);
    });
    const isDraining = () => this.#isDraining;
    const host: ConnectionHost = {
      gatewayPath,
      limits,
      get isDraining() {
        return isDraining();
      },
      admit: (userId) => {
        if (!this.#admit(socket, userId)) return false;
        clearTimeout(loginTimer);
        return true;
      },
      log: (level, fields, text) => send({ kind: 'log', level, fields, text }),
    };
    this.#startSsh(socket, (client) => serveConnection(client, { socket, address, host }));
  }

  #exceedsLimits(address: string, network: string): boolean {
    const { limits } = this.#settings;
    if (
      this.#connected.size >= limits.connections ||
      this.#unauthenticated.size >= limits.unauthenticated
    )
      return true;
    if (this.#proxies.check(address, isIPv6(address) ? 'ipv6' : 'ipv4')) return false;
    const ofNetwork = [...this.#unauthenticated.values()].filter((one) => one === network).length;
    const failures = this.#failures.get(network) ?? 0;
    return (
      ofNetwork >= limits.unauthenticatedPerAddress ||
      failures >= limits.failuresPerAddressPerMinute
    );
  }

  #countFailure(network: string): void {
    if (this.#failures.size >= MAX_NETWORKS) this.#failures = new Map();
    this.#failures.set(network, (this.#failures.get(network) ?? 0) + 1);
  }

  #admit(socket: Socket, userId: string): boolean {
    const ofUser = [...this.#connected.values()].filter((one) => one === userId).length;
    if (ofUser >= this.#settings.limits.connectionsPerUser) return false;
    this.#unauthenticated.delete(socket);
    this.#connected.set(socket, userId);
    return true;
  }

  /** ssh2 emits `connection` only after a client's first line, and identifies the client by address and port alone. */
  #startSsh(socket: Socket, serve: (client: Connection) => void): void {
    const key = `${socket.remoteAddress} ${socket.remotePort}`;
    this.#awaitingFirstLine.set(key, serve);
    socket.once('close', () => this.#awaitingFirstLine.delete(key));
    this.#ssh.injectSocket(socket);
  }
}

function toBlockList(networks: readonly string[]): BlockList {
  const list = new BlockList();
  for (const one of networks) {
    const [address = '', bits] = one.split('/');
    const family = isIPv6(address) ? 'ipv6' : 'ipv4';
    if (bits === undefined) list.addAddress(address, family);
    else list.addSubnet(address, Number(bits), family);
  }
  return list;
}

function addressOf({ remoteAddress = '' }: Socket): string {
  const [address = ''] = remoteAddress.replace(/^::ffff:/, '').split('%');
  return address;
}

/** An IPv6 network is the first 64 bits, because one customer has all addresses of it. */
function networkOf(address: string): string {
  if (!address.includes(':')) return address;
  const [head = ''] = address.split('::');
  return head.split(':').slice(0, 4).join(':');
}
