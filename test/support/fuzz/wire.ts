/** Sends one raw HTTP request over kept-alive connections: `fetch` would normalize the paths that we want to send. */
import { Agent, request } from 'node:http';
import type { Client } from '../harness.ts';

export type Call = { method: string; path: string; headers: Record<string, string>; body?: string };
export type Reply = {
  status: number;
  headers: Record<string, string | string[] | undefined>;
  text: string;
};

export type Wire = Disposable & { send(client: Client, call: Call): Promise<Reply> };

const TIMEOUT_MS = 120_000;

export function openWire(base: string): Wire {
  const agent = new Agent({ keepAlive: true, maxSockets: 16 });
  const { hostname: host, port } = new URL(base);
  return {
    send: ({ authorization }, { method, path, headers, body }) =>
      new Promise((resolve, reject) => {
        // Node adds no length to the body of a GET, so the server would take the body for the next request.
        const length = body ? { 'content-length': Buffer.byteLength(body) } : {};
        const all = { ...(authorization && { authorization }), ...length, ...headers };
        const options = { agent, host, port, method, path, headers: all, timeout: TIMEOUT_MS };
        const req = request(options, (res) => {
          const chunks: Buffer[] = [];
          res.on('data', (chunk) => chunks.push(chunk));
          res.on('end', () => {
            const text = Buffer.concat(chunks).toString('utf8');
            resolve({ status: res.statusCode ?? 0, headers: res.headers, text });
          });
          res.on('error', reject);
        });
        req.on('timeout', () => req.destroy(new Error(`no answer within ${TIMEOUT_MS} ms`)));
        req.on('error', reject);
        req.end(body);
      }),
    [Symbol.dispose]: () => agent.destroy(),
  };
}

/** Percent-encodes only the characters that Node's client refuses in a path (controls, spaces, non-ASCII). */
export function rawPath(text: string): string {
  return text.replace(/[^\x21-\x7e]/gu, (c) => encodeURIComponent(c.isWellFormed() ? c : '\ufffd'));
}
