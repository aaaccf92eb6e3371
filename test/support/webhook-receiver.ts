/** Webhook endpoints with real TLS, with certificates of their own authority. */
import { execFileSync } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http';
import { createServer } from 'node:https';
import type { AddressInfo, Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type pg from 'pg';

/** The authority that signs the certificates of receivers. */
export type Authority = AsyncDisposable & {
  /** In PEM, for `LOAM_WEBHOOK_CA`. */
  file: string;
  pem: string;
  /** A certificate for names (`DNS:localhost`) and addresses (`IP:127.0.0.1`). */
  certify(...names: string[]): Promise<{ cert: string; key: string }>;
};

export async function makeAuthority(): Promise<Authority> {
  const dir = await mkdtemp(join(tmpdir(), 'loam-authority-'));
  const file = join(dir, 'ca.pem');
  const key = join(dir, 'ca.key');
  const openssl = (...words: string[]) => execFileSync('openssl', words, { stdio: 'ignore' });
  const curve = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'];
  openssl(
    ...['req', '-x509', ...curve, '-subj', '/CN=Test authority', '-days', '2'],
    ...['-addext', 'keyUsage=critical,keyCertSign', '-keyout', key, '-out', file],
  );
  let made = 0;
  return {
    file,
    pem: await readFile(file, 'utf8'),
    async certify(...names) {
      const own = join(dir, `${++made}`);
      const extensions = `${own}.ext`;
      await writeFile(extensions, `subjectAltName=${names.join(',')}\n`);
      openssl('req', ...curve, '-subj', '/CN=receiver', '-keyout', own, '-out', `${own}.csr`);
      openssl(
        ...['x509', '-req', '-in', `${own}.csr`, '-CA', file, '-CAkey', key, '-CAcreateserial'],
        ...['-extfile', extensions, '-days', '2', '-out', `${own}.pem`],
      );
      return { cert: await readFile(`${own}.pem`, 'utf8'), key: await readFile(own, 'utf8') };
    },
    [Symbol.asyncDispose]: () => rm(dir, { recursive: true, force: true }),
  };
}

/** The requests that an endpoint received. */
export type Received = { path: string; headers: IncomingHttpHeaders; body: string; at: number };
export type Answering = (
  response: ServerResponse,
  received: Received,
  request: IncomingMessage,
) => void;

export type Receiver = AsyncDisposable & {
  /** `https://127.0.0.1:port` */
  url: string;
  port: number;
  received: Received[];
  /** Number of connections so far. */
  connections: number;
  /** Sets the answer; initially 204. */
  answer: Answering;
};

/** Answers 204 at 127.0.0.1, with a certificate for that address and for localhost. */
export async function startReceiver(authority: Authority, host = '127.0.0.1'): Promise<Receiver> {
  const server = createServer(
    await authority.certify(`IP:${host}`, 'DNS:localhost', 'DNS:*.hooks.test'),
  );
  const sockets = new Set<Socket>();
  const receiver: Receiver = {
    url: '',
    port: 0,
    received: [],
    connections: 0,
    answer: (response) => void response.writeHead(204).end(),
    async [Symbol.asyncDispose]() {
      const closed = new Promise((resolve) => server.close(resolve));
      // Includes connections during their TLS handshake, which are not HTTP connections yet.
      for (const socket of sockets) socket.destroy();
      await closed;
    },
  };
  server.on('connection', (socket) => {
    receiver.connections++;
    sockets.add(socket);
    socket.once('close', () => sockets.delete(socket));
  });
  server.on('request', (request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk) => chunks.push(chunk));
    request.on('end', () => {
      const { url: path = '', headers } = request;
      const body = Buffer.concat(chunks).toString();
      const received = { path, headers, body, at: Date.now() };
      receiver.received.push(received);
      receiver.answer(response, received, request);
    });
    request.on('error', () => {});
  });
  server.on('tlsClientError', () => {});
  await new Promise<void>((resolve) => server.listen(0, host, resolve));
  receiver.port = (server.address() as AddressInfo).port;
  receiver.url = `https://${host}:${receiver.port}`;
  return receiver;
}

/** As if the time of each next attempt had come. */
export async function makeDeliveriesDue(pool: pg.Pool): Promise<void> {
  await pool.query(
    `with sooner as (
       update deliveries set next_attempt_at = now()
       where status = 'pending' and next_attempt_at > now() returning webhook_id
     ), due as (
       update webhook_queues set due_at = clock_timestamp()
       where webhook_id in (select webhook_id from sooner)
     ) select pg_notify('loam', 'deliveries')`,
  );
}
