/** Structured logs on stdout, one JSON object per line, without credentials. */
import { type Logger, pino } from 'pino';

export type { Logger };

export function createLog(level: string): Logger {
  return pino({
    level,
    base: null,
    timestamp: pino.stdTimeFunctions.isoTime,
    redact: { paths: ['req.headers.authorization', 'req.headers.cookie'], remove: true },
  });
}
