/**
 * One connection of a client: it shows a key, and then has commands run by the server. All else that SSH can do (terminals,
 * forwarding, sftp, environment variables) is refused by never being listened for, and by the library then.
 *
 * The library trusts its client with memory: it neither looks whether what it has sent was taken, nor whether more comes
 * than it has room for. Both are looked for here, and such a connection is ended.
 */
import { connect, type Socket } from 'node:net';
import type { AuthContext, Connection, PublicKeyAuthContext, ServerChannel, Session } from 'ssh2';
import { fingerprintOf, isSignedBy, readWireKey } from '../../crypto/ssh-keys.ts';
import {
  type Exit,
  FrameReader,
  frame,
  jsonFrame,
  type KeyAnswer,
  type KeyQuestion,
  type Opening,
  writeBytes,
} from '../frames.ts';
import type { SshLimits } from './protocol.ts';

const USER = 'git';
/** Before a key was shown: the exchange of keys, and some offers of keys of up to 2 KB. */
const MAX_LOGIN_BYTES = 128 * 1024;
/** What was sent and not taken. Of a channel the window bounds it, which a client may make as large as it likes. */
const MAX_UNSENT = 8 * 2 ** 20;
/** More than this, and what is made for a client waits until it takes some. */
const FULL = 2 ** 20;
/** What may have come and not been taken by the server; the window is 2 MiB. */
const MAX_UNREAD = 4 * 2 ** 20;
const ANSWER_MS = 10_000;

export type Owner = {
  gateway: string;
  limits: SshLimits;
  /** The connection has shown a key. @returns false: there are too many of it */
  admit(keyId: string): boolean;
  /** A key was not accepted. */
  log(level: 'debug' | 'info' | 'warn', fields: object, text: string): void;
  /** No new commands are taken. */
  readonly isClosing: boolean;
};

/** Serves a client whose first line was read. `over` is called once, when it is gone. */
export function serveConnection(
  client: Connection,
  { socket, address, owner }: { socket: Socket; address: string; owner: Owner },
): void {
  const { limits } = owner;
  const channels = new Set<ServerChannel>();
  let known: NonNullable<KeyAnswer> & { fingerprint: string } = {
    id: '',
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
    if (channels.size === 0)
      idle = setTimeout(() => client.end(), owner.isClosing ? 0 : limits.idleMs);
  };

  socket.on('data', () => {
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
    if (channels.size >= limits.commands || owner.isClosing) return reject();
    serveSession(accept());
  });
  socket.once('close', () => {
    clearTimeout(idle);
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
    const wire = wireKeyOf(key.data);
    if (!wire) return auth.reject(['publickey']);
    const fingerprint = fingerprintOf(key.data);
    const found = await ask(owner.gateway, { fingerprint });
    if (socket.destroyed) return;
    if (!found) {
      owner.log('debug', { address, fingerprint }, 'a key that nobody has was offered');
      return auth.reject(['publickey']);
    }
    // Which keys are known is asked first, so that the client signs with one of them alone.
    if (!signature || !blob) return auth.accept();
    if (!isGood(() => isSignedBy(wire, { data: blob, signature, hash: hashAlgo }))) {
      owner.log('info', { address, fingerprint }, 'a signature was wrong');
      return auth.reject(['publickey']);
    }
    if (!owner.admit(found.id)) return refuse('too many connections with one key');
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
    session.on('env', (accept, reject, { key, val }: { key: string; val: string }) => {
      if (key !== 'GIT_PROTOCOL') return void reject?.();
      protocol = val.slice(0, 100);
      accept?.();
    });
    session.on('exec', (accept, _reject, { command }) => begin(accept(), command));
    session.on('shell', (accept) => begin(accept(), null));

    function begin(channel: ServerChannel | undefined, command: string | null): void {
      if (!channel) return;
      channels.add(channel);
      clearTimeout(idle);
      const done = () => {
        if (channels.delete(channel)) rest();
      };
      const opening = { credential: known.id, command, address, ...(protocol && { protocol }) };
      carry({ channel, socket, gateway: owner.gateway, opening }, done);
    }
  }
}

type Carried = { channel: ServerChannel; socket: Socket; gateway: string; opening: Opening };

/** Carries the streams of a command between the client and the server; `done` is called when both are through. */
function carry({ channel, socket, gateway, opening }: Carried, done: () => void): void {
  const server = connect(gateway);
  let isOver = false;
  let isFull = false;
  /** Both have to have room: the client's window, and the connection. */
  const hasRoom = () => !channel.writableNeedDrain && socket.writableLength < FULL;
  const end = (code: number) => {
    if (isOver) return;
    isOver = true;
    server.end();
    channel.exit(code);
    channel.end();
    done();
  };
  const reader = new FrameReader({
    bytes(kind, piece) {
      const to = kind === 'data' ? channel : channel.stderr;
      // The library writes each packet of 32 KB by itself.
      socket.cork();
      to.write(piece);
      socket.uncork();
      // Of what came with this piece more may follow before the pause.
      if (isFull || hasRoom()) return;
      isFull = true;
      server.pause();
      const goOn = () => {
        if (!hasRoom()) return;
        isFull = false;
        channel.off('drain', goOn);
        socket.off('drain', goOn);
        server.resume();
      };
      channel.on('drain', goOn);
      socket.on('drain', goOn);
    },
    json(kind, value) {
      if (kind === 'exit') end((value as Exit).code);
    },
  });
  server.write(jsonFrame('open', opening));
  channel.on('data', (chunk: Buffer) => {
    if (isOver || server.destroyed) return;
    if (!writeBytes(server, 'data', chunk)) channel.pause();
  });
  server.on('drain', () => channel.resume());
  channel.on('end', () => {
    if (!isOver && !server.destroyed)
      for (const part of frame('end', Buffer.alloc(0))) server.write(part);
  });
  channel.on('error', () => {});
  channel.stderr.on('error', () => {});
  channel.once('close', () => {
    isOver = true;
    server.destroy();
    done();
  });
  server.on('data', (chunk: Buffer) => {
    try {
      reader.take(chunk);
    } catch {
      server.destroy();
    }
  });
  server.on('error', () => {});
  server.once('close', () => {
    if (isOver) return;
    channel.stderr.write('loam: the server has broken off\n');
    end(1);
  });
}

/** @throws Error when the server does not answer */
function ask(gateway: string, question: KeyQuestion): Promise<KeyAnswer> {
  const { promise, resolve, reject } = Promise.withResolvers<KeyAnswer>();
  const socket = connect(gateway);
  const reader = new FrameReader({
    bytes: () => {},
    json: (_kind, value) => resolve(value as KeyAnswer),
  });
  socket.setTimeout(ANSWER_MS, () => socket.destroy(new Error('the server is silent')));
  socket.on('data', (chunk: Buffer) => reader.take(chunk));
  socket.on('error', reject);
  socket.once('close', () => reject(new Error('the server did not answer')));
  // Ended only after the answer: the other end takes an end for our leaving.
  socket.write(jsonFrame('key', question));
  return promise.finally(() => socket.destroy());
}

function wireKeyOf(bytes: Buffer | undefined) {
  try {
    return bytes && readWireKey(bytes);
  } catch {
    return undefined;
  }
}

function isGood(check: () => boolean): boolean {
  try {
    return check();
  } catch {
    return false;
  }
}
