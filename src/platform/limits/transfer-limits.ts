/** Transfers that wait for their turn: how many are under way at once is bounded, for each caller and in all. */
import { AppError, busy } from '../../base/errors.ts';
import { type Caller, QueueTimeout, type TransferSemaphores } from './fair-semaphore.ts';

/** What transfers are called in an error, and those of the anonymous, who may not push. */
export type TransferNames = readonly [all: string, anonymous: string];
export const OF_GIT: TransferNames = ['fetches and pushes', 'fetches'];
export const OF_LARGE_FILES: TransferNames = [
  'transfers of large files',
  'downloads of large files',
];

/** Whose transfer it is. `signal` aborts when the client is gone. */
export type TransferCaller = Caller & { signal: AbortSignal };

const RETRY_SECONDS = 10;

/**
 * Runs a transfer when it is its turn. Its place is given back when the client is gone, too: one that takes or
 * sends nothing is cut off by whoever speaks with it.
 * @throws AppError 429 when the address has too many of the anonymous under way, 503 when there are too many
 */
export function withTransferSlot<T>(
  { transfers, anonymousTransfers }: TransferSemaphores,
  [all, ofAnonymous]: TransferNames,
  { key, isAnonymous, signal }: TransferCaller,
  transfer: () => Promise<T>,
): Promise<T> {
  const turn = () =>
    transfers.take(transfer, { key, signal }).catch((error) => {
      throw error instanceof QueueTimeout ? busy(`Too many ${all} are under way`) : error;
    });
  if (!isAnonymous) return turn();
  return anonymousTransfers.take(turn, { key, signal }).catch((error) => {
    if (!(error instanceof QueueTimeout)) throw error;
    const problem = `Too many ${ofAnonymous} without credentials are under way`;
    throw new AppError('rate_limit_exceeded', `${problem}; try again in ${RETRY_SECONDS} s`, {
      retryAfter: RETRY_SECONDS,
    });
  });
}
