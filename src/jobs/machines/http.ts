/** The requests of joined machines (`runners/machines/protocol.ts`). */
import express, { type Request, type RequestHandler, type Response, Router } from 'express';
import type { z } from 'zod';
import { AppError, invalid, unauthenticated } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import { originOf } from '../../identity/http/viewer.ts';
import type { Db } from '../../platform/database/client.ts';
import type { Bus } from '../../platform/events/bus.ts';
import { startLoop } from '../../platform/loop.ts';
import { closeSignal } from '../../platform/web/connections.ts';
import type { MachinesEngine } from '../../runners/machines/engine.ts';
import {
  type JoinAnswer,
  joinRequest,
  MACHINES_PATH,
  machineReport,
} from '../../runners/machines/protocol.ts';
import { authenticateMachine, joinMachine } from './machines.ts';
import { findDriver, readDrivenMachines, storeReport, toSettings } from './reports.ts';

/** A report names at most 4,096 attempts. */
const MAX_BODY_BYTES = 1024 * 1024;

type Deps = {
  db: Db;
  bus: Bus;
  log: Logger;
  /** Id of this process. */
  worker: string;
  /** The machines that this process drives; null: it runs no jobs. */
  engine: MachinesEngine | null;
  /** Forwards a request, of which no body was read, to the worker with this id. Throws AppError 503 if it cannot. */
  forwardTo(worker: string, req: Request, res: Response, signal: AbortSignal): Promise<void>;
  /** Aborts when the server stops, so that waiting requests are answered at once. */
  closing: AbortSignal;
};

export function createMachinesRouter(deps: Deps): Router {
  const { worker, engine, forwardTo, closing } = deps;
  const router = Router();
  const json = express.json({ limit: MAX_BODY_BYTES });

  router.post('/join', json, async (req, res) => {
    const { token, name, facts } = parse(joinRequest, req.body);
    const given = name ?? toMachineName(facts.hostname);
    const joined = await joinMachine(deps, token, { name: given, facts }, originOf(req));
    res.status(201).json({ ...joined, name: given } satisfies JoinAnswer);
  });

  const authenticate = async (req: Request<{ id: string }>) => {
    const [, secret] = /^Bearer (\S+)$/i.exec(req.get('authorization') ?? '') ?? [];
    const machine = secret && (await authenticateMachine(deps, req.params.id, secret));
    if (!machine) throw unauthenticated('The machine was removed, or its secret is not valid');
    return machine;
  };
  router.get('/:id', async (req, res) => {
    await authenticate(req);
    res.status(204).end();
  });

  // The number of attempts is in the address, because the body of a request that is forwarded must not be read.
  const poll: RequestHandler<{ id: string }> = async (req, res, next) => {
    const machine = await authenticate(req);
    const isEmpty = Number(req.query.attempts) === 0;
    const driver = await findDriver(deps, machine, engine ? worker : null, isEmpty);
    const signal = AbortSignal.any([closeSignal(res), closing]);
    if (driver !== worker || !engine) return forwardTo(driver, req as Request, res, signal);
    json(req, res, (error) => {
      if (error) return next(error);
      const answer = async () => {
        const report = parse(machineReport, req.body);
        await storeReport(deps, machine, report);
        if (closing.aborted) res.set('Connection', 'close');
        res.json(
          await engine.poll(toSettings({ ...machine, facts: report.facts }), report, signal),
        );
      };
      answer().catch(next);
    });
  };
  router.post('/:id/poll', poll);
  return Router().use(MACHINES_PATH, router);
}

/** Passes changes of the machines that this process drives on to it, for example when one is drained or removed. */
export function followMachines({
  db,
  bus,
  log,
  worker,
  engine,
}: Pick<Deps, 'db' | 'bus' | 'log' | 'worker'> & { engine: MachinesEngine }): AsyncDisposable {
  return startLoop(
    {
      name: 'Reading the joined machines',
      every: 60_000,
      wakes: (signal, everyMs) => bus.wakes('machines', signal, everyMs),
      log,
    },
    async () => engine.update(await readDrivenMachines({ db }, worker)),
  );
}

function parse<T>(schema: z.ZodType<T>, body: unknown): T {
  const result = schema.safeParse(body);
  if (result.success) return result.data;
  const [issue] = result.error.issues;
  throw invalid(issue?.path.join('.') || null, issue?.message ?? 'The body is not valid');
}

/** A host name as the name of a machine. */
function toMachineName(hostname: string): string {
  const [first = ''] = hostname.toLowerCase().split('.');
  const name = first
    .replace(/[^a-z0-9-]+/g, '-')
    .replace(/^-+|-+$/g, '')
    .slice(0, 63);
  if (name === '')
    throw new AppError('invalid_request', 'name: give one with --name', { field: 'name' });
  return name;
}
