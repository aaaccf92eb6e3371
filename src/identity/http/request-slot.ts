/**
 * Slots for transfers over HTTP (`platform/limits/fair-semaphore.ts`). `platform/web/connections.ts` ends transfers
 * that are too slow.
 */
import type { Request, Response } from 'express';
import type { TransferSemaphores } from '../../platform/limits/fair-semaphore.ts';
import { type TransferNames, withTransferSlot } from '../../platform/limits/fair-semaphore.ts';
import { clientAddress } from '../../platform/web/client-address.ts';
import { closeSignal } from '../../platform/web/connections.ts';

/** Runs `transfer` when the client gets a slot. @throws AppError as `withTransferSlot` */
export function withRequestSlot<T>(
  semaphores: TransferSemaphores,
  names: TransferNames,
  req: Request,
  res: Response,
  transfer: () => Promise<T>,
): Promise<T> {
  const { viewer } = req;
  const isAnonymous = viewer.kind === 'anonymous';
  const key = isAnonymous ? clientAddress(req) : viewer.credential.id;
  return withTransferSlot(
    semaphores,
    names,
    { key, isAnonymous, signal: closeSignal(res) },
    transfer,
  );
}
