/** The requests of joined machines (`runners/machines/protocol.ts`). */
import { type Request, type Response, Router } from 'express';
import type { z } from 'zod';
import { AppError, invalid, unauthenticated } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import { originOf } from '../../identity/http/viewer.ts';
import type { Db } from '../../platform/database/client.ts';
import type { Bus } from '../../platform/events/bus.ts';
import { startLoop } from '../../platform/loop.ts';
import { closeSignal } from '../../platform/web/connections.ts';
import { refuseOtherMethods } from '../../platform/web/methods.ts';
import { parseBody, readBodyBytes } from '../../platform/web/request-body.ts';
import type { MachinesEngine } from '../../runners/machines/engine.ts';
import {
  type JoinAnswer,
  joinRequest,
  MACHINES_PATH,
  machineReport,
} from '../../runners/machines/protocol.ts';
import { authenticateMachine, joinMachine } from './machines.ts';
import {
  findDriver,
  readDrivenMachines,
  requireInstance,
  storeReport,
  toSettings,
} from './reports.ts';

/** More than a machine has open, including requests whose connection broke unnoticed. */
const MAX_OPEN_REQUESTS = 16;

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

/** Any server lets a machine join. Must be rate limited, because the worker token is in the body. */
export function createJoinRouter({ db }: Pick<Deps, 'db'>): Router {
  const router = Router();
  router
    .route(`${MACHINES_PATH}/join`)
    .post(async (req, res) => {
      const { token, name, facts } = await readJson(req, joinRequest);
      const given = name ?? toMachineName(facts.hostname);
      const joined = await joinMachine({ db }, token, { name: given, facts }, originOf(req));
      res.status(201).json({ ...joined, name: given } satisfies JoinAnswer);
    })
    .all(refuseOtherMethods(['POST']));
  return router;
}

/** Machines have their own credentials and no rate limit. */
export function createMachinesRouter(deps: Deps): Router {
  const { worker, engine, forwardTo, closing } = deps;
  const router = Router();
  const openRequests = new Map<string, number>();

  /** @throws AppError 429 */
  const countRequest = (id: string, res: Response) => {
    const count = openRequests.get(id) ?? 0;
    if (count >= MAX_OPEN_REQUESTS)
      throw new AppError('rate_limit_exceeded', 'The machine has too many open requests');
    openRequests.set(id, count + 1);
    res.once('close', () => {
      const left = (openRequests.get(id) ?? 1) - 1;
      if (left > 0) openRequests.set(id, left);
      else openRequests.delete(id);
    });
  };

  const authenticate = async (req: Request<{ id: string }>) => {
    const [, secret] = /^Bearer (\S+)$/i.exec(req.get('authorization') ?? '') ?? [];
    const machine = secret && (await authenticateMachine(deps, req.params.id, secret));
    if (!machine) throw unauthenticated('The machine was removed, or its secret is not valid');
    return machine;
  };
  router.get('/:id', async (req, res, next) => {
    // Where this process lets machines join, another router answers.
    if (req.params.id === 'join') return next();
    await authenticate(req);
    res.status(204).end();
  });

  // What is needed before the driver is known is in the address: the body of a request that is forwarded must not be read.
  router.post('/:id/poll', async (req, res) => {
    const machine = await authenticate(req);
    countRequest(machine.id, res);
    const instance = String(req.query.instance ?? '').slice(0, 100);
    await requireInstance(deps, machine, instance);
    const isEmpty = Number(req.query.attempts) === 0;
    const driver = await findDriver(deps, machine, engine ? worker : null, isEmpty);
    const signal = AbortSignal.any([closeSignal(res), closing]);
    if (driver !== worker || !engine) return forwardTo(driver, req as Request, res, signal);
    const report = await readJson(req as Request, machineReport);
    await storeReport(deps, machine, report);
    // It may have been removed while its report arrived, before the engine knew it.
    if (!engine.drives(machine.id)) await authenticate(req);
    if (closing.aborted) res.set('Connection', 'close');
    const settings = toSettings({ ...machine, instance, facts: report.facts });
    res.json(await engine.poll(settings, report, signal));
  });
  return Router().use(MACHINES_PATH, router);
}

/**
 * Tells this process which machines it drives, and of their changes, for example when one is drained or removed. Jobs may be
 * claimed when it resolves: the engine then knows what machines have that have not reported yet.
 */
export async function followMachines({
  db,
  bus,
  log,
  worker,
  engine,
}: Pick<Deps, 'db' | 'bus' | 'log' | 'worker'> & {
  engine: MachinesEngine;
}): Promise<AsyncDisposable> {
  const read = async () => engine.update(await readDrivenMachines({ db }, worker));
  await read();
  return startLoop(
    {
      name: 'Reading the joined machines',
      every: 60_000,
      wakes: (signal, everyMs) => bus.wakes('machines', signal, everyMs),
      log,
    },
    read,
  );
}

/** @throws AppError 400, 503 as `readBodyBytes` */
async function readJson<T>(req: Request, schema: z.ZodType<T>): Promise<T> {
  const bytes = await readBodyBytes(req);
  const result = schema.safeParse(parseBody(bytes.toString('utf8')));
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
