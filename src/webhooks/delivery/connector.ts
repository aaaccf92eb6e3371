/**
 * Connections to the endpoints of webhooks, to addresses that were checked and to no others.
 *
 * A name is looked up once for a connection, every address that it has is checked, and it is these addresses that
 * are dialled. So a name that leads elsewhere a moment later (DNS rebinding) leads us nowhere. The address that is
 * reached is checked once more, before a byte is sent. undici's own `lookup` option would not do: it is not called
 * for a URL that names an address.
 *
 * HTTP/1.1 alone: every receiver has it, and a connection carries one request at a time, so what becomes of one says
 * nothing about another.
 */

import { X509Certificate } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { connect as connectTcp, isIP, type Socket } from 'node:net';
import {
  connect as connectTls,
  createSecureContext,
  getCACertificates,
  type SecureContext,
  type TLSSocket,
} from 'node:tls';
import { LRUCache } from 'lru-cache';
import type { buildConnector, Dispatcher, Pool } from 'undici';
import { ConfigError } from '../../base/config/config.ts';
import { isResourceExhausted } from '../../platform/database/outage.ts';
import type { AddressGuard, Lookup } from './guard.ts';
import { NoAnswerError } from './outcomes.ts';

/** No attempt waits for longer. */
const CONNECT_MS = 15_000;
/**
 * Until the next address is tried. Node's 250 ms are too few for another continent: such an endpoint with an address of
 * IPv6 too would never be reached from a network that has none.
 */
const NEXT_ADDRESS_MS = 3_000;
/** Connections to the endpoint of a webhook: as many as there are attempts of it at once. */
export const MAX_CONNECTIONS = 8;
/**
 * Webhooks whose connections are kept: so at most 4,096 sockets are open, besides those of pools that have been
 * dropped and still work, which last as long as one attempt.
 */
const MAX_POOLS = 512;
/** Less than the 5 s after which Node's servers close idle connections; they are the most impatient. */
const IDLE_CONNECTION_MS = 4_000;
/** Then it is looked up again, so that an endpoint which moved is followed. */
const MAX_REQUESTS_PER_CONNECTION = 1_000;
const MAX_HEADER_BYTES = 16 * 1_024;
/**
 * Of all that comes as an answer to one message. It is more than an attempt reads of headers and body; what it bounds
 * is what undici reads and counts as neither: interim answers, extensions of chunks, trailers. An endpoint that sends
 * those as fast as it can would keep the process busy for 15 seconds.
 */
const MAX_ANSWER_BYTES = 256 * 1_024;

export type Connector = AsyncDisposable & {
  /** Where requests for `origin` go, of this webhook alone: webhooks share no connections, so none waits for another's. */
  to(webhookId: string, origin: string): Promise<Dispatcher>;
};

export type ConnectorOptions = {
  guard: AddressGuard;
  lookup: Lookup;
  /** In PEM, besides those that Node knows. */
  authorities: readonly string[];
  /** Until a connection is there, lookup and TLS included; unset: as long as an attempt may take. */
  timeoutMs?: number;
};

export function createConnector({
  guard,
  lookup,
  authorities,
  timeoutMs = CONNECT_MS,
}: ConnectorOptions): Connector {
  let context: SecureContext | undefined;
  // Not at the start, which it would make 50 ms longer.
  const getSecureContext = () => {
    context ??= createSecureContext({ ca: [...getCACertificates('default'), ...authorities] });
    return context;
  };
  const pools = new LRUCache<string, Pool>({
    max: MAX_POOLS,
    // What it has begun ends by itself.
    dispose: (pool) => void pool.close().catch(() => {}),
  });

  async function dial({ hostname, port }: buildConnector.Options): Promise<TLSSocket> {
    const signal = AbortSignal.timeout(timeoutMs);
    const addresses = await resolveAllowed(hostname, signal);
    const socket = await openTcp(hostname, Number(port || 443), addresses, signal);
    return startTls(socket, hostname, signal);
  }

  /** @throws Unanswered */
  async function resolveAllowed(host: string, signal: AbortSignal): Promise<string[]> {
    let addresses = [host];
    if (!isIP(host))
      addresses = await lookup(host, signal).catch((error) => {
        if (signal.aborted) throw new NoAnswerError('timeout', 'the lookup took too long', error);
        throw new NoAnswerError('dns_failed', `${host} could not be looked up`, error);
      });
    for (const address of addresses) demandAllowed(address);
    return addresses;
  }

  /** @throws Unanswered */
  function demandAllowed(address: string | undefined): void {
    const why = guard.whyNot(address ?? '');
    if (why) throw new NoAnswerError('refused_address', `the address of the endpoint ${why}`);
  }

  /** Connects to the first of the addresses that answers. @throws Unanswered; Error about this machine */
  async function openTcp(
    host: string,
    port: number,
    addresses: readonly string[],
    signal: AbortSignal,
  ): Promise<Socket> {
    const all = addresses.map((address) => ({ address, family: isIP(address) }));
    const [first = { address: '', family: 0 }] = all;
    const socket = connectTcp({
      host,
      port,
      noDelay: true,
      keepAlive: true,
      // Node tries one after the other, by itself; it gets them from here and asks nobody else.
      autoSelectFamily: true,
      autoSelectFamilyAttemptTimeout: NEXT_ADDRESS_MS,
      lookup: (_host, options, done) =>
        options.all ? done(null, all) : done(null, first.address, first.family),
    });
    await waitForSocket(socket, 'connect', signal, 'connect_failed');
    try {
      demandAllowed(socket.remoteAddress);
    } catch (error) {
      socket.destroy();
      throw error;
    }
    return socket;
  }

  /** @throws Unanswered */
  async function startTls(socket: Socket, host: string, signal: AbortSignal): Promise<TLSSocket> {
    // The dot of the root at the end of a name stands in no certificate.
    const name = host.replace(/\.$/, '');
    const secured = connectTls({
      socket,
      secureContext: getSecureContext(),
      host: name,
      ...(!isIP(name) && { servername: name }),
      ALPNProtocols: ['http/1.1'],
    });
    await waitForSocket(secured, 'secureConnect', signal, 'tls_failed');
    limitAnswers(secured);
    return secured;
  }

  const connect: buildConnector.connector = (options, callback) => {
    dial(options).then(
      (socket) => callback(null, socket),
      (error) => callback(error, null),
    );
  };

  return {
    async to(webhookId, origin) {
      // Its hundred modules take memory that a server without webhooks has no use for.
      const { Pool } = await import('undici');
      const key = `${webhookId} ${origin}`;
      const known = pools.get(key);
      if (known) return known;
      const pool = new Pool(origin, {
        connect,
        connections: MAX_CONNECTIONS,
        pipelining: 1,
        allowH2: false,
        keepAliveTimeout: IDLE_CONNECTION_MS,
        keepAliveMaxTimeout: IDLE_CONNECTION_MS,
        maxRequestsPerClient: MAX_REQUESTS_PER_CONNECTION,
        maxHeaderSize: MAX_HEADER_BYTES,
        // An attempt has a time for all of it.
        headersTimeout: 0,
        bodyTimeout: 0,
      });
      pools.set(key, pool);
      return pool;
    },
    async [Symbol.asyncDispose]() {
      const all = [...pools.values()];
      await Promise.all(all.map((pool) => pool.destroy()));
    },
  };
}

/** Ends the connection where an answer is too long. Answers begin where something was written since what came before. */
function limitAnswers(socket: TLSSocket): void {
  let written = socket.bytesWritten;
  let before = socket.bytesRead;
  let read = before;
  socket.on('readable', () => {
    if (socket.bytesWritten !== written) {
      written = socket.bytesWritten;
      before = read;
    }
    read = socket.bytesRead;
    if (read - before > MAX_ANSWER_BYTES)
      socket.destroy(new NoAnswerError('bad_answer', 'the answer is too long'));
  });
}

/** Waits for the event, and destroys the socket when it does not come. @throws Unanswered; Error about this machine */
async function waitForSocket(
  socket: Socket,
  event: 'connect' | 'secureConnect',
  signal: AbortSignal,
  outcome: 'connect_failed' | 'tls_failed',
): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const onAbort = () => reject(new NoAnswerError('timeout', 'the connection took too long'));
  const onClose = () => reject(new NoAnswerError(outcome, 'the connection was closed'));
  const onError = (error: Error) =>
    reject(isResourceExhausted(error) ? error : new NoAnswerError(outcome, error.message, error));
  socket.once(event, resolve).once('close', onClose).on('error', onError);
  signal.addEventListener('abort', onAbort);
  try {
    await promise;
  } catch (error) {
    // Its own listener stays, because a socket may have an error after it was destroyed.
    socket.destroy();
    throw error;
  } finally {
    signal.removeEventListener('abort', onAbort);
    socket.off(event, resolve).off('close', onClose);
  }
}

/**
 * Certificates in a file of PEM.
 * @throws ConfigError when it cannot be read or holds none
 */
export async function readAuthorities(file: string | undefined): Promise<string[]> {
  if (file === undefined) return [];
  const text = await readFile(file, 'utf8').catch((error) => {
    throw new ConfigError(`LOAM_WEBHOOK_CA: ${file} cannot be read: ${error.code}`);
  });
  const all = text.match(/-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----/g) ?? [];
  if (all.length === 0)
    throw new ConfigError(`LOAM_WEBHOOK_CA: ${file} holds no certificate in PEM`);
  for (const one of all)
    try {
      new X509Certificate(one);
    } catch {
      throw new ConfigError(`LOAM_WEBHOOK_CA: ${file} holds a certificate that cannot be read`);
    }
  return all;
}
