/**
 * The health check of the container: requests /livez or /readyz, and exits with 1 unless the status is 200. The image has
 * no curl. Plain JavaScript without a compile cache, because it runs every few seconds and must cost little.
 */
import { get } from 'node:http';

const TIMEOUT_MS = 4_000;
// An empty variable counts as unset, as for the server.
const HOST = process.env.HOST || '127.0.0.1';
const port = process.env.PORT || '3000';
// A server listens on wildcard addresses, but a client cannot connect to them.
const host = HOST === '0.0.0.0' ? '127.0.0.1' : HOST === '::' ? '::1' : HOST;

process.exitCode = 1;
const request = get(
  { host, port, path: process.argv[2] ?? '/livez', timeout: TIMEOUT_MS, agent: false },
  (response) => {
    if (response.statusCode === 200) process.exitCode = 0;
    response.resume();
  },
);
request.on('timeout', () => request.destroy(new Error(`no response within ${TIMEOUT_MS} ms`)));
request.on('error', (error) => console.error(error.message));
