/** Express's side of jobs: the log as server-sent events and as text, and the download of artifacts. */

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
import type { Usage } from '../identity/last-used.ts';
import type { Rechecks, Rule } from '../identity/rechecks.ts';
import type { Signer } from '../platform/crypto/signed-links.ts';
import type { Db } from '../platform/database/client.ts';
import { parseTime } from '../platform/database/times.ts';
import type { Bus } from '../platform/events/bus.ts';
import type { Metrics } from '../platform/metrics/metrics.ts';
import type { ByteRange, Storage } from '../platform/storage/storage.ts';
import { closingOf } from '../platform/web/connections.ts';
import { answerOf } from '../platform/web/error-response.ts';
import { otherMethod } from '../platform/web/methods.ts';
import { neverAsPage, sendObject } from '../platform/web/send-object.ts';
import { demandDownload } from './artifacts/downloads.ts';
import { archiveKey, openArtifact } from './artifacts/store.ts';
import { type LogBatch, type LogEvent, openStream } from './following.ts';
import { demandLogText, openLinkedStream } from './logs/links.ts';
import { checkTail } from './logs/read.ts';
import { streamLogText } from './logs/walk.ts';

export type Deps = {
  pool: pg.Pool;
  rechecks: Rechecks;
  db: Db;
  bus: Bus;
  metrics: Metrics;
  signer: Signer;
  log: Logger;
  usage: Usage;
  urls: Urls;
  storage: Storage;
  config: Config;
};

/** How often a comment is sent, so that no proxy closes a stream on which nothing happens (decisions section 4). */
const KEEPALIVE_MS = 15_000;

/** The parameters of a log request, as its operation declares them. */
type LogParameters = { namespace: string; name: string; tail?: number; since?: Date };

/**
 * Answers a log request that has `stream=true`; `values` are its parameters, of the right types already.
 *
 * Each event carries the number of its journal entry as `id`, so a client that comes back with
 * `Last-Event-ID`, as EventSource does by itself, goes on exactly where it was cut off. At the very end the
 * answer is 204, after which an EventSource does not connect again. When the viewer may not see the job any more, the
 * last event is `error`, with the error's envelope.
 */
export function streamLogs(services: Deps) {
  return async (req: Request, res: Response, values: Record<string, unknown>): Promise<void> => {
    const { namespace, name, tail, since } = values as LogParameters;
    const query = { tail, since: since ?? null };
    const lastSeen = parseEventId(req.get('last-event-id'));
    const key = { namespace, name };
    const open = await openStream(services, req.viewer, key, { ...query, lastSeen });
    await sendEvents(services, req, res, open);
  };
}

type Opened = Awaited<ReturnType<typeof openStream>>;

/** The events of a log as they come, until its end or until either side goes. */
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
  // nginx would hold lines back until a buffer is full.
  res.setHeader('X-Accel-Buffering', 'no');
  if (req.method === 'HEAD') return void res.end();
  res.flushHeaders();
  const gone = closingOf(res);
  using _ = services.metrics.streamOpened('log');
  // Also while the database is away and there is nothing to send.
  const sign = setInterval(() => {
    // To one who does not read it would only pile up, and keep the connection from being cut.
    if (!res.writableNeedDrain) res.write(': still here\n\n');
  }, KEEPALIVE_MS);
  try {
    for await (const batch of open(gone)) {
      if (gone.aborted) break;
      sign.refresh();
      if (!res.write(encodeBatch(batch))) await waitForDrain(res, gone);
    }
  } catch (error) {
    if (!(error instanceof AppError)) throw error;
    res.write(`event: error\ndata: ${JSON.stringify(answerOf(error, req.id).body)}\n\n`);
  } finally {
    clearInterval(sign);
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

/** Until a slow client has taken what was written, or is gone: nothing piles up here meanwhile. */
async function waitForDrain(res: Response, gone: AbortSignal): Promise<void> {
  await once(res, 'drain', { signal: gone }).catch(() => {});
}

/** Made once for all who follow a job: for a thousand of them it was most of what a line costs. */
const encodedBatches = new WeakMap<LogBatch, Buffer>();

function encodeBatch(batch: LogBatch): Buffer {
  const known = encodedBatches.get(batch);
  if (known) return known;
  const events = batch.map(
    (event) => `id: ${event.seq}\nevent: ${event.kind}\ndata: ${JSON.stringify(eventData(event))}\n\n`,
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

/** A log by address: as plain text, and as a stream for those who have a link to it. */
export function logsRouter(services: Deps): Router {
  const router = Router();
  router.get('/artifacts/:namespace/:jobId/log.txt', async (req, res) => {
    const timestamps = parseBoolean(req.query, 'timestamps');
    const { id, name, rule } = await demandLogText(services, req.viewer, req.params, req.query);
    using _ = abortWhenRefused(services, req, res, rule);
    setDownloadHeaders(res);
    res.attachment(`${name}.log`);
    res.type('text/plain; charset=utf-8');
    res.vary('Accept-Encoding');
    const zips = req.acceptsEncodings('gzip', 'identity') === 'gzip';
    if (zips) res.setHeader('Content-Encoding', 'gzip');
    if (req.method === 'HEAD') return void res.end();
    const text = Readable.from(streamLogText(services, id, { timestamps }));
    try {
      await (zips ? pipeline(text, createGzip({ level: 1 }), res) : pipeline(text, res));
    } catch (error) {
      // Broken off, so that nobody takes it for whole. Of a client that goes there is nothing to tell.
      const isGone = (error as NodeJS.ErrnoException).code === 'ERR_STREAM_PREMATURE_CLOSE';
      if (!isGone) services.log.error({ err: error, job: id }, 'a log was not sent to its end');
      res.destroy();
    }
  });
  router.get('/artifacts/:namespace/:jobId/log/events', async (req, res) => {
    const { tail, since, after, ...signature } = demandSingleValues(req.query, ['tail', 'since', 'after']);
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
    ['/artifacts/:namespace/:jobId/log.txt', '/artifacts/:namespace/:jobId/log/events'],
    onlyGet,
  );
  return router;
}

type Query = Record<string, unknown>;

/** The parameters named are single texts, or left out. @throws AppError 400 */
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
  // What is no number is out of range too.
  return checkTail(/^\d+$/.test(text) ? Number(text) : 0);
}

function parseSince(text: string | undefined): Date | null {
  if (text === undefined) return null;
  const time = parseTime(text);
  if (!time) throw invalid('since', 'must be an ISO 8601 timestamp with an offset');
  return time;
}

const onlyGet = otherMethod(['GET']);
/** Of an address at the storage's own server: it is followed at once. */
const REDIRECT_LINK_S = 60;

/** What a job left, as a whole and file by file. */
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
    res.setHeader('Content-Length', file.sizeBytes);
    if (req.method === 'HEAD') return void res.end();
    // A client that goes away ends both; what it has seen then is short of Content-Length.
    await pipeline(await file.open(), res).catch(() => res.destroy());
  });
  router.all(
    ['/artifacts/:namespace/:jobId/artifacts.tar.gz', '/artifacts/:namespace/:jobId/files/*path'],
    onlyGet,
  );
  return router;
}

/** A download may take hours: it is broken off when its viewer may not have it any more. */
function abortWhenRefused(
  { rechecks }: { rechecks: Rechecks },
  req: Request,
  res: Response,
  rule: Rule | null,
): Disposable | undefined {
  if (!rule) return undefined;
  const right = rechecks.watch(req.viewer, rule);
  right.refused.addEventListener('abort', () => res.destroy(), { once: true });
  return right;
}

/** What a job wrote is never shown as a page of this site. */
function setDownloadHeaders(res: Response): void {
  neverAsPage(res);
  res.setHeader('Cache-Control', 'private, no-cache');
}
