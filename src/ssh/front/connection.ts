/**
 * One connection of a client: it shows a key, and then has commands run by the server. All else that SSH can do (terminals,
 * forwarding, sftp, environment variables) is refused by never being listened for, and by the library then.
 *
 * The library trusts its client with memory: it neither looks whether what it has sent was taken, nor whether more comes
 * than it has room for. Both are looked for here, and such a connection is ended.
 */
import { connect, type Socket } from 'node:net';
import type { AuthContext, Connection, PublicKeyAuthContext, ServerChannel, Session } from 'ssh2';
import { fingerprintOf, isSignedBy, readWireKey } from '../../platform/crypto/ssh-keys.ts';
import { FrameReader, encodeJsonFrame, type KeyOwner, type KeyLookup } from '../frames.ts';
import { relayCommand } from './relay.ts';
import type { SshLimits } from './protocol.ts';

const USER = 'git';
/** Before a key was shown: the exchange of keys, and some offers of keys of up to 2 KB. */
const MAX_LOGIN_BYTES = 128 * 1024;
/** What was sent and not taken. Of a channel the window bounds it, which a client may make as large as it likes. */
const MAX_UNSENT = 8 * 2 ** 20;
/** What may have come and not been taken by the server; the window is 2 MiB. */
const MAX_UNREAD = 4 * 2 ** 20;
/** Bytes of data that a client must take in one packet; all known clients take more. */
const MIN_PACKET = 1_024;
const LOOKUP_MS = 10_000;

export type ConnectionHost = {
  gateway: string;
  limits: SshLimits;
  /** The connection has shown a key of that user. @returns false: there are too many of the user */
  admit(userId: string): boolean;
  /** A key was not accepted. */
  log(level: 'debug' | 'info' | 'warn', fields: object, text: string): void;
  /** No new commands are taken. */
  readonly isClosing: boolean;
};

/** Serves a client whose first line was read, until it is gone. */
export function serveConnection(
  client: Connection,
  { socket, address, owner }: { socket: Socket; address: string; owner: ConnectionHost },
): void {
  const { limits } = owner;
  /** Those that the client has not closed, and those whose command still runs. */
  const sessions = new Set<Session>();
  /** Of the commands that run. */
  const channels = new Set<ServerChannel>();
  let known: NonNullable<KeyOwner> & { fingerprint: string } = {
    id: '',
    userId: '',
    name: '',
    fingerprint: '',
  };
  let isKnown = false;
  let attempts = 0;
  const refuse = (why: string) => {
    owner.log('info', { address, ...(isKnown && { credential: known.id }) }, why);
    socket.destroy();
  };
  let idle: NodeJS.Timeout | undefined;
  const rest = () => {
    clearTimeout(idle);
    if (channels.size === 0 && !socket.destroyed)
      idle = setTimeout(() => client.end(), owner.isClosing ? 0 : limits.idleMs);
  };

  // The library writes each part of a packet by itself; what it answers to what came is sent in one go.
  socket.prependListener('data', () => socket.cork());
  socket.on('data', () => {
    socket.uncork();
    if (!isKnown && socket.bytesRead > MAX_LOGIN_BYTES) refuse('too much came before a key');
    else if (socket.writableLength > MAX_UNSENT) refuse('a client takes nothing');
    else
      for (const one of channels) if (one.readableLength > MAX_UNREAD) refuse('more came than may');
  });
  client.on('error', (error) => {
    owner.log('debug', { address, reason: error.message }, 'a connection over SSH failed');
  });
  client.on('authentication', (auth) => {
    if (auth.username !== USER || auth.method !== 'publickey') return offer(auth);
    if (++attempts > limits.attempts) return refuse('too many keys were offered');
    decide(auth).catch((error) => {
      owner.log('warn', { address, reason: error.message }, 'a key could not be looked up');
      client.end();
    });
  });
  client.once('ready', () => {
    isKnown = true;
    rest();
  });
  client.on('session', (accept, reject) => {
    if (sessions.size >= limits.sessions || owner.isClosing) return reject();
    serveSession(accept());
  });
  socket.once('close', () => {
    clearTimeout(idle);
    for (const session of sessions) session.emit('close');
    for (const channel of channels) channel.emit('close');
  });

  /** The first question of most clients is which methods there are. */
  function offer(auth: AuthContext): void {
    const isAttempt = auth.method !== 'none';
    if (isAttempt && ++attempts > limits.attempts) refuse('too many attempts to log in');
    else auth.reject(['publickey']);
  }

  async function decide(auth: PublicKeyAuthContext): Promise<void> {
    const { signature, blob, key, hashAlgo } = auth as PublicKeyAuthContext & { hashAlgo?: string };
    const wire = parseWireKey(key.data);
    if (!wire) return auth.reject(['publickey']);
    const fingerprint = fingerprintOf(key.data);
    const found = await findKeyOwner(owner.gateway, { fingerprint });
    if (socket.destroyed) return;
    if (!found) {
      owner.log('debug', { address, fingerprint }, 'a key that nobody has was offered');
      return auth.reject(['publickey']);
    }
    // Which keys are known is asked first, so that the client signs with one of them alone.
    if (!signature || !blob) return auth.accept();
    if (!returnsTrue(() => isSignedBy(wire, { data: blob, signature, hash: hashAlgo }))) {
      owner.log('info', { address, fingerprint }, 'a signature was wrong');
      return auth.reject(['publickey']);
    }
    if (!owner.admit(found.userId)) return refuse('too many connections of one user');
    known = { ...found, fingerprint };
    owner.log(
      'debug',
      { address, fingerprint, credential: found.id, user: found.name },
      'logged in',
    );
    auth.accept();
  }

  function serveSession(session: Session): void {
    let protocol: string | undefined;
    let channel: ServerChannel | undefined;
    let isClosed = false;
    sessions.add(session);
    const release = () => {
      // The library keeps a session without a command as long as its connection, so such a session stays counted.
      if (isClosed && channel && !channels.has(channel)) sessions.delete(session);
    };
    const late = setTimeout(() => refuse('a session has no command'), limits.commandMs);
    session.once('close', () => {
      clearTimeout(late);
      isClosed = true;
      release();
    });
    session.on('env', (accept, reject, { key, val }: { key: string; val: string }) => {
      if (key !== 'GIT_PROTOCOL') return void reject?.();
      protocol = val.slice(0, 100);
      accept?.();
    });
    session.on('exec', (accept, reject, { command }) => begin(accept, reject, command));
    session.on('shell', (accept, reject) => begin(accept, reject, null));

    function begin(
      accept: () => ServerChannel | undefined,
      reject: (() => void) | undefined,
      command: string | null,
    ): void {
      if (owner.isClosing) return void reject?.();
      const own = accept();
      // A session has one command.
      if (!own) return;
      // The library would split output into packets of that size, for ever when it is 0.
      const { packetSize } = own.outgoing as { packetSize: number };
      if (packetSize < MIN_PACKET) return void refuse('the packets of a client are too small');
      channel = own;
      channels.add(own);
      clearTimeout(late);
      clearTimeout(idle);
      const done = () => {
        if (!channels.delete(own)) return;
        release();
        rest();
      };
      const opening = { credential: known.id, command, address, ...(protocol && { protocol }) };
      const stalled = () => refuse('a client has taken nothing for too long');
      const { stalledMs } = limits;
      const streams = { channel: own, socket, gateway: owner.gateway };
      relayCommand({ ...streams, opening, stalledMs, stalled }, done);
    }
  }
}

/** @throws Error when the server does not answer */
function findKeyOwner(gateway: string, question: KeyLookup): Promise<KeyOwner> {
  const { promise, resolve, reject } = Promise.withResolvers<KeyOwner>();
  const socket = connect(gateway);
  const reader = new FrameReader({
    bytes: () => {},
    json: (_kind, value) => resolve(value as KeyOwner),
  });
  socket.setTimeout(LOOKUP_MS, () => socket.destroy(new Error('the server is silent')));
  socket.on('data', (chunk: Buffer) => reader.push(chunk));
  socket.on('error', reject);
  socket.once('close', () => reject(new Error('the server did not answer')));
  // Ended only after the answer: the other end takes an end for our leaving.
  socket.write(encodeJsonFrame('key', question));
  return promise.finally(() => socket.destroy());
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
