/**
 * Connections to webhook endpoints, only to checked addresses.
 *
 * A host name is resolved once per connection. All its addresses are checked, and the connection uses exactly these
 * addresses, so a name that resolves differently a moment later (DNS rebinding) has no effect. The connected address is
 * checked again before a byte is sent. undici's `lookup` option does not suffice: it is not called for IP addresses in URLs.
 *
 * Only HTTP/1.1: every receiver supports it, and a connection carries one request at a time, so a broken connection
 * affects one attempt only.
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
import { NoResponseError } from './outcomes.ts';

/** The same as the timeout of an attempt. */
const CONNECT_MS = 15_000;
/**
 * Time per address before the next one is tried. Node's 250 ms are too short for another continent: from a network
 * without IPv6, an endpoint there that also has an IPv6 address would never be reached.
 */
const NEXT_ADDRESS_MS = 3_000;
/** Connections per webhook: as many as its concurrent attempts. */
const MAX_CONNECTIONS = 8;
/**
 * Webhooks whose connections are kept. So there are at most 4,096 open sockets, beside the sockets of evicted pools, which
 * are closed after their running attempts.
 */
const MAX_POOLS = 512;
/** Less than the shortest common idle timeout of servers: Node's HTTP servers close idle connections after 5 s. */
const IDLE_CONNECTION_MS = 4_000;
/** Each new connection resolves the host name again, so that an endpoint that has moved is found. */
const MAX_REQUESTS_PER_CONNECTION = 1_000;
const MAX_HEADER_BYTES = 16 * 1_024;
/**
 * Limit of all bytes of one response. It is above the limits of headers and body together, and bounds data that undici reads
 * but does not count: interim responses, chunk extensions and trailers. An endpoint that sends such data at full speed would
 * keep the process busy for 15 seconds.
 */
const MAX_RESPONSE_BYTES = 256 * 1_024;

export type Connector = AsyncDisposable & {
  /** The dispatcher of this webhook for `origin`. Webhooks share no connections, so no webhook waits for another one. */
  getDispatcher(webhookId: string, origin: string): Promise<Dispatcher>;
};

export type ConnectorOptions = {
  guard: AddressGuard;
  lookup: Lookup;
  /** CA certificates in PEM, in addition to Node's. */
  authorities: readonly string[];
  /** Timeout for opening a connection, including DNS lookup and TLS; default: 15 seconds. */
  timeoutMs?: number;
};

export function createConnector({
  guard,
  lookup,
  authorities,
  timeoutMs = CONNECT_MS,
}: ConnectorOptions): Connector {
  let context: SecureContext | undefined;
  // Created on first use, because it takes 50 ms.
  const getSecureContext = () => {
    context ??= createSecureContext({ ca: [...getCACertificates('default'), ...authorities] });
    return context;
  };
  const pools = new LRUCache<string, Pool>({
    max: MAX_POOLS,
    // `close` waits for running requests.
    dispose: (pool) => void pool.close().catch(() => {}),
  });

  async function dial({ hostname, port }: buildConnector.Options): Promise<TLSSocket> {
    const signal = AbortSignal.timeout(timeoutMs);
    const addresses = await resolveAllowed(hostname, signal);
    const socket = await openTcp(hostname, Number(port || 443), addresses, signal);
    return startTls(socket, hostname, signal);
  }

  /** @throws NoResponseError */
  async function resolveAllowed(host: string, signal: AbortSignal): Promise<string[]> {
    let addresses = [host];
    if (!isIP(host))
      addresses = await lookup(host, signal).catch((error) => {
        if (signal.aborted) throw new NoResponseError('timeout', 'the lookup took too long', error);
        throw new NoResponseError('dns_failed', `${host} could not be looked up`, error);
      });
    for (const address of addresses) demandAllowed(address);
    return addresses;
  }

  /** @throws NoResponseError */
  function demandAllowed(address: string | undefined): void {
    const refusal = guard.findRefusal(address ?? '');
    if (refusal)
      throw new NoResponseError('refused_address', `the address of the endpoint ${refusal}`);
  }

  /** Connects to the first address that answers. @throws NoResponseError; Error if this machine is out of a resource */
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
      // Node tries the addresses in turn. The lookup below returns the checked addresses, so Node resolves nothing.
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

  /** @throws NoResponseError */
  async function startTls(socket: Socket, host: string, signal: AbortSignal): Promise<TLSSocket> {
    // Certificates do not contain the trailing dot of an absolute name.
    const name = host.replace(/\.$/, '');
    const secured = connectTls({
      socket,
      secureContext: getSecureContext(),
      host: name,
      ...(!isIP(name) && { servername: name }),
      ALPNProtocols: ['http/1.1'],
    });
    await waitForSocket(secured, 'secureConnect', signal, 'tls_failed');
    limitResponses(secured);
    return secured;
  }

  const connect: buildConnector.connector = (options, callback) => {
    dial(options).then(
      (socket) => callback(null, socket),
      (error) => callback(error, null),
    );
  };

  return {
    async getDispatcher(webhookId, origin) {
      // Imported on first use, because its hundred modules take memory, which servers without webhooks save.
      const { Pool } = await import('undici');
      const key = `${webhookId} ${origin}`;
      const existing = pools.get(key);
      if (existing) return existing;
      const pool = new Pool(origin, {
        connect,
        connections: MAX_CONNECTIONS,
        pipelining: 1,
        allowH2: false,
        keepAliveTimeout: IDLE_CONNECTION_MS,
        keepAliveMaxTimeout: IDLE_CONNECTION_MS,
        maxRequestsPerClient: MAX_REQUESTS_PER_CONNECTION,
        maxHeaderSize: MAX_HEADER_BYTES,
        // Disabled: the timeout of the attempt includes headers and body.
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

/** Destroys the connection if a response is too long. A response starts with the first read after a write. */
function limitResponses(socket: TLSSocket): void {
  let written = socket.bytesWritten;
  let before = socket.bytesRead;
  let read = before;
  socket.on('readable', () => {
    if (socket.bytesWritten !== written) {
      written = socket.bytesWritten;
      before = read;
    }
    read = socket.bytesRead;
    if (read - before > MAX_RESPONSE_BYTES)
      socket.destroy(new NoResponseError('bad_answer', 'the response is too long'));
  });
}

/** Waits for the event, and destroys the socket on failure. @throws NoResponseError; Error if this machine is out of a resource */
async function waitForSocket(
  socket: Socket,
  event: 'connect' | 'secureConnect',
  signal: AbortSignal,
  outcome: 'connect_failed' | 'tls_failed',
): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const onAbort = () => reject(new NoResponseError('timeout', 'the connection took too long'));
  const onClose = () => reject(new NoResponseError(outcome, 'the connection was closed'));
  const onError = (error: Error) =>
    reject(isResourceExhausted(error) ? error : new NoResponseError(outcome, error.message, error));
  socket.once(event, resolve).once('close', onClose).on('error', onError);
  signal.addEventListener('abort', onAbort);
  try {
    await promise;
  } catch (error) {
    // The error listener stays, because a socket may emit an error after it was destroyed.
    socket.destroy();
    throw error;
  } finally {
    signal.removeEventListener('abort', onAbort);
    socket.off(event, resolve).off('close', onClose);
  }
}

/**
 * Reads the certificates in a PEM file.
 * @throws ConfigError if the file cannot be read or contains no certificate
 */
export async function readCaCertificates(file: string | undefined): Promise<string[]> {
  if (file === undefined) return [];
  const text = await readFile(file, 'utf8').catch((error) => {
    throw new ConfigError(`LOAM_WEBHOOK_CA: ${file} cannot be read: ${error.code}`);
  });
  const certificates =
    text.match(/-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----/g) ?? [];
  if (certificates.length === 0)
    throw new ConfigError(`LOAM_WEBHOOK_CA: ${file} contains no PEM certificate`);
  for (const certificate of certificates)
    try {
      new X509Certificate(certificate);
    } catch {
      throw new ConfigError(
        `LOAM_WEBHOOK_CA: ${file} contains a certificate that cannot be parsed`,
      );
    }
  return certificates;
}
