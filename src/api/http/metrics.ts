/** The port for Prometheus: `GET /metrics` and nothing else. */
import { createServer, type Server } from 'node:http';
import type { Config } from '../../base/config/config.ts';
import type { Logger } from '../../base/log.ts';
import { CONTENT_TYPE, type Metrics } from '../../platform/metrics/metrics.ts';
import { listen } from './listening.ts';

const TIMEOUT_MS = 10_000;
/** Prometheus keeps one or two connections open. */
const MAX_CONNECTIONS = 50;

/**
 * Listens on the port if one is configured. There is no default: several processes on one machine would want the same
 * port, and the second would have to skip it silently or fail to start without the operator having asked for metrics.
 * Whoever reaches the port may read the metrics: they name no user, repository, job or address.
 * @throws ConfigError when it cannot listen there
 */
export async function openMetricsPort(
  { metrics: config }: Config,
  metrics: Metrics,
  log: Logger,
): Promise<AsyncDisposable & { address?: string }> {
  if (!config) return { async [Symbol.asyncDispose]() {} };
  const server = createServer({
    headersTimeout: TIMEOUT_MS,
    requestTimeout: TIMEOUT_MS,
    keepAliveTimeout: 65_000,
  });
  server.timeout = 120_000;
  server.maxConnections = MAX_CONNECTIONS;
  serveMetrics(server, metrics, log);
  const names = { host: 'LOAM_METRICS_HOST', port: 'LOAM_METRICS_PORT' };
  const address = await listen(server, { ...config, names }, log);
  metrics.watchNode();
  log.info({ address: `${address}/metrics` }, 'serving metrics');
  return {
    address,
    async [Symbol.asyncDispose]() {
      const closed = new Promise((resolve) => server.close(resolve));
      server.closeAllConnections();
      await closed;
    },
  };
}

function serveMetrics(server: Server, metrics: Metrics, log: Logger): void {
  server.on('request', async (req, res) => {
    req.resume();
    res.on('error', () => {});
    const respond = (status: number, text: string, headers: Record<string, string> = {}) => {
      res.writeHead(status, { 'Content-Type': 'text/plain; charset=utf-8', ...headers });
      res.end(req.method === 'HEAD' ? undefined : text);
    };
    if (req.url?.split('?')[0] !== '/metrics')
      return respond(404, 'This port serves only /metrics\n');
    if (req.method !== 'GET' && req.method !== 'HEAD')
      return respond(405, 'Use GET\n', { Allow: 'GET, HEAD' });
    try {
      respond(200, await metrics.text(), { 'Content-Type': CONTENT_TYPE });
    } catch (error) {
      log.error({ err: error }, 'could not collect the metrics');
      respond(500, 'The metrics could not be collected. The log of the server has the error.\n');
    }
  });
}
