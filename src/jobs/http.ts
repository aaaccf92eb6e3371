/** Express handlers for jobs: the log as server-sent events and as text, and downloads of artifacts. */

import { once } from 'node:events';
import { basename } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createGzip } from 'node:zlib';
import { type Request, type Response, Router } from 'express';
import type pg from 'pg';
import type { Config } from '../base/config/config.ts';
import { AppError, invalid, notFound } from '../base/errors.ts';
import type { Logger } from '../base/log.ts';
import type { Urls } from '../base/urls.ts';
import type { LastUsedRecorder } from '../identity/last-used.ts';
import type { AccessRule, Rechecks } from '../identity/rechecks.ts';
import type { Signer } from '../platform/crypto/signed-links.ts';
import type { Db } from '../platform/database/client.ts';
import { parseTime } from '../platform/database/times.ts';
import type { Bus } from '../platform/events/bus.ts';
import type { Metrics } from '../platform/metrics/metrics.ts';
import type { ByteRange, Storage } from '../platform/storage/storage.ts';
import { closeSignal } from '../platform/web/connections.ts';
import { toErrorResponse } from '../platform/web/error-response.ts';
import { refuseOtherMethods } from '../platform/web/methods.ts';
import { forbidRendering, sendObject } from '../platform/web/send-object.ts';
import { demandDownload } from './artifacts/downloads.ts';
import { archiveKey, openArtifact } from './artifacts/store.ts';
import { resolveTail } from './logs/read.ts';
import { streamLogText } from './logs/walk.ts';
import { isMetricName } from './metrics/parse.ts';
import { streamCsv } from './metrics/read.ts';
import { type LogEvent, type LogEventBatch, openStream } from './requests/following.ts';
import { demandLogText, openLinkedStream } from './requests/log-links.ts';

export type Deps = {
  pool: pg.Pool;
  rechecks: Rechecks;
  db: Db;
  bus: Bus;
  metrics: Metrics;
  signer: Signer;
  log: Logger;
  usage: LastUsedRecorder;
  urls: Urls;
  storage: Storage;
  config: Config;
};

/** Interval of comments that keep a proxy from closing an idle stream. */
const KEEPALIVE_MS = 15_000;

/** The parameters of a log request, as its REST operation declares them. Times are text. */
type LogParameters = { namespace: string; name: string; tail?: number; since?: string };

/**
 * Handles a log request with `stream=true`. `values` are its validated parameters.
 *
 * The `id` of each event is the number of its journal entry, so a client that reconnects with `Last-Event-ID`, as EventSource
 * does automatically, resumes where it was disconnected. If the client has seen the end, the response is 204, which tells an
 * EventSource not to reconnect. If the viewer loses access, the last event is `error` with the error body.
 */
export function streamLogs(services: Deps) {
  return async (req: Request, res: Response, values: Record<string, unknown>): Promise<void> => {
    const { namespace, name, tail, since } = values as LogParameters;
    const query = { tail, since: parseSince(since) };
    const lastSeen = parseEventId(req.get('last-event-id'));
    const key = { namespace, name };
    const open = await openStream(services, req.viewer, key, { ...query, lastSeen });
    await sendEvents(services, req, res, open);
  };
}

type Opened = Awaited<ReturnType<typeof openStream>>;

/** Sends the events of a log until it ends, the client disconnects, or the server stops. */
async function sendEvents(
  services: Deps,
  req: Request,
  res: Response,
  open: Opened,
): Promise<void> {
  res.setHeader('Cache-Control', 'no-store');
  if (!open) return void res.status(204).end();
  res.status(200);
  res.setHeader('Content-Type', 'text/event-stream; charset=utf-8');
  // Without this header nginx buffers lines.
  res.setHeader('X-Accel-Buffering', 'no');
  if (req.method === 'HEAD') return void res.end();
  res.flushHeaders();
  const disconnected = closeSignal(res);
  using _ = services.metrics.streamOpened('log');
  // A timer, so that comments are sent even while the database is unavailable.
  const keepalive = setInterval(() => {
    // For a client that does not read, comments would pile up and keep its connection from being closed.
    if (!res.writableNeedDrain) res.write(': still here\n\n');
  }, KEEPALIVE_MS);
  try {
    for await (const batch of open(disconnected)) {
      if (disconnected.aborted) break;
      keepalive.refresh();
      if (!res.write(encodeBatch(batch))) await waitForDrain(res, disconnected);
    }
  } catch (error) {
    if (!(error instanceof AppError)) throw error;
    res.write(`event: error\ndata: ${JSON.stringify(toErrorResponse(error, req.id).body)}\n\n`);
  } finally {
    clearInterval(keepalive);
  }
  res.end();
}

function parseEventId(text: string | undefined, name = 'Last-Event-ID'): number | null {
  if (!text) return null;
  const seq = Number(text);
  if (!/^\d+$/.test(text) || !Number.isSafeInteger(seq))
    throw invalid(null, `${name}: must be the id of an event`);
  return seq;
}

/** Waits until a slow client has read the written data or has disconnected, so that no more data is buffered. */
async function waitForDrain(res: Response, disconnected: AbortSignal): Promise<void> {
  await once(res, 'drain', { signal: disconnected }).catch(() => {});
}

/** Caches the encoding of a batch for all followers. With a thousand followers, encoding was most of the cost of a line. */
const encodedBatches = new WeakMap<LogEventBatch, Buffer>();

function encodeBatch(batch: LogEventBatch): Buffer {
  const cached = encodedBatches.get(batch);
  if (cached) return cached;
  const events = batch.map(
    (event) =>
      `id: ${event.seq}\nevent: ${event.kind}\ndata: ${JSON.stringify(eventData(event))}\n\n`,
  );
  const text = Buffer.from(events.join(''));
  encodedBatches.set(batch, text);
  return text;
}

function eventData(event: LogEvent): object {
  switch (event.kind) {
    case 'log':
      return { timestamp: event.timestamp, message: event.message };
    case 'status':
      return { timestamp: event.timestamp, status: event.status };
    case 'end':
      return { status: event.status, exit_code: event.exitCode };
  }
}

/** Creates the routes of logs: the plain text, and the event stream for holders of a link. */
export function logsRouter(services: Deps): Router {
  const router = Router();
  router.get('/artifacts/:namespace/:jobId/log.txt', async (req, res) => {
    const timestamps = parseBoolean(req.query, 'timestamps');
    const { id, name, rule } = await demandLogText(services, req.viewer, req.params, req.query);
    using _ = abortWhenRefused(services, req, res, rule);
    const text = streamLogText(services, id, { timestamps });
    await sendText(services, req, res, { name: `${name}.log`, type: 'text/plain', text });
  });
  router.get('/artifacts/:namespace/:jobId/metrics.csv', async (req, res) => {
    const metric = demandSingleValues(req.query, ['name']).name ?? null;
    if (metric !== null && !isMetricName(metric))
      throw invalid('name', 'must be the name of a metric');
    const { id, name, rule } = await demandLogText(
      services,
      req.viewer,
      req.params,
      req.query,
      'metrics',
    );
    using _ = abortWhenRefused(services, req, res, rule);
    const text = streamCsv(services, id, metric);
    await sendText(services, req, res, { name: `${name}-metrics.csv`, type: 'text/csv', text });
  });
  router.get('/artifacts/:namespace/:jobId/log/events', async (req, res) => {
    const { tail, since, after, ...signature } = demandSingleValues(req.query, [
      'tail',
      'since',
      'after',
    ]);
    const lastSeen = parseEventId(req.get('last-event-id')) ?? parseEventId(after, 'after');
    const query = { tail: parseTail(tail), since: parseSince(since), lastSeen };
    await sendEvents(
      services,
      req,
      res,
      await openLinkedStream(services, req.params, signature, query),
    );
  });
  router.all(
    [
      '/artifacts/:namespace/:jobId/log.txt',
      '/artifacts/:namespace/:jobId/log/events',
      '/artifacts/:namespace/:jobId/metrics.csv',
    ],
    onlyGet,
  );
  return router;
}

/** Sends a generated text as a download. */
async function sendText(
  { log }: Deps,
  req: Request,
  res: Response,
  { name, type, text }: { name: string; type: string; text: AsyncIterable<string> },
): Promise<void> {
  setDownloadHeaders(res);
  res.attachment(name);
  res.type(`${type}; charset=utf-8`);
  res.vary('Accept-Encoding');
  const acceptsGzip = req.acceptsEncodings('gzip', 'identity') === 'gzip';
  if (acceptsGzip) res.setHeader('Content-Encoding', 'gzip');
  if (req.method === 'HEAD') return void res.end();
  const parts = Readable.from(text);
  try {
    await (acceptsGzip ? pipeline(parts, createGzip({ level: 1 }), res) : pipeline(parts, res));
  } catch (error) {
    // The connection is destroyed, so that the client does not take the text for complete. Disconnects are not logged.
    const hasDisconnected = (error as NodeJS.ErrnoException).code === 'ERR_STREAM_PREMATURE_CLOSE';
    if (!hasDisconnected) log.error({ err: error, file: name }, 'Cannot send the whole text');
    res.destroy();
  }
}

type Query = Record<string, unknown>;

/** Checks that each of the named parameters is given at most once. @throws AppError 400 */
function demandSingleValues<Name extends string>(query: Query, names: readonly Name[]) {
  for (const name of names)
    if (query[name] !== undefined && typeof query[name] !== 'string')
      throw invalid(name, 'must be given once');
  return query as Query & Partial<Record<Name, string>>;
}

function parseBoolean(query: Query, name: string): boolean {
  const value = demandSingleValues(query, [name])[name] ?? 'false';
  if (value !== 'true' && value !== 'false') throw invalid(name, 'must be true or false');
  return value === 'true';
}

function parseTail(text: string | undefined): number | null {
  if (text === undefined) return null;
  // Text that is not a number is reported as out of range.
  return resolveTail(/^\d+$/.test(text) ? Number(text) : 0);
}

function parseSince(text: string | undefined): Date | null {
  if (text === undefined) return null;
  const time = parseTime(text);
  if (!time) throw invalid('since', 'must be an ISO 8601 timestamp with an offset');
  return time;
}

const onlyGet = refuseOtherMethods(['GET']);
/** Lifetime of a link to the object storage. Clients follow the redirect immediately. */
const REDIRECT_LINK_S = 60;

/** Creates the routes of artifacts: the whole archive, and single files. */
export function artifactsRouter(services: Deps): Router {
  const router = Router();
  const { storage, config } = services;
  router.get('/artifacts/:namespace/:jobId/artifacts.tar.gz', async (req, res) => {
    const { namespace, jobId } = req.params;
    const { key, rule } = await demandDownload(
      services,
      req.viewer,
      { namespace, jobId },
      req.query,
    );
    const archive = archiveKey(key);
    const found = await storage.stat(archive);
    if (!found) throw notFound('Artifacts');
    const name = `${jobId}.tar.gz`;
    const link = config.storageRedirect ? await storage.link(archive, REDIRECT_LINK_S, name) : null;
    setDownloadHeaders(res);
    if (link) return void res.redirect(302, link);
    using _ = abortWhenRefused(services, req, res, rule);
    res.attachment(name);
    res.type('application/gzip');
    const { size, version: etag, modifiedAt } = found;
    const open = async (range?: ByteRange) => {
      const opened = await storage.open(archive, range);
      if (!opened) throw notFound('Artifacts');
      return opened.contents;
    };
    await sendObject(req, res, { size, etag, modifiedAt, open });
  });
  router.get('/artifacts/:namespace/:jobId/files/*path', async (req, res) => {
    const { namespace, jobId } = req.params;
    const path = (req.params.path as unknown as string[]).join('/');
    const { key, rule } = await demandDownload(
      services,
      req.viewer,
      { namespace, jobId, path },
      req.query,
    );
    using _ = abortWhenRefused(services, req, res, rule);
    const file = await openArtifact(services, key, path);
    if (!file) throw notFound('Artifact');
    setDownloadHeaders(res);
    res.attachment(basename(path));
    res.type('application/octet-stream');
    await sendObject(req, res, file);
  });
  router.all(
    ['/artifacts/:namespace/:jobId/artifacts.tar.gz', '/artifacts/:namespace/:jobId/files/*path'],
    onlyGet,
  );
  return router;
}

/** Aborts a download, which may take hours, when its viewer loses access. */
function abortWhenRefused(
  { rechecks }: { rechecks: Rechecks },
  req: Request,
  res: Response,
  rule: AccessRule | null,
): Disposable | undefined {
  if (!rule) return undefined;
  const right = rechecks.watch(req.viewer, rule);
  right.refused.addEventListener('abort', () => res.destroy(), { once: true });
  return right;
}

/** Prevents browsers from rendering the output of a job as a page of this site. */
function setDownloadHeaders(res: Response): void {
  forbidRendering(res);
  res.setHeader('Cache-Control', 'private, no-cache');
}
