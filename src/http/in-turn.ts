/** Transfers that wait for their turn: how many are under way at once is bounded, for each caller and in all. */
import type { Request, Response } from 'express';
import { AppError, busy } from '../errors.ts';
import { NoTurn, type Turns } from '../limits/turns.ts';
import { closingOf } from './connections.ts';
import { address } from './rate-limits.ts';

export type TransferTurns = {
  transfers: Turns;
  /** Those without credentials need a turn of both. */
  anonymousTransfers: Turns;
};

const RETRY_SECONDS = 10;

/**
 * Runs a transfer when it is its turn. Its place is given back when the client is gone, too: one that takes or
 * sends nothing is cut off (`connections.ts`).
 * @param what the transfers are called in an error, as in "fetches and pushes"
 * @throws AppError 429 when the address has too many of the anonymous under way, 503 when there are too many
 */
export function inTurn<T>(
  { transfers, anonymousTransfers }: TransferTurns,
  what: string,
  req: Request,
  res: Response,
  transfer: () => Promise<T>,
): Promise<T> {
  const signal = closingOf(res);
  const { viewer } = req;
  const key = viewer.kind === 'account' ? viewer.credential.id : address(req);
  const turn = () =>
    transfers.take(transfer, { key, signal }).catch((error) => {
      throw error instanceof NoTurn ? busy(`Too many ${what} are under way`) : error;
    });
  if (viewer.kind === 'account') return turn();
  return anonymousTransfers.take(turn, { key, signal }).catch((error) => {
    if (!(error instanceof NoTurn)) throw error;
    const problem = `Too many ${what} without credentials are under way`;
    throw new AppError('rate_limit_exceeded', `${problem}; try again in ${RETRY_SECONDS} s`, {
      retryAfter: RETRY_SECONDS,
    });
  });
}
