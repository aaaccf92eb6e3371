/** HTTP upgrades (RFC 9110 section 7.8): after the response, both sides have the connection, of which no byte has been read. */
import { request as httpRequest } from 'node:http';
import { request as httpsRequest } from 'node:https';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';

type UpgradeRequest = {
  protocol: string;
  headers: Record<string, string>;
  /** Aborts the request. The connection that it has led to stays open. */
  signal: AbortSignal;
  timeoutMs: number;
  /** Default: the agent of Node, which may use a proxy (`NODE_USE_ENV_PROXY`). */
  agent?: false;
};

/** @throws Error when the connection could not be opened, or the server answers with anything else */
export async function requestUpgrade(
  url: string,
  { protocol, headers, signal, timeoutMs, agent }: UpgradeRequest,
): Promise<Socket> {
  const { promise, resolve, reject } = Promise.withResolvers<Socket>();
  const request = (url.startsWith('https:') ? httpsRequest : httpRequest)(url, {
    agent,
    headers: { ...headers, Connection: 'Upgrade', Upgrade: protocol },
    signal,
    timeout: timeoutMs,
  });
  request.once('upgrade', (_response, stream, firstBytes) => {
    const socket = stream as Socket;
    socket.setTimeout(0);
    if (firstBytes.length > 0) socket.unshift(firstBytes);
    resolve(socket);
  });
  request.once('response', (response) => {
    response.resume();
    reject(new Error(`status ${response.statusCode}`));
  });
  request.once('timeout', () => request.destroy(new Error('it did not answer in time')));
  // Stays registered: an `error` event after the response, without a listener, would end the process.
  request.on('error', reject);
  request.end();
  return promise;
}

/** Answers the request for an upgrade. */
export function acceptUpgrade(socket: Duplex, protocol: string): void {
  socket.on('error', () => {});
  socket.write(
    `HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: ${protocol}\r\n\r\n`,
  );
}
