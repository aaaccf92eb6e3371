/**
 * Asks the server of this container for /livez or /readyz, and fails unless it answers 200: the image has no curl.
 * Plain JavaScript without a compile cache: it runs every few seconds and should cost little.
 */
import { get } from 'node:http';

const TIMEOUT_MS = 4_000;
// As the server reads them: an empty variable is unset.
const HOST = process.env.HOST || '127.0.0.1';
const port = process.env.PORT || '3000';
// The addresses that stand for all are listened on, and not connected to.
const host = HOST === '0.0.0.0' ? '127.0.0.1' : HOST === '::' ? '::1' : HOST;

process.exitCode = 1;
const request = get(
  { host, port, path: process.argv[2] ?? '/livez', timeout: TIMEOUT_MS, agent: false },
  (answer) => {
    if (answer.statusCode === 200) process.exitCode = 0;
    answer.resume();
  },
);
request.on('timeout', () => request.destroy(new Error(`no answer within ${TIMEOUT_MS} ms`)));
request.on('error', (error) => console.error(error.message));
