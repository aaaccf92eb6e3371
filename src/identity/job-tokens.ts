/**
 * Tokens of jobs: `loam_job_`, the id of an attempt, and an authentication code that only servers with the secret key can
 * compute. Nothing is stored, so a restarted worker knows the tokens of its attempts, and a leaked dump of the database
 * contains none. `authenticate.ts` accepts a token while its attempt holds its job.
 */
import { createHmac, timingSafeEqual } from 'node:crypto';
import { isId } from '../base/ids.ts';
import type { Keys } from '../platform/crypto/keys.ts';

/** Secret scanners recognize it. */
export const JOB_TOKEN_PREFIX = 'loam_job_';

const TOKEN = new RegExp(`^${JOB_TOKEN_PREFIX}([0-9a-z]{26})([0-9a-f]{64})$`);

export type JobTokens = {
  /** The token of an attempt, the same each time. */
  tokenOf(attemptId: string): string;
  /** The end of this token, which must not be shown. The rest is no secret. */
  codeOf(attemptId: string): string;
  /** The id of the attempt whose token it is; null for any other text. */
  readAttemptId(token: string): string | null;
};

export function createJobTokens(keys: Keys): JobTokens {
  const key = keys.derive('tokens of jobs');
  const compute = (attemptId: string) => createHmac('sha256', key).update(attemptId).digest();
  const codeOf = (attemptId: string) => compute(attemptId).toString('hex');
  return {
    codeOf,
    tokenOf: (attemptId) =>
      `${JOB_TOKEN_PREFIX}${attemptId.slice('att_'.length)}${codeOf(attemptId)}`,
    readAttemptId(token) {
      const [, suffix, code] = TOKEN.exec(token) ?? [];
      const attemptId = `att_${suffix}`;
      if (code === undefined || !isId('att', attemptId)) return null;
      return timingSafeEqual(compute(attemptId), Buffer.from(code, 'hex')) ? attemptId : null;
    },
  };
}
