/** Transfers over HTTP that wait for their turn (`limits/transfer-turns.ts`). One that is too slow is cut off by `connections.ts`. */
import type { Request, Response } from 'express';
import { inTransferTurn, type TransferNames } from '../limits/transfer-turns.ts';
import type { TransferTurns } from '../limits/turns.ts';
import { closingOf } from './connections.ts';
import { address } from './rate-limits.ts';

/** @throws AppError as `inTransferTurn` */
export function inTurn<T>(
  turns: TransferTurns,
  names: TransferNames,
  req: Request,
  res: Response,
  transfer: () => Promise<T>,
): Promise<T> {
  const { viewer } = req;
  const isAnonymous = viewer.kind === 'anonymous';
  const key = isAnonymous ? address(req) : viewer.credential.id;
  return inTransferTurn(turns, names, { key, isAnonymous, signal: closingOf(res) }, transfer);
}
