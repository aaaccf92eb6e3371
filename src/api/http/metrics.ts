/** The port on which Prometheus asks: `GET /metrics`, and nothing else. */
import { createServer, type Server } from 'node:http';
import type { Config } from '../../base/config/config.ts';
import type { Logger } from '../../base/log.ts';
import { CONTENT_TYPE, type Metrics } from '../../platform/metrics/metrics.ts';
import { listen } from './listening.ts';

const TIMEOUT_MS = 10_000;
/** Prometheus keeps one or two open. */
const MAX_CONNECTIONS = 50;

/**
 * Takes the port, where one is configured. There is none by default: several processes on one machine would want the
 * same, and one that is taken could only be left out silently or stop a start that nobody had asked to have metrics.
 *
 * Who reaches the port may read all of it: it names no user, repository or job, and no address.
 * @throws ConfigError when it cannot listen there
 */
export async function openMetricsPort(
  { metrics: place }: Config,
  metrics: Metrics,
  log: Logger,
): Promise<AsyncDisposable & { address?: string }> {
  if (!place) return { async [Symbol.asyncDispose]() {} };
  const server = createServer({
    headersTimeout: TIMEOUT_MS,
    requestTimeout: TIMEOUT_MS,
    keepAliveTimeout: 65_000,
  });
  server.timeout = 120_000;
  server.maxConnections = MAX_CONNECTIONS;
  answer(server, metrics, log);
  const names = { host: 'LOAM_METRICS_HOST', port: 'LOAM_METRICS_PORT' };
  const address = await listen(server, { ...place, names }, log);
  metrics.watchNode();
  log.info({ address: `${address}/metrics` }, 'metrics are served');
  return {
    address,
    async [Symbol.asyncDispose]() {
      const closed = new Promise((resolve) => server.close(resolve));
      server.closeAllConnections();
      await closed;
    },
  };
}

function answer(server: Server, metrics: Metrics, log: Logger): void {
  server.on('request', async (req, res) => {
    req.resume();
    res.on('error', () => {});
    const say = (status: number, text: string, headers: Record<string, string> = {}) => {
      res.writeHead(status, { 'Content-Type': 'text/plain; charset=utf-8', ...headers });
      res.end(req.method === 'HEAD' ? undefined : text);
    };
    if (req.url?.split('?')[0] !== '/metrics') return say(404, 'Only /metrics is here\n');
    if (req.method !== 'GET' && req.method !== 'HEAD')
      return say(405, 'GET is allowed\n', { Allow: 'GET, HEAD' });
    try {
      say(200, await metrics.text(), { 'Content-Type': CONTENT_TYPE });
    } catch (error) {
      log.error({ err: error }, 'the metrics could not be read');
      say(500, 'The log of the server says why\n');
    }
  });
}
