/** Uploads one large file: as a delta to an earlier version that the server has, or as a whole. */
import { stat } from 'node:fs/promises';
import type { IncomingMessage } from 'node:http';
import { dirname, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { Network } from '../network.ts';
import { computeDelta, type Delta, encode } from './delta.ts';
import type { LargeObject } from './versions.ts';

/** An `upload` message of git-lfs. `path` is the object in the local LFS storage, `<storage>/aa/bb/<oid>`. */
export type UploadRequest = LargeObject & {
  path: string;
  /** Where the server accepts the object, with a token in `header`. */
  action: { href: string; header?: Record<string, string> };
};

/** Failed upload. `code` is the HTTP status, or 1. */
export class UploadError extends Error {
  override name = 'UploadError';
  readonly code: number;
  /** Whether the same request may succeed later, and after how many seconds at the earliest. */
  readonly isTemporary: boolean;
  readonly retryAfter: number;

  constructor(
    message: string,
    {
      code = 1,
      isTemporary = false,
      retryAfter = 0,
    }: { code?: number; isTemporary?: boolean; retryAfter?: number } = {},
  ) {
    super(message);
    this.code = code;
    this.isTemporary = isTemporary;
    this.retryAfter = retryAfter;
  }
}

/** Smaller files are sent as a whole. */
const MIN_DELTA_BYTES = 65_536;
/** A delta must save a tenth of the file. */
const MAX_DELTA_SHARE = 0.9;
const MAX_TRIES = 6;
const MAX_WAIT_SECONDS = 60;
const MAX_ANSWER_BYTES = 65_536;
/** The server answers a delta when it has assembled the object, of up to 64 GiB. */
const ANSWER_TIMEOUT_MS = 3_600_000;
/**
 * Answers to a delta after which the whole file is sent: the base is gone, or damaged on either side; the server is older;
 * or a proxy did not wait until the server had assembled a large file.
 */
const UNUSABLE_DELTA = new Set([404, 405, 409, 413, 415, 422, 504]);

type Context = {
  network: Network;
  /** Gets the number of bytes of the file that are done. */
  onProgress: (bytes: number) => void;
  signal: AbortSignal;
};

/**
 * @param earlierVersions of the same file, the latest first; called only for files that may be sent as a delta
 * @throws UploadError; AbortError
 */
export async function uploadObject(
  request: UploadRequest,
  earlierVersions: () => Promise<readonly LargeObject[]>,
  context: Context,
): Promise<void> {
  const { size, path, action } = request;
  const stored = await sizeOf(path);
  if (stored !== size)
    throw new UploadError(
      `${path} has ${stored ?? 'no'} bytes instead of ${size}. Run "git lfs fsck".`,
    );
  if (size >= MIN_DELTA_BYTES) {
    const base = await chooseBase(request, await earlierVersions(), context);
    if (base && (await sendAsDelta(request, base, context))) return;
  }
  await send(context, {
    method: 'PUT',
    url: new URL(action.href),
    headers: { ...action.header, 'content-type': 'application/octet-stream' },
    length: size,
    body: () => encode(path, { size }, context.onProgress),
  });
}

type Base = LargeObject & { path: string };

/** @returns the latest earlier version that both this machine and the server have */
async function chooseBase(
  { path, action }: UploadRequest,
  versions: readonly LargeObject[],
  context: Context,
): Promise<Base | null> {
  const storage = dirname(dirname(dirname(path)));
  for (const { oid, size } of versions) {
    const local = join(storage, oid.slice(0, 2), oid.slice(2, 4), oid);
    if ((await sizeOf(local)) !== size) continue;
    const body = Buffer.from(JSON.stringify({ oid, size }));
    try {
      await send(context, {
        method: 'POST',
        url: new URL('verify', action.href),
        headers: { ...action.header, 'content-type': 'application/vnd.git-lfs+json' },
        length: body.length,
        body: () => [body],
      });
      return { oid, size, path: local };
    } catch (error) {
      if (!(error instanceof UploadError) || !UNUSABLE_DELTA.has(error.code)) throw error;
    }
  }
  return null;
}

/** @returns false when the file has to be sent as a whole */
async function sendAsDelta(
  { path, size, action }: UploadRequest,
  base: Base,
  context: Context,
): Promise<boolean> {
  const delta: Delta | null = await computeDelta(base, { path, size }, context.signal);
  if (!delta || delta.bytes > size * MAX_DELTA_SHARE) return false;
  const url = new URL(action.href);
  url.pathname += '/delta';
  url.search = String(new URLSearchParams({ size: String(size), base: base.oid }));
  try {
    await send(context, {
      method: 'POST',
      url,
      headers: { ...action.header, 'content-type': 'application/vnd.loam.delta' },
      length: delta.bytes,
      body: () => encode(path, delta, context.onProgress),
    });
    return true;
  } catch (error) {
    if (error instanceof UploadError && UNUSABLE_DELTA.has(error.code)) return false;
    throw error;
  }
}

type HttpRequest = {
  method: 'POST' | 'PUT';
  url: URL;
  headers: Record<string, string>;
  /** Of the body, in bytes. */
  length: number;
  /** Called for each attempt. */
  body: () => AsyncIterable<Buffer> | Iterable<Buffer>;
};

/** Repeats a request that failed for a temporary reason. @throws UploadError; AbortError */
async function send(context: Context, request: HttpRequest): Promise<void> {
  for (let tries = 1; ; tries++) {
    try {
      return await sendOnce(context, request);
    } catch (error) {
      context.signal.throwIfAborted();
      if (!(error instanceof UploadError && error.isTemporary) || tries === MAX_TRIES) throw error;
      const seconds = Math.min(Math.max(error.retryAfter, 2 ** (tries - 1)), MAX_WAIT_SECONDS);
      await delay(seconds * 1_000, undefined, { signal: context.signal });
    }
  }
}

/** A redirect is an error: the header must not reach another server. */
async function sendOnce(
  { network, signal }: Context,
  { method, url, headers, length, body }: HttpRequest,
): Promise<void> {
  const { Readable } = await import('node:stream');
  let answer: IncomingMessage;
  try {
    answer = await network(url, {
      method,
      headers: { ...headers, 'content-length': String(length) },
      ...(length > 0 && { body: Readable.from(body(), { objectMode: false }) }),
      signal,
      timeoutMs: ANSWER_TIMEOUT_MS,
    });
  } catch (error) {
    throw isNetworkError(error) ? unreachable(url, error) : error;
  }
  const text = await readAnswer(answer, url);
  const { statusCode = 0 } = answer;
  if (statusCode < 300) return;
  if (statusCode < 400)
    throw new UploadError(
      `${url.origin} redirects to another address. Use the address at which the server itself answers.`,
      { code: statusCode },
    );
  throw refusal(url, answer, text);
}

async function readAnswer(answer: IncomingMessage, url: URL): Promise<string> {
  let text = '';
  try {
    for await (const piece of answer) {
      text += piece;
      if (text.length > MAX_ANSWER_BYTES) break;
    }
  } catch (error) {
    // The status says enough when the server closes the connection during a refusal.
    if ((answer.statusCode ?? 0) < 400) throw unreachable(url, error);
  }
  return text;
}

function refusal(
  url: URL,
  { statusCode = 0, headers }: IncomingMessage,
  text: string,
): UploadError {
  return new UploadError(messageIn(text) ?? `${url.origin} answered ${statusCode}`, {
    code: statusCode,
    isTemporary: statusCode === 429 || (statusCode >= 500 && ![504, 507].includes(statusCode)),
    retryAfter: Number(headers['retry-after']) || 0,
  });
}

/** The message of an error in the format of git-lfs. */
function messageIn(text: string): string | null {
  try {
    const { message } = JSON.parse(text);
    return typeof message === 'string' ? message.slice(0, 2_000) : null;
  } catch {
    return null;
  }
}

const isNetworkError = (error: unknown): error is Error & { code: string } =>
  error instanceof Error && typeof (error as { code?: unknown }).code === 'string';

function unreachable(url: URL, error: unknown): UploadError {
  const { code, message } = error as { code?: string; message: string };
  const isCertificate = /CERT|SELF_SIGNED|ISSUER/.test(code ?? '');
  const remedy = isCertificate ? '. LOAM_CA can name a file with a certificate authority' : '';
  return new UploadError(`Cannot reach ${url.origin}: ${message}${remedy}`, {
    isTemporary: !isCertificate,
  });
}

/** @returns null when there is no such file */
async function sizeOf(path: string): Promise<number | null> {
  try {
    return (await stat(path)).size;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw error;
  }
}
