/**
 * The process that speaks SSH with strangers, by the library `ssh2`. It has no secret but the host keys, no database and no
 * repository: whose a key is it asks the server, and the server runs what clients ask for (`gateway.ts`). When the server
 * is gone it ends.
 */
import { type AddressInfo, BlockList, createServer, isIPv6, type Socket } from 'node:net';
import ssh2, { type Connection } from 'ssh2';
import { serveConnection } from './connection.ts';
import type { FromFront, FromServer, FrontSettings } from './protocol.ts';

/**
 * Without what is weak (SHA-1, CBC), what costs more than it gives (groups of Diffie-Hellman), and compression, which
 * makes kilobytes into gigabytes. ChaCha20 with Poly1305 is left out, because clients prefer it and the library computes
 * it in WebAssembly with two ciphers a packet. The keys of clients are verified by ourselves.
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
/** Addresses whose failures are counted; beyond them all are counted anew. */
const MAX_ADDRESSES = 100_000;

function send(message: FromFront): void {
  // Nobody is there any more to be told.
  if (process.connected) process.send?.(message, () => {});
}

process.once('message', (settings: FrontSettings) => start(settings));
process.on('disconnect', () => process.exit());
// A terminal's Ctrl+C is for the server, which then ends this.
process.on('SIGINT', () => {});

function start({ host, port, hostKeys, gateway, limits, proxies }: FrontSettings): void {
  const shared = toBlockList(proxies);
  const server = new ssh2.Server({
    hostKeys: [...hostKeys],
    ident: 'Loam',
    algorithms: ALGORITHMS as never,
    keepaliveInterval: limits.keepaliveMs,
  } as ConstructorParameters<typeof ssh2.Server>[0]);
  const waiting = new Map<Socket, string>();
  /** By whom; null: no key was shown yet. */
  const connected = new Map<Socket, string | null>();
  let failures = new Map<string, number>();
  let refused = 0;
  let isOpen = false;
  let isClosing = false;
  const early: Socket[] = [];

  const report = () => {
    const counts = { connections: connected.size, waiting: waiting.size, refused };
    send({ kind: 'counts', counts });
  };
  setInterval(() => {
    failures = new Map();
    report();
  }, MINUTE_MS).unref();

  function take(socket: Socket): void {
    const address = addressOf(socket);
    // Without an address it has left already.
    if (socket.destroyed || !address) return void socket.destroy();
    const isShared = shared.check(address, isIPv6(address) ? 'ipv6' : 'ipv4');
    const network = networkOf(address);
    const ofAddress = [...waiting.values()].filter((one) => one === network).length;
    const isTooMuch =
      connected.size >= limits.connections ||
      waiting.size >= limits.waiting ||
      (!isShared && ofAddress >= limits.waitingOfAddress) ||
      (!isShared && (failures.get(network) ?? 0) >= limits.failuresOfAddress);
    if (isTooMuch || isClosing) {
      refused++;
      return void socket.destroy();
    }
    waiting.set(socket, network);
    connected.set(socket, null);
    socket.setNoDelay(true);
    const late = setTimeout(() => socket.destroy(), limits.loginMs);
    socket.once('close', () => {
      clearTimeout(late);
      connected.delete(socket);
      if (!waiting.delete(socket)) return;
      if (failures.size >= MAX_ADDRESSES) failures = new Map();
      failures.set(network, (failures.get(network) ?? 0) + 1);
    });
    const owner = {
      gateway,
      limits,
      get isClosing() {
        return isClosing;
      },
      admit(userId: string) {
        const ofUser = [...connected.values()].filter((one) => one === userId).length;
        if (ofUser >= limits.connectionsOfUser) return false;
        clearTimeout(late);
        waiting.delete(socket);
        connected.set(socket, userId);
        return true;
      },
      log(level: 'debug' | 'info' | 'warn', fields: object, text: string) {
        send({ kind: 'log', level, fields, text });
      },
    };
    begin(socket, (client) => serveConnection(client, { socket, address, owner }));
  }

  /** The library tells of a client when its first line was read; of several at once by the socket alone. */
  const beginning = new Map<string, (client: Connection) => void>();
  function begin(socket: Socket, serve: (client: Connection) => void): void {
    const key = `${socket.remoteAddress} ${socket.remotePort}`;
    beginning.set(key, serve);
    socket.once('close', () => beginning.delete(key));
    server.injectSocket(socket);
  }
  server.on('connection', (client, { ip, port }) => {
    const serve = beginning.get(`${ip} ${port}`);
    beginning.delete(`${ip} ${port}`);
    if (serve) serve(client);
    else client.end();
  });

  const listener = createServer((socket) => {
    // One that leaves before it is taken.
    socket.on('error', () => {});
    if (isOpen) take(socket);
    else if (early.length < limits.waiting) early.push(socket);
    else socket.destroy();
  });
  // Also later: where no descriptor is free for a connection.
  listener.on('error', ({ code, message }: NodeJS.ErrnoException) => {
    send({ kind: 'failed', code, message });
  });
  listener.listen(port, host, () => {
    send({ kind: 'listening', port: (listener.address() as AddressInfo).port });
  });
  process.on('message', ({ kind }: FromServer) => {
    if (kind === 'open') {
      isOpen = true;
      for (const socket of early.splice(0)) take(socket);
    } else if (kind === 'close') {
      isClosing = true;
      listener.close();
      for (const socket of waiting.keys()) socket.destroy();
    }
  });
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

/** Of IPv6 the first 64 bits count, because one customer has all the rest. */
function networkOf(address: string): string {
  if (!address.includes(':')) return address;
  const [head = ''] = address.split('::');
  return head.split(':').slice(0, 4).join(':');
}
