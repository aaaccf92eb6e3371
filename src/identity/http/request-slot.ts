/** Transfers over HTTP that wait for their turn (`limits/transfer-turns.ts`). One that is too slow is cut off by `connections.ts`. */
import type { Request, Response } from 'express';
import type { TransferSemaphores } from '../../platform/limits/fair-semaphore.ts';
import { type TransferNames, withTransferSlot } from '../../platform/limits/fair-semaphore.ts';
import { clientAddress } from '../../platform/web/client-address.ts';
import { closeSignal } from '../../platform/web/connections.ts';

/** @throws AppError as `inTransferTurn` */
export function withRequestSlot<T>(
  turns: TransferSemaphores,
  names: TransferNames,
  req: Request,
  res: Response,
  transfer: () => Promise<T>,
): Promise<T> {
  const { viewer } = req;
  const isAnonymous = viewer.kind === 'anonymous';
  const key = isAnonymous ? clientAddress(req) : viewer.credential.id;
  return withTransferSlot(turns, names, { key, isAnonymous, signal: closeSignal(res) }, transfer);
}
