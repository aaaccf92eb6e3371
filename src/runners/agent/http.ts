/** The routes for agents (`protocol.ts`). They have their own credentials and no rate limit. */
import { createReadStream } from 'node:fs';
import { pipeline } from 'node:stream/promises';
import express, { type Request, type RequestHandler, type Router } from 'express';
import { z } from 'zod';
import { AppError, busy, invalid, unauthenticated } from '../../base/errors.ts';
import { closeSignal } from '../../platform/web/connections.ts';
import { createTar } from '../supervisor/tar.ts';
import { AGENT_PROGRAM, AGENTS_PATH, LOG_REQUEST_BYTES, NONCE_HEADER } from './protocol.ts';
import type { AgentRunner } from './runner.ts';
import type { AgentSession } from './session.ts';

const claimSchema = z.object({ nonce: z.uuid(), node: z.string().max(253) });
const count = z.number().finite().nonnegative();
const reportSchema = z.object({
  started: z.object({ pid: count, startedAt: count }).optional(),
  usage: z
    .object({
      at: count,
      cpuSeconds: count,
      memoryBytes: count,
      gpuPercent: count,
      diskBytes: count,
    })
    .optional(),
  exit: z
    .object({
      exitCode: z.int().min(0).max(255).nullable(),
      timedOut: z.boolean(),
      startedAt: count,
      endedAt: count,
      unstartable: z.boolean(),
      reason: z.string().max(10_000).optional(),
      outOfMemory: z.literal(true).optional(),
      isInterrupted: z.literal(true).optional(),
      logBytes: count,
    })
    .optional(),
});
const failureSchema = z.object({ reason: z.string().max(1_000).nullable() });

type AttemptRequest = Request<{ attempt: string }>;
type Handle = (session: AgentSession, req: AttemptRequest, res: express.Response) => unknown;

/**
 * @param findSession over all clusters of this worker
 * @param program path of the agent's program
 * @param isOpen whether an attempt without a session here may belong to another worker
 * @param closing aborts when the server stops: then requests that wait are answered
 */
export function createAgentsRouter({
  findSession,
  program,
  isOpen,
  closing,
}: {
  findSession: AgentRunner['findSession'];
  program: string;
  isOpen(attempt: string): Promise<boolean>;
  closing: AbortSignal;
}): Router {
  const router = express.Router({ mergeParams: true });
  router.get(`/${AGENT_PROGRAM}`, (_req, res, next) => {
    res.type('text/javascript');
    pipeline(createReadStream(program), res).catch(next);
  });

  async function find(req: AttemptRequest): Promise<{ session: AgentSession; token: string }> {
    const [, token] = /^Bearer (\S+)$/i.exec(req.get('authorization') ?? '') ?? [];
    if (!token) throw unauthenticated();
    const { attempt } = req.params;
    const session = /^\w+$/.test(attempt) ? await findSession(attempt) : undefined;
    if (session) return { session, token };
    // The agent repeats a request that is answered with 503, and kills its command after 410.
    if (await isOpen(attempt)) throw busy('Another server has this attempt; see LOAM_AGENT_URL');
    throw new AppError('not_found', 'The attempt is over', { status: 410 });
  }
  const claimed =
    (handle: Handle): RequestHandler<{ attempt: string }> =>
    async (req, res) => {
      const { session, token } = await find(req);
      await session.authenticate(token, req.get(NONCE_HEADER) ?? '');
      await handle(session, req, res);
    };
  const json = express.json({ limit: '64kb' });
  const frames = express.raw({ type: () => true, limit: LOG_REQUEST_BYTES });

  router.post('/:attempt/claim', json, async (req: AttemptRequest, res) => {
    const { session, token } = await find(req);
    session.checkToken(token);
    res.json(await session.claim(parse(claimSchema, req.body)));
  });
  router.get(
    '/:attempt/checkout',
    claimed(async ({ checkoutDir }, _req, res) => {
      if (checkoutDir === null) return res.status(204).end();
      const owner = process.getuid?.() ?? 0;
      res.type('application/x-tar');
      await pipeline(createTar({ path: checkoutDir, owner }, Number.POSITIVE_INFINITY), res);
    }),
  );
  router.post(
    '/:attempt/begin',
    claimed(async (session, _req, res) => {
      await session.begin();
      res.status(204).end();
    }),
  );
  router.put(
    '/:attempt/log',
    frames,
    claimed(async (session, req, res) => {
      if (!Buffer.isBuffer(req.body)) throw invalid(null, 'The body must be frames of a log');
      res.json(await session.appendLog(readNumber(req, 'offset'), req.body));
    }),
  );
  router.post(
    '/:attempt/report',
    json,
    claimed((session, req, res) => {
      session.report(parse(reportSchema, req.body));
      res.status(204).end();
    }),
  );
  router.get(
    '/:attempt/control',
    claimed(async (session, req, res) => {
      const signal = AbortSignal.any([closeSignal(res), closing]);
      if (closing.aborted) res.set('Connection', 'close');
      res.json(await session.control(String(req.query.seen ?? ''), signal));
    }),
  );
  router.put(
    '/:attempt/output',
    claimed(async (session, req, res) => {
      await pipeline(req, session.receiveOutput(String(req.query.request ?? '')));
      res.status(204).end();
    }),
  );
  router.post(
    '/:attempt/output',
    json,
    claimed((session, req, res) => {
      session.failOutput(String(req.query.request ?? ''), parse(failureSchema, req.body));
      res.status(204).end();
    }),
  );
  return express.Router().use(AGENTS_PATH, router);
}

function parse<T>(schema: z.ZodType<T>, body: unknown): T {
  const result = schema.safeParse(body);
  if (result.success) return result.data;
  const [issue] = result.error.issues;
  throw invalid(issue?.path.join('.') || null, issue?.message ?? 'The body is not valid');
}

function readNumber(req: AttemptRequest, name: string): number {
  const value = Number(req.query[name]);
  if (!Number.isSafeInteger(value) || value < 0)
    throw invalid(name, 'must be a number of 0 or more');
  return value;
}
