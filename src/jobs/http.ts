/** Express's side of jobs: the log as server-sent events, and the download of artifacts. */
import { once } from 'node:events';
import { basename } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { type Request, type Response, Router } from 'express';
import type { Rule } from '../auth/rechecks.ts';
import { AppError, answerOf, invalid, notFound } from '../errors.ts';
import { closingOf } from '../http/connections.ts';
import { sendObject } from '../http/send-object.ts';
import { otherMethod } from '../rest/methods.ts';
import type { Services } from '../services.ts';
import type { ByteRange } from '../storage/storage.ts';
import { demandDownload } from './artifacts/downloads.ts';
import { archiveKey, openArtifact } from './artifacts/store.ts';
import { type LogEvent, openStream } from './following.ts';

/** How often a comment is sent, so that no proxy closes a stream on which nothing happens (decisions section 4). */
const SIGN_OF_LIFE_MS = 15_000;

/** The parameters of a log request, as its operation declares them. */
type LogValues = { namespace: string; name: string; tail?: number; since?: string };

/**
 * Answers a log request that has `stream=true`; `values` are its parameters, of the right types already.
 *
 * Each event carries the number of its journal entry as `id`, so a client that comes back with
 * `Last-Event-ID`, as EventSource does by itself, goes on exactly where it was cut off. At the very end the
 * answer is 204, after which an EventSource does not connect again. When the viewer may not see the job any more, the
 * last event is `error`, with the error's envelope.
 */
export function streamLogs(services: Services) {
  return async (req: Request, res: Response, values: Record<string, unknown>): Promise<void> => {
    const { namespace, name, tail, since } = values as LogValues;
    const query = { tail, since: since === undefined ? null : new Date(since) };
    const lastSeen = lastEventId(req.get('last-event-id'));
    const key = { namespace, name };
    const open = await openStream(services, req.viewer, key, { ...query, lastSeen });
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
    }, SIGN_OF_LIFE_MS);
    try {
      for await (const event of open(gone)) {
        if (gone.aborted) break;
        sign.refresh();
        if (!res.write(textOf(event))) await drained(res, gone);
      }
    } catch (error) {
      if (!(error instanceof AppError)) throw error;
      res.write(
        `event: error\ndata: ${JSON.stringify(answerOf(error, req.id as string).body)}\n\n`,
      );
    } finally {
      clearInterval(sign);
    }
    res.end();
  };
}

function lastEventId(header: string | undefined): number | null {
  if (!header) return null;
  const seq = Number(header);
  if (!/^\d+$/.test(header) || !Number.isSafeInteger(seq))
    throw invalid(null, 'Last-Event-ID: must be the id of an event');
  return seq;
}

/** Until a slow client has taken what was written, or is gone: nothing piles up here meanwhile. */
async function drained(res: Response, gone: AbortSignal): Promise<void> {
  await once(res, 'drain', { signal: gone }).catch(() => {});
}

function textOf(event: LogEvent): string {
  return `id: ${event.seq}\nevent: ${event.kind}\ndata: ${JSON.stringify(dataOf(event))}\n\n`;
}

function dataOf(event: LogEvent): object {
  switch (event.kind) {
    case 'log':
      return { timestamp: event.timestamp, message: event.message };
    case 'status':
      return { timestamp: event.timestamp, status: event.status };
    case 'end':
      return { status: event.status, exit_code: event.exitCode };
  }
}

const only = otherMethod(['GET']);
/** Of an address at the storage's own server: it is followed at once. */
const LINK_S = 60;

/** What a job left, as a whole and file by file. */
export function artifactsRouter(services: Services): Router {
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
    const link = config.storageRedirect ? await storage.link(archive, LINK_S, name) : null;
    protect(res);
    if (link) return void res.redirect(302, link);
    using _ = endWhenRefused(services, req, res, rule);
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
    using _ = endWhenRefused(services, req, res, rule);
    const file = await openArtifact(services, key, path);
    if (!file) throw notFound('Artifact');
    protect(res);
    res.attachment(basename(path));
    res.type('application/octet-stream');
    res.setHeader('Content-Length', file.sizeBytes);
    if (req.method === 'HEAD') return void res.end();
    // A client that goes away ends both; what it has seen then is short of Content-Length.
    await pipeline(await file.open(), res).catch(() => res.destroy());
  });
  router.all(
    ['/artifacts/:namespace/:jobId/artifacts.tar.gz', '/artifacts/:namespace/:jobId/files/*path'],
    only,
  );
  return router;
}

/** A download may take hours: it is broken off when its viewer may not have it any more. */
function endWhenRefused(
  { rechecks }: Pick<Services, 'rechecks'>,
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
function protect(res: Response): void {
  res.setHeader('X-Content-Type-Options', 'nosniff');
  res.setHeader('Content-Security-Policy', "default-src 'none'; sandbox");
  res.setHeader('Cache-Control', 'private, no-cache');
}
