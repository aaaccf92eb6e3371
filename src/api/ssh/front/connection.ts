/**
 * One client connection: authenticates it by a key, and passes its commands to the server. With the user name `git`, these are
 * commands of git; with `namespace/job`, a shell or command in a running job, with terminals, some variables, sftp and
 * connections to its ports. All other features of SSH (reverse forwarding, agents, X11) are refused by ssh2, because no listener
 * accepts them.
 *
 * ssh2 limits neither the output that a client has not read nor the input that the server has not read. This file
 * checks both, and closes connections that exceed the limits.
 */
import { EventEmitter } from 'node:events';
import { connect, type Socket } from 'node:net';
import type {
  AuthContext,
  Connection,
  PseudoTtyInfo,
  PublicKeyAuthContext,
  ServerChannel,
  Session,
  TcpipRequestInfo,
} from 'ssh2';
import { fingerprintOf, isSignedBy, readWireKey } from '../../../platform/crypto/ssh-keys.ts';
import { encodeJsonFrame, FrameReader, type TerminalSize } from '../../../platform/frames.ts';
import type { JobShell, KeyLookup, KeyOwner } from '../requests.ts';
import type { SshLimits } from './protocol.ts';
import { CommandRelay } from './relay.ts';

const USER = 'git';
/** `namespace/job`, in which a shell is wanted. The names are checked by the server. */
const JOB_USER = /^([\w.-]{1,100})\/([\w.-]{1,200})$/;
/** Variables that clients may set in a job, as servers of OpenSSH usually accept them. */
const ACCEPTED_VARIABLES = /^(LANG|LC_\w{1,30}|COLORTERM|NO_COLOR)$/;
const MAX_VARIABLES = 32;
const MAX_VARIABLE_LENGTH = 200;
const MAX_TERMINAL = 1_000;
/** The hosts that clients name for ports of the job itself. */
const LOOPBACK = new Set(['localhost', '127.0.0.1', '::1']);
/** Bytes before a key is accepted: the key exchange, and some offered keys of up to 2 KB. */
const MAX_LOGIN_BYTES = 128 * 1024;
/**
 * Bytes sent but not read by the client. A client can set the channel window to any size, so the window is no limit.
 */
const MAX_UNSENT_BYTES = 8 * 2 ** 20;
/** Bytes received but not read by the server. The window is 2 MiB. */
const MAX_UNREAD_BYTES = 4 * 2 ** 20;
/** Bytes of data that a client must accept per packet. All known clients accept more. */
const MIN_PACKET_BYTES = 1_024;
/** Time limit for a key lookup. */
const LOOKUP_MS = 10_000;

export type ConnectionHost = {
  /** Path of the gateway's Unix socket. */
  gatewayPath: string;
  limits: SshLimits;
  /** Called when a key of the user was verified. @returns false if the user has too many connections */
  admit(userId: string): boolean;
  log(level: 'debug' | 'info' | 'warn', fields: object, text: string): void;
  /** Whether new commands are refused. */
  readonly isDraining: boolean;
};

/** The owner and the fingerprint of the verified key. */
type AuthenticatedUser = NonNullable<KeyOwner> & { fingerprint: string };

/** Serves a client until it disconnects. ssh2 has read the client's first line. */
export function serveConnection(
  client: Connection,
  { socket, address, host }: { socket: Socket; address: string; host: ConnectionHost },
): void {
  new ClientConnection(client, socket, address, host).serve();
}

class ClientConnection {
  readonly #client: Connection;
  readonly #socket: Socket;
  readonly #address: string;
  readonly #host: ConnectionHost;
  /** Sessions that the client has not closed, or whose command is running. */
  readonly #sessions = new Set<Session>();
  /** Channels of the running commands. */
  readonly #channels = new Set<ServerChannel>();
  /** Undefined until a signature is verified. */
  #user: AuthenticatedUser | undefined;
  /** The job that the user name names. */
  #job: { namespace: string; name: string } | undefined;
  /** Connections to ports of the job, also those that are not open yet. */
  readonly #ports = new Set<CommandRelay>();
  /** Whether a port was reached, so that the user may open sessions in the job. */
  #hasReachedPort = false;
  #isAuthenticated = false;
  #offeredKeys = 0;
  #idleTimer: NodeJS.Timeout | undefined;

  constructor(client: Connection, socket: Socket, address: string, host: ConnectionHost) {
    this.#client = client;
    this.#socket = socket;
    this.#address = address;
    this.#host = host;
  }

  serve(): void {
    const socket = this.#socket;
    const address = this.#address;
    const { limits, log } = this.#host;
    // ssh2 writes the parts of a packet one by one. Corking sends all replies to a chunk at once.
    socket.prependListener('data', () => socket.cork());
    socket.on('data', () => {
      socket.uncork();
      this.#checkLimits();
    });
    this.#client.on('error', (error) => {
      log('debug', { address, reason: error.message }, 'an SSH connection failed');
    });
    this.#client.on('authentication', (auth) => {
      const [, namespace, name] = JOB_USER.exec(auth.username) ?? [];
      const isKnown = auth.username === USER || name !== undefined;
      if (!isKnown || auth.method !== 'publickey') return this.#offerPublicKey(auth);
      this.#job = namespace && name ? { namespace, name } : undefined;
      if (++this.#offeredKeys > limits.offeredKeys)
        return this.#refuse('too many keys were offered');
      this.#authenticate(auth).catch((error) => {
        log('warn', { address, reason: error.message }, 'a key could not be looked up');
        this.#client.end();
      });
    });
    this.#client.once('ready', () => {
      this.#isAuthenticated = true;
      this.#startIdleTimer();
    });
    this.#client.on('session', (accept, reject) => {
      if (this.#sessions.size >= limits.sessions || this.#host.isDraining) return reject();
      this.#serveSession(accept());
    });
    this.#client.on('tcpip', (accept, reject, wanted) => this.#servePort(accept, reject, wanted));
    socket.once('close', () => {
      clearTimeout(this.#idleTimer);
      for (const port of this.#ports) port.disconnect();
      for (const session of this.#sessions) session.emit('close');
      for (const channel of this.#channels) channel.emit('close');
    });
  }

  #checkLimits(): void {
    if (!this.#isAuthenticated && this.#socket.bytesRead > MAX_LOGIN_BYTES)
      this.#refuse('a client sent too many bytes before a key was accepted');
    else if (this.#socket.writableLength > MAX_UNSENT_BYTES)
      this.#refuse('a client does not read its data');
    else
      for (const channel of this.#channels)
        if (channel.readableLength > MAX_UNREAD_BYTES)
          this.#refuse('a client sent more than the channel window allows');
  }

  #refuse(why: string): void {
    const credential = this.#isAuthenticated && { credential: this.#user?.id };
    this.#host.log('info', { address: this.#address, ...credential }, why);
    this.#socket.destroy();
  }

  #startIdleTimer(): void {
    clearTimeout(this.#idleTimer);
    const { idleMs, newJobIdleMs, jobIdleMs } = this.#host.limits;
    const jobMs = this.#hasReachedPort ? jobIdleMs : newJobIdleMs;
    const ms = this.#host.isDraining ? 0 : this.#job ? jobMs : idleMs;
    if (this.#channels.size === 0 && !this.#socket.destroyed)
      this.#idleTimer = setTimeout(() => this.#client.end(), ms);
  }

  /**
   * Most clients first ask which methods are supported, with the method `none`, which does not count as an offered key.
   */
  #offerPublicKey(auth: AuthContext): void {
    const isOffer = auth.method !== 'none';
    if (isOffer && ++this.#offeredKeys > this.#host.limits.offeredKeys)
      this.#refuse('too many login attempts');
    else auth.reject(['publickey']);
  }

  async #authenticate(auth: PublicKeyAuthContext): Promise<void> {
    const { log } = this.#host;
    const address = this.#address;
    const { signature, blob, key, hashAlgo } = auth as PublicKeyAuthContext & { hashAlgo?: string };
    const wire = parseWireKey(key.data);
    if (!wire) return auth.reject(['publickey']);
    const fingerprint = fingerprintOf(key.data);
    const found = await findKeyOwner(this.#host.gatewayPath, { fingerprint });
    if (this.#socket.destroyed) return;
    if (!found) {
      log('debug', { address, fingerprint }, 'an unknown key was offered');
      return auth.reject(['publickey']);
    }
    // A request without a signature only asks whether the key is known.
    if (!signature || !blob) return auth.accept();
    if (!returnsTrue(() => isSignedBy(wire, { data: blob, signature, hash: hashAlgo }))) {
      log('info', { address, fingerprint }, 'a signature was wrong');
      return auth.reject(['publickey']);
    }
    if (!this.#host.admit(found.userId)) return this.#refuse('a user has too many connections');
    this.#user = { ...found, fingerprint };
    log('debug', { address, fingerprint, credential: found.id, user: found.name }, 'logged in');
    auth.accept();
  }

  #serveSession(session: Session): void {
    const { limits } = this.#host;
    let protocol: string | undefined;
    let channel: ServerChannel | undefined;
    let isClosed = false;
    this.#sessions.add(session);
    const release = () => {
      // ssh2 keeps a session without a command as long as its connection, so such a session stays counted.
      if (isClosed && channel && !this.#channels.has(channel)) this.#sessions.delete(session);
    };
    const commandTimer = setTimeout(
      () => this.#refuse('a session has no command'),
      limits.commandMs,
    );
    session.once('close', () => {
      clearTimeout(commandTimer);
      isClosed = true;
      release();
    });
    const job = this.#job;
    const shell: JobShell | undefined = job && { ...job, env: {}, terminal: null };
    const resizes = new EventEmitter<{ resize: [TerminalSize] }>();
    session.on('env', (accept, reject, { key, val }: { key: string; val: string }) => {
      if (shell && ACCEPTED_VARIABLES.test(key) && Object.keys(shell.env).length < MAX_VARIABLES)
        shell.env[key] = val.slice(0, MAX_VARIABLE_LENGTH);
      else if (key === 'GIT_PROTOCOL') protocol = val.slice(0, 100);
      else return void reject?.();
      accept?.();
    });
    if (shell) {
      session.on('pty', (accept, _reject, { term, ...size }: PseudoTtyInfo & { term?: string }) => {
        shell.terminal = toSize(size);
        if (term) shell.env.TERM = term.slice(0, MAX_VARIABLE_LENGTH);
        accept?.();
      });
      session.on('window-change', (accept, _reject, size) => {
        resizes.emit('resize', toSize(size));
        accept?.();
      });
    }
    const run = (
      accept: () => ServerChannel | undefined,
      reject: (() => void) | undefined,
      command: string | null,
    ): void => {
      if (this.#host.isDraining) return void reject?.();
      const accepted = accept();
      // A session has one command: ssh2 returns nothing for a second one.
      if (!accepted) return;
      // ssh2 splits output into packets of this size, endlessly if it is 0.
      const { packetSize } = accepted.outgoing as { packetSize: number };
      if (packetSize < MIN_PACKET_BYTES)
        return void this.#refuse('a client accepts only packets that are too small');
      channel = accepted;
      clearTimeout(commandTimer);
      this.#runCommand(accepted, { command, protocol, shell, resizes }, release);
    };
    session.on('exec', (accept, reject, { command }) => run(accept, reject, command));
    session.on('shell', (accept, reject) => run(accept, reject, null));
    if (shell)
      session.on('subsystem', (accept, reject, { name }) => {
        shell.subsystem = name.slice(0, MAX_VARIABLE_LENGTH);
        run(accept, reject, null);
      });
  }

  #runCommand(
    channel: ServerChannel,
    {
      command,
      protocol,
      shell,
      resizes,
    }: {
      command: string | null;
      protocol: string | undefined;
      shell: JobShell | undefined;
      resizes: EventEmitter<{ resize: [TerminalSize] }>;
    },
    release: () => void,
  ): void {
    this.#channels.add(channel);
    clearTimeout(this.#idleTimer);
    const request = {
      ...this.#caller(),
      command,
      ...(protocol && { protocol }),
      ...(shell && { shell }),
    };
    new CommandRelay({ ...this.#relayed(), channel, request, resizes }, () => {
      if (!this.#channels.delete(channel)) return;
      release();
      this.#startIdleTimer();
    }).start();
  }

  /** Connects to a port of the job's loopback interface. There is no other host that clients could reach. */
  #servePort(
    accept: () => ServerChannel | undefined,
    reject: () => void,
    { destIP, destPort: port }: TcpipRequestInfo,
  ): void {
    const job = this.#job;
    const isAllowed = LOOPBACK.has(destIP) && this.#ports.size < this.#host.limits.ports;
    if (!job || !isAllowed || this.#host.isDraining) {
      reject();
      return;
    }
    let opened: ServerChannel | undefined;
    const channel = {
      accept: () => {
        opened = accept();
        if (opened) this.#channels.add(opened);
        this.#hasReachedPort = true;
        clearTimeout(this.#idleTimer);
        return opened;
      },
      reject,
    };
    const shell = { ...job, port, env: {}, terminal: null };
    const request = { ...this.#caller(), command: null, shell };
    const relay = new CommandRelay({ ...this.#relayed(), channel, request }, () => {
      this.#ports.delete(relay);
      if (opened && this.#channels.delete(opened)) this.#startIdleTimer();
    });
    this.#ports.add(relay);
    relay.start();
  }

  #caller() {
    return { credential: this.#user?.id ?? '', address: this.#address };
  }

  #relayed() {
    return {
      clientSocket: this.#socket,
      gatewayPath: this.#host.gatewayPath,
      stalledMs: this.#host.limits.stalledMs,
      onStalled: () => this.#refuse('a client has read nothing for too long'),
      onInvalidFrame: ({ message: reason }: Error) =>
        this.#host.log(
          'warn',
          { address: this.#address, reason },
          'the server sent an invalid frame',
        ),
    };
  }
}

/** @throws Error if the server does not answer */
function findKeyOwner(gatewayPath: string, lookup: KeyLookup): Promise<KeyOwner> {
  const { promise, resolve, reject } = Promise.withResolvers<KeyOwner>();
  const socket = connect(gatewayPath);
  const reader = new FrameReader({
    bytes: () => {},
    json: (_kind, value) => resolve(value as KeyOwner),
  });
  socket.setTimeout(LOOKUP_MS, () =>
    socket.destroy(new Error('The server has not answered in time')),
  );
  socket.on('data', (chunk: Buffer) => reader.push(chunk));
  socket.on('error', reject);
  socket.once('close', () =>
    reject(new Error('The server closed the connection without an answer')),
  );
  // Not ended before the answer, because the server treats an end as a disconnect.
  socket.write(encodeJsonFrame('keyLookup', lookup));
  return promise.finally(() => socket.destroy());
}

/** Within the limits of programs that draw on terminals. */
function toSize({ cols, rows }: { cols: number; rows: number }): TerminalSize {
  const bound = (size: number, instead: number) => Math.min(size || instead, MAX_TERMINAL);
  return { columns: bound(cols, 80), rows: bound(rows, 24) };
}

function parseWireKey(bytes: Buffer | undefined) {
  try {
    return bytes && readWireKey(bytes);
  } catch {
    return undefined;
  }
}

function returnsTrue(check: () => boolean): boolean {
  try {
    return check();
  } catch {
    return false;
  }
}
