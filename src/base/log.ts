/** Structured logs on stdout, without credentials: one JSON object per line, or on a terminal a line for people. */
import { type DestinationStream, type Logger, pino } from 'pino';

export type { Logger };

export function createLog(level: string): Logger {
  const options = {
    level,
    base: null,
    timestamp: pino.stdTimeFunctions.isoTime,
    redact: { paths: ['req.headers.authorization', 'req.headers.cookie'], remove: true },
  };
  return process.stdout.isTTY ? pino(options, terminal) : pino(options);
}

const terminal: DestinationStream = {
  write: (line) => void process.stdout.write(formatLogLine(line)),
};

/** A line for people: `10:15:02 WARN the disk is nearly full free=7 floor=9`. */
export function formatLogLine(line: string): string {
  const { time, level, msg = '', err, ...fields } = JSON.parse(line);
  const name = pino.levels.labels[level] ?? '';
  const text = [
    new Date(time).toTimeString().slice(0, 8),
    ...(name === 'info' ? [] : [name.toUpperCase()]),
    String(msg),
    ...Object.entries(fields).map(([key, value]) => `${key}=${JSON.stringify(value)}`),
  ];
  const stack = err?.stack ?? err?.message;
  const trace = stack ? `\n  ${String(stack).split('\n').map(escapeControls).join('\n  ')}` : '';
  return `${escapeControls(text.join(' '))}${trace}\n`;
}

/** Text of users must not control the terminal. */
function escapeControls(text: string): string {
  const hex = (character: string) => character.charCodeAt(0).toString(16).padStart(2, '0');
  return text.replace(/\p{Cc}/gu, (character) => `\\x${hex(character)}`);
}
