/** The routes for agents (`protocol.ts`). They have their own credentials and no rate limit. */
import { createReadStream } from 'node:fs';
import { pipeline } from 'node:stream/promises';
import express, {
  type ErrorRequestHandler,
  type Request,
  type RequestHandler,
  type Response,
  type Router,
} from 'express';
import { z } from 'zod';
import { AppError, busy, invalid, unauthenticated } from '../../base/errors.ts';
import { allowLongBody, closeSignal } from '../../platform/web/connections.ts';
import { createTar } from '../supervisor/tar.ts';
import {
  AGENT_PROGRAM,
  AGENTS_PATH,
  LOG_REQUEST_BYTES,
  MAX_REASON_LENGTH,
  NONCE_HEADER,
} from './protocol.ts';
import type { AgentRunner } from './runner.ts';
import type { AgentSession } from './session.ts';

/*
 * A job that shares the account of its agent can send anything in its name, so these limits keep what is stored within the
 * ranges of dates, numbers and texts that the database and the API have.
 */

/** Text for a line of the log and for a column of the database, which cannot store NUL and half surrogate pairs. */
const sentence = z
  .string()
  .max(MAX_REASON_LENGTH)
  .transform((text) => text.replace(/\p{Cc}+/gu, ' ').toWellFormed());
/** Milliseconds until the year 2286. */
const time = z.int().min(0).max(9_999_999_999_999);
const bytes = z
  .number()
  .min(0)
  .max(2 ** 50);
const claimSchema = z.object({
  nonce: z.uuid(),
  node: z
    .string()
    .max(253)
    .transform((name) => name.replace(/[^\w.:-]/g, '_')),
});
const usage = {
  at: time,
  memoryBytes: bytes,
  gpuPercent: z.number().min(0).max(100).nullable(),
  diskBytes: bytes,
};
const reportSchema = z.object({
  started: z
    .object({
      pid: z
        .int()
        .min(0)
        .max(2 ** 32),
      startedAt: time,
    })
    .optional(),
  usage: z
    .union([
      z.object({ ...usage, cpuSeconds: z.number().min(0).max(1e9) }),
      z.object({ ...usage, cpuPercent: z.number().min(0).max(1e5) }),
    ])
    .optional(),
  exit: z
    .object({
      exitCode: z.int().min(0).max(255).nullable(),
      timedOut: z.boolean(),
      startedAt: time,
      endedAt: time,
      unstartable: z.boolean(),
      reason: sentence.optional(),
      outOfMemory: z.literal(true).optional(),
      isInterrupted: z.literal(true).optional(),
      hasResults: z.boolean().optional(),
      logBytes: z.int().min(0),
    })
    .optional(),
});
const beginSchema = z.object({ gpus: z.array(z.int().min(0).max(1_023)).max(64).optional() });
const refusalSchema = z.object({ reason: sentence });
const failureSchema = z.object({
  reason: sentence.nullable(),
  isUnchanged: z.literal(true).optional(),
});

/** More than an agent has open, including requests whose connection broke unnoticed. */
const MAX_OPEN_REQUESTS = 16;
const MAX_JSON_BYTES = 64 * 1024;
/**
 * Bodies are kept in memory until their end, so these limits count the bodies that are being received: the parts of logs of all
 * agents, and all bodies of one attempt. An agent sends one part of its log at a time, and may repeat it before the broken
 * connection is noticed.
 */
const MAX_BODY_BYTES = 32 * 2 ** 20;
const MAX_BODY_BYTES_OF_ATTEMPT = 2 * LOG_REQUEST_BYTES;
/** When memory is short, parts of logs that take longer are cut: hostile jobs would otherwise keep it for a minute each time. */
const UNDISTURBED_MS = 10_000;

type AttemptRequest = Request<{ attempt: string }>;
type AttemptResponse = Response<unknown, { session: AgentSession }>;
type AttemptHandler = RequestHandler<
  { attempt: string },
  unknown,
  unknown,
  Request['query'],
  { session: AgentSession }
>;

/**
 * @param findSession over all clusters of this worker
 * @param program path of the agent's program
 * @param findWorker id of the worker of an open attempt
 * @param forwardTo forwards a request, of which no body was read, to the worker with this id. Throws AppError 503 if it cannot
 * @param isDiskLow whether this server keeps the rest of its disk for the database
 * @param closing aborts when the server stops, so that waiting requests are answered at once
 */
export function createAgentsRouter({
  findSession,
  program,
  findWorker,
  forwardTo,
  isDiskLow,
  closing,
}: {
  findSession: AgentRunner['findSession'];
  program: string;
  findWorker(attempt: string): Promise<string | null>;
  forwardTo(worker: string, req: Request, res: Response, signal: AbortSignal): Promise<void>;
  isDiskLow(): boolean;
  closing: AbortSignal;
}): Router {
  const router = express.Router({ mergeParams: true });
  const sendProgram = async (res: Response) => {
    res.type('text/javascript');
    await pipeline(createReadStream(program), res);
  };

  /**
   * The session, if this process has the attempt. Otherwise forwards the request to the worker that has it.
   * @throws AppError 410 if the attempt is over; the agent then kills its command. 503 while no process answers; it tries again
   */
  async function findOrForward(
    req: AttemptRequest,
    res: AttemptResponse,
  ): Promise<AgentSession | undefined> {
    const { attempt } = req.params;
    const isId = ATTEMPT_ID.test(attempt);
    const session = isId ? await findSession(attempt) : undefined;
    if (session) return session;
    const worker = isId ? await findWorker(attempt) : null;
    if (worker === null) throw new AppError('not_found', 'The attempt is over', { status: 410 });
    allowLongBody(req);
    await forwardTo(worker, req as Request, res, closing);
    return undefined;
  }

  router.get(`/${AGENT_PROGRAM}`, (_req, res) => sendProgram(res));
  // The version of the worker that has the attempt. The program is not secret.
  router.get(`/:attempt/${AGENT_PROGRAM}`, async (req: AttemptRequest, res: AttemptResponse) => {
    if (await findOrForward(req, res)) await sendProgram(res);
  });

  const openRequests = new WeakMap<AgentSession, number>();

  /**
   * Finds the session and checks the token. The other middleware runs later, so that nobody else's body is read.
   * @returns undefined after the request was forwarded to the worker that has the attempt
   */
  async function authenticate(
    req: AttemptRequest,
    res: AttemptResponse,
  ): Promise<AgentSession | undefined> {
    const [, token] = /^Bearer (\S+)$/i.exec(req.get('authorization') ?? '') ?? [];
    if (!token) throw unauthenticated();
    const session = await findOrForward(req, res);
    if (!session) return undefined;
    session.checkToken(token);
    const count = openRequests.get(session) ?? 0;
    if (count >= MAX_OPEN_REQUESTS)
      throw new AppError('rate_limit_exceeded', 'The attempt has too many open requests');
    openRequests.set(session, count + 1);
    res.once('close', () => openRequests.set(session, (openRequests.get(session) ?? 1) - 1));
    res.locals.session = session;
    return session;
  }
  const identified: AttemptHandler = async (req, res, next) => {
    if (await authenticate(req, res)) next();
  };
  const claimed: AttemptHandler = async (req, res, next) => {
    const session = await authenticate(req, res);
    if (!session) return;
    await session.checkClaim(req.get(NONCE_HEADER) ?? '');
    next();
  };
  const bodyBytes = new WeakMap<AgentSession, number>();
  const logParts = new LogParts();
  /**
   * Reserves memory for the body until the response. The agent repeats a request that is refused here. Short bodies count for
   * their attempt only: otherwise a few hostile jobs could keep the claims and the ends of all others from being received.
   */
  const reserve = (limit: number): AttemptHandler => {
    const isShort = limit <= MAX_JSON_BYTES;
    return (req, res, next) => {
      const { session } = res.locals;
      const bytes = maxBodyBytes(req, limit);
      const used = bodyBytes.get(session) ?? 0;
      if (used + bytes > MAX_BODY_BYTES_OF_ATTEMPT)
        throw new AppError('rate_limit_exceeded', 'The attempt sends too much at once');
      if (!isShort) logParts.add(req, res, bytes);
      bodyBytes.set(session, used + bytes);
      res.once('close', () => bodyBytes.set(session, (bodyBytes.get(session) ?? 0) - bytes));
      next();
    };
  };
  const json = [reserve(MAX_JSON_BYTES), express.json({ limit: MAX_JSON_BYTES })];
  const frames = [
    reserve(LOG_REQUEST_BYTES),
    express.raw({ type: () => true, limit: LOG_REQUEST_BYTES }),
  ];
  const requireDisk: AttemptHandler = (_req, res, next) => {
    if (!isDiskLow()) return next();
    res.locals.session.noteRefusedLog();
    throw busy('The disk of the server is nearly full');
  };

  router.post('/:attempt/claim', identified, ...json, async (req, res) => {
    res.json(await res.locals.session.claim(parse(claimSchema, req.body)));
  });
  router.get('/:attempt/checkout', claimed, async (req, res) => {
    const folder = req.query.folder === 'home' ? 'home' : 'checkout';
    const path = res.locals.session.findFolder(folder);
    if (path === null) return void res.status(204).end();
    const owner = process.getuid?.() ?? 0;
    res.type('application/x-tar');
    await pipeline(createTar({ path, owner }, { maxEntries: Number.POSITIVE_INFINITY }), res);
  });
  router.post('/:attempt/begin', claimed, ...json, async (req, res) => {
    res.json(await res.locals.session.begin(parse(beginSchema, req.body ?? {})));
  });
  router.put('/:attempt/log', claimed, requireDisk, ...frames, async (req, res) => {
    if (!Buffer.isBuffer(req.body)) throw invalid(null, 'The body must be frames of a log');
    res.json(await res.locals.session.appendLog(readNumber(req.query, 'offset'), req.body));
  });
  router.post('/:attempt/report', claimed, ...json, (req, res) => {
    res.json(res.locals.session.report(parse(reportSchema, req.body)));
  });
  router.get('/:attempt/control', claimed, async (req, res) => {
    const signal = AbortSignal.any([closeSignal(res), closing]);
    if (closing.aborted) res.set('Connection', 'close');
    const { seen = '', can } = req.query;
    const agent = { canExec: can === 'exec' };
    res.json(await res.locals.session.control(String(seen), agent, signal));
  });
  router.put('/:attempt/output', claimed, async (req, res) => {
    allowLongBody(req);
    await res.locals.session.receiveOutput(String(req.query.request ?? ''), req);
    res.status(204).end();
  });
  router.post('/:attempt/output', claimed, ...json, (req, res) => {
    const request = String(req.query.request ?? '');
    res.locals.session.failOutput(request, parse(failureSchema, req.body));
    res.status(204).end();
  });
  router.post('/:attempt/exec', claimed, ...json, (req, res) => {
    const { reason } = parse(refusalSchema, req.body);
    if (!res.locals.session.execs.refuse(String(req.query.session ?? ''), reason))
      throw new AppError('not_found', 'Nobody waits for this session');
    res.status(204).end();
  });
  router.use(handleTransferError);
  return express.Router().use(AGENTS_PATH, router);
}

/** The parts of logs that are being received. */
class LogParts {
  /** Oldest first. */
  readonly #open = new Map<AttemptRequest, { bytes: number; since: number }>();
  #bytes = 0;

  /** Counts a part until its response. @throws AppError 503 if all parts together would take too much memory */
  add(req: AttemptRequest, res: AttemptResponse, bytes: number): void {
    const now = performance.now();
    for (const [oldest, { since }] of this.#open) {
      if (this.#bytes + bytes <= MAX_BODY_BYTES || now - since < UNDISTURBED_MS) break;
      // A complete part keeps its memory until it is stored.
      if (oldest.complete) continue;
      this.#remove(oldest);
      oldest.destroy();
    }
    if (this.#bytes + bytes > MAX_BODY_BYTES) throw busy('Agents send too much at once');
    this.#open.set(req, { bytes, since: now });
    this.#bytes += bytes;
    res.once('close', () => this.#remove(req));
  }

  #remove(req: AttemptRequest): void {
    this.#bytes -= this.#open.get(req)?.bytes ?? 0;
    this.#open.delete(req);
  }
}

/** The most that the body of a request may take in memory, if bodies of more than `limit` bytes are refused. */
function maxBodyBytes({ headers }: AttemptRequest, limit: number): number {
  const isCompressed = (headers['content-encoding'] ?? 'identity') !== 'identity';
  if (isCompressed || headers['transfer-encoding'] !== undefined) return limit;
  return Math.min(Number(headers['content-length'] ?? 0), limit);
}

const ATTEMPT_ID = /^\w{1,100}$/;
const DISCONNECTED = ['ERR_STREAM_PREMATURE_CLOSE', 'ECONNRESET', 'EPIPE'];

/** Agents disconnect when their node or network fails, or when they give a request up. That is no error of this server. */
const handleTransferError: ErrorRequestHandler = (error, _req, res, next) => {
  const { code, status, type } = error as { code?: string; status?: number; type?: string };
  if (res.destroyed && (DISCONNECTED.includes(code ?? '') || type === 'request.aborted')) return;
  const isInvalidBody = type !== undefined && status !== undefined && status < 500;
  next(isInvalidBody ? new AppError('invalid_request', error.message, { status }) : error);
};

function parse<T>(schema: z.ZodType<T>, body: unknown): T {
  const result = schema.safeParse(body);
  if (result.success) return result.data;
  const [issue] = result.error.issues;
  throw invalid(issue?.path.join('.') || null, issue?.message ?? 'The body is not valid');
}

function readNumber(query: Request['query'], name: string): number {
  const value = Number(query[name]);
  if (!Number.isSafeInteger(value) || value < 0)
    throw invalid(name, 'must be a number of 0 or more');
  return value;
}
